"""The tables of a run: written batch by batch, so that memory does not grow with the number of images."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from xbench.runs.answers import PREDICTIONS_SCHEMA
from xbench.runs.files import IMAGES, PAIRS, PICTURES, PREDICTIONS, TRUTH, WRITING, Table
from xbench.runs.images import IMAGES_SCHEMA, PICTURES_SCHEMA, TRUTH_SCHEMA
from xbench.runs.results import outputs_depend_on
from xbench.runtime.digests import file_sha256
from xbench.runtime.files import atomic_writer
from xbench.scoring.rows import SCHEMA, Rows

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    PAIRS: SCHEMA,
    IMAGES: IMAGES_SCHEMA,
    PREDICTIONS: PREDICTIONS_SCHEMA,
    TRUTH: TRUTH_SCHEMA,
    PICTURES: PICTURES_SCHEMA,
}

# Rows to a group: few enough to read one case fast, enough to compress well.
_GROUP = {PAIRS: 1024, IMAGES: 1024, PREDICTIONS: 512, TRUTH: 256, PICTURES: 32}
_GROUP_BYTES = 2**26
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Bytes of one place in a float lie together and so compress better.
    PREDICTIONS: {"use_dictionary": False, "use_byte_stream_split": ["map.list.element"], "version": "2.6"},
    PICTURES: {"use_dictionary": False},
}


def about_tables(findings: Sequence[str], gamma: float, provenance: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what the tables of a run say beside their rows."""
    predicted = {"findings": [*findings], "depends_on": outputs_depend_on(provenance)}
    return {PREDICTIONS: predicted, TRUTH: {"gamma": gamma}}


def write_tables(
    folder: Path,
    batches: Iterable[Mapping[str, pa.Table]],
    names: Sequence[str],
    about: Mapping[str, Mapping[str, Any]],
) -> dict[str, str]:
    """Write the named tables of a run; each appears whole or not at all.

    Args:
        folder: Of the run.
        batches: Tables by name, in the dataset's order.
        names: Tables to write; the others of a batch are left out.
        about: By file, what it says beside its rows, as plain values by key.

    Returns:
        The SHA-256 of each file.
    """
    metadata = {name: {key: json.dumps(value) for key, value in about.get(name, {}).items()} for name in names}
    waiting: dict[str, list[pa.Table]] = {name: [] for name in names}
    rows, size = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    with ExitStack() as stack:
        writers = {}
        for name in names:
            file = stack.enter_context(atomic_writer(folder / name))
            options = WRITING | dict(_OPTIONS.get(name, {}))
            schema = SCHEMAS[name].with_metadata(metadata[name] or None)
            writers[name] = stack.enter_context(pq.ParquetWriter(file, schema, **options))

        def flush(name: str) -> None:
            table = pa.concat_tables([SCHEMAS[name].empty_table(), *waiting[name]]).combine_chunks()
            writers[name].write_table(table.replace_schema_metadata(metadata[name] or None))
            waiting[name].clear()
            rows[name] = size[name] = 0

        for batch in batches:
            for name in set(names) & batch.keys():
                if not batch[name].num_rows:
                    continue
                waiting[name].append(batch[name])
                rows[name] += batch[name].num_rows
                size[name] += batch[name].nbytes
                if rows[name] >= _GROUP[name] or size[name] >= _GROUP_BYTES:
                    flush(name)
        for name in names:
            flush(name)
    return {name: file_sha256(folder / name) for name in names}


_MAX_ROWS = 2 * 10**7
"""Of a table that is read: ten times those of the largest dataset. A file of a few bytes can claim any number."""


def read_rows(path: Path, findings: Sequence[str]) -> Rows:
    """Read `pairs.parquet` of a run with these findings.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run with these findings
            writes.
    """
    with Table(path) as file:
        if not file.schema_arrow.equals(SCHEMA):
            raise ValueError(f"{path.name} has not the columns that a run writes")
        if file.metadata.num_rows > _MAX_ROWS:
            raise ValueError(
                f"{path.name} claims {file.metadata.num_rows} rows, more than the {_MAX_ROWS} that are read"
            )
        table = file.read()
    needed = ("index", "image_id", "query", "condition", "label", "has_region", "scored", "asked")
    if lacking := [name for name in needed if table[name].null_count]:
        raise ValueError(f"{path.name}: {lacking[0]} has gaps that no run leaves")
    rows = Rows.of(table, findings)
    scored, counts = rows["scored"], rows.counts
    wrong = {
        "label": ~np.isin(rows["label"], (-1, 0, 1)),
        "scored": scored & ~((rows["label"] == 1) & rows["has_region"]),
        "logit": np.isinf(rows["logit"]),
        "pointing_hit": np.isnan(rows["pointing_hit"]) == scored,
        "region_area": np.isnan(rows["region_area"]) == rows["has_region"],
    }
    for name, values in rows.columns.items():
        if values.dtype.kind == "f" and name != "logit":
            # Counts of boxes and points may be any, and shares of an image reach 1.
            most = np.inf if pa.types.is_integer(SCHEMA.field(name).type) else 2**0.5 if name == "peak_distance" else 1
            wrong[name] = wrong.get(name, np.zeros(len(rows), np.bool_)) | (values < 0) | (values > most)
    for name, places in wrong.items():
        for row in np.flatnonzero(places)[:1].tolist():
            about = f"{rows.queries[rows.query[row]]!r:.60} on {rows.image_ids[rows.image[row]]!r:.200}"
            raise ValueError(f"{path.name}: {name} of {about} is {rows[name][row]}, which no run writes there")
    inside = (counts.overlap >= 0) & (counts.overlap <= counts.mask) & (counts.overlap <= counts.region[:, None])
    if not (inside & (counts.mask <= counts.grid[:, None])).all() or not (counts.region <= counts.grid).all():
        raise ValueError(f"{path.name} holds sizes of masks and regions that no run writes")
    return rows
