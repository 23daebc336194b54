"""Tables of a run, written batch by batch, so that memory does not grow with the number of images."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.findings.conditions import PROMPTS
from xbench.runs.files import IMAGES, PAIRS, PERTURBATIONS, PICTURES, PREDICTIONS, SCHEMAS, TRUTH, WRITING, Table
from xbench.runs.fingerprint import outputs_depend_on
from xbench.runtime.digests import file_sha256
from xbench.runtime.files import atomic_writer
from xbench.scoring.numbers import STATUSES, dice, iou
from xbench.scoring.rows import SCHEMA, Rows

# Rows per group: few enough to read one case fast, enough to compress well. Pairs are always read as a whole.
_GROUP = {PAIRS: 8192, IMAGES: 1024, PREDICTIONS: 512, TRUTH: 256, PICTURES: 24, PERTURBATIONS: 2**16}
_GROUP_BYTES = 2**26
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Grouping bytes of floats by position compresses better.
    PREDICTIONS: {"use_byte_stream_split": ["map.list.element"], "write_statistics": ["map.list.element"]},
    PICTURES: {"compression": "none"},
}


def about_tables(findings: Sequence[str], gamma: float, provenance: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metadata of a run's tables."""
    predicted = {"findings": [*findings], "depends_on": outputs_depend_on(provenance)}
    return {PREDICTIONS: predicted, TRUTH: {"gamma": gamma}}


def write_tables(
    folder: Path,
    batches: Iterable[Mapping[str, pa.Table]],
    names: Sequence[str],
    about: Mapping[str, Mapping[str, Any]],
) -> dict[str, str]:
    """Write the tables of these names, each complete or not at all, and return the SHA-256 of each.

    `batches` are tables by name, in the dataset's order, `about` the metadata by name, as plain values by key.
    """
    metadata = {name: {key: json.dumps(value) for key, value in about.get(name, {}).items()} for name in names}
    waiting: dict[str, list[pa.Table]] = {name: [] for name in names}
    rows, size = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    with ExitStack() as stack:
        writers = {}
        for name in names:
            file = stack.enter_context(atomic_writer(folder / name))
            schema = SCHEMAS[name].with_metadata(metadata[name] or None)
            # Not to `file` itself, which pyarrow would hand copies.
            sink = stack.enter_context(pa.output_stream(file.name, buffer_size=2**18))
            writers[name] = stack.enter_context(pq.ParquetWriter(sink, schema, **{**WRITING, **_OPTIONS.get(name, {})}))

        def flush(name: str) -> None:
            table = pa.concat_tables(waiting[name] or [SCHEMAS[name].empty_table()]).combine_chunks()
            # A group of a mebibyte is read fast, whatever its number of rows.
            groups = max(1, min(table.num_rows // _GROUP[name], table.nbytes >> 20))
            writers[name].write_table(table, row_group_size=-(-table.num_rows // groups) or None)
            waiting[name].clear()
            rows[name] = size[name] = 0

        for batch in batches:
            for name in set(names) & batch.keys():
                waiting[name].append(batch[name])
                rows[name] += batch[name].num_rows
                # At least `nbytes`, and 50 times faster.
                size[name] += batch[name].get_total_buffer_size()
                if rows[name] >= _GROUP[name] or size[name] >= _GROUP_BYTES:
                    flush(name)
        for name in names:
            flush(name)
    return {name: file_sha256(folder / name) for name in names}


_MAX_ROWS = 2 * 10**7  # limit of rows: ten times the largest dataset, because a few bytes can claim any number


def read_rows(path: Path, findings: Sequence[str], condition: str = "") -> Rows:
    """Read the rows of one condition; see `read_conditions`."""
    return read_conditions(path, findings, [condition])[condition]


def read_conditions(path: Path, findings: Sequence[str], conditions: Sequence[str]) -> dict[str, Rows]:
    """Read the rows of some conditions, by condition; raise the errors of `Table`, also for other findings."""
    with Table(path, PAIRS) as file:
        if file.metadata.num_rows > _MAX_ROWS:
            raise ValueError(f"{path.name} claims {file.metadata.num_rows} rows, and {_MAX_ROWS} are read at most")
        table = file.read()
    needed = ("index", "image_id", "query", "condition", "label", "has_region", "scored", "asked")
    if lacking := [name for name in needed if table[name].null_count]:
        raise ValueError(f"{path.name}: {lacking[0]} has missing values that no run writes")
    found = {condition: Rows.of(table, findings, condition) for condition in conditions}
    for condition, rows in found.items():
        for name, places in _wrong(rows, condition in PROMPTS):
            for row in np.flatnonzero(places)[:1].tolist():
                about = f"{rows.queries[rows.query[row]]!r:.60} on {rows.image_ids[rows.image[row]]!r:.200}"
                value = f" is {rows[name][row]}" if name in rows.columns else ""
                raise ValueError(f"{path.name}: {name} of {about}{value}, which no run writes there")
    return found


def _wrong(rows: Rows, in_other_words: bool) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield columns and their invalid rows (R,); findings have a text only in other words."""
    scored = rows["scored"]
    yield "label", ~np.isin(rows["label"], (-1, 0, 1))
    yield "text", (rows.text < 0) != (rows.of_finding & (not in_other_words))
    yield "language", (rows["language"] != "") & (rows.text < 0)
    yield "scored", scored & ~((rows["label"] == 1) & rows["has_region"])
    yield "logit", np.isinf(rows["logit"])
    yield "pointing_hit", np.isnan(rows["pointing_hit"]) == scored
    yield "region_area", np.isnan(rows["region_area"]) == rows["has_region"]
    for name, values in rows.columns.items():
        if values.dtype.kind == "f" and name != "logit":
            # Integers may be any, and shares of an image reach 1.
            most = np.inf if pa.types.is_integer(SCHEMA.field(name).type) else 2**0.5 if name == "peak_distance" else 1
            yield name, (values < 0) | (values > most)
    answered = rows["answer_status"] != ""
    yield "answer_status", answered & ~np.isin(rows["answer_status"], STATUSES)
    of_answers, of_changes = (SCHEMA.names.index(name) for name in ("answer_status", "changed_digest"))
    for name in SCHEMA.names[of_answers + 1 : of_changes]:
        yield name, ~answered & ~np.isnan(rows[name].astype(np.float64))
    for name in SCHEMA.names[of_changes + 1 :]:
        yield name, (rows["changed_digest"] != "") == np.isnan(rows[name])
    counts, wrong = rows.counts, np.zeros(len(rows), np.bool_)

    def of_scored(places: NDArray[np.bool_]) -> NDArray[np.bool_]:
        wrong[counts.row] = places if places.ndim == 1 else places.any(axis=1)
        return wrong

    yield "region_pixels", of_scored(counts.region > counts.grid)
    for own, kept in (("", counts), *([("own_", rows.own)] if len(rows.own.row) else [])):
        for name, pixels, limit in (("mask", kept.mask, kept.grid), ("overlap", kept.overlap, kept.region)):
            # A higher threshold marks no additional pixel.
            odd = (pixels < 0) | (pixels > limit[:, None]) | (np.diff(pixels, axis=1, append=0) > 0)
            yield f"{own}{name}_pixels", of_scored(odd)
        yield f"{own}overlap_pixels", of_scored(kept.overlap > kept.mask)
    yield "region_area", of_scored(rows["region_area"][counts.row] != counts.region / counts.grid)
    middle = counts.mask.shape[1] // 2
    for name, overlap in (("dice", dice), ("iou", iou)):
        stored = rows[name][counts.row]
        follows = overlap(counts.mask[:, middle], counts.overlap[:, middle], counts.region)
        # Points have no area, so Dice and IoU are missing.
        only_points = (rows["points"][counts.row] > 0) & (rows["boxes"][counts.row] == 0)
        yield name, of_scored(np.where(only_points, ~np.isnan(stored), stored != follows))
