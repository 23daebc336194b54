"""Names of a run's files, columns of its tables, and errors of their readers.

Each page of a table has a checksum against flipped bits; the SHA-256 in `results.json` covers the file's footer.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from xbench.runtime.errors import UserError
from xbench.scoring.rows import SCHEMA

CONFIG = "config.yaml"  # configuration; `xbench test --config RUN/config.yaml` repeats the run
JOURNAL = "journal"  # finished batches (patients' images), deleted at the end
PARTS = "parts"  # the same during `predict`
IMAGES = "images.parquet"  # a row per image
PREDICTIONS = "predictions.parquet"  # a row per pair with scores and raw map, or per question to a model that answers
TRUTH = "truth.parquet"  # a row per annotated region
PICTURES = "pictures.parquet"  # `jpeg` of images with a scored pair, at most 1,024 pixels a side (patients' images)
PERTURBATIONS = "perturbations.parquet"  # a row per step of curves and randomization
PAIRS = "pairs.parquet"  # a row per image, query and condition; every number follows from it
READ_TEXTS = "texts.parquet"  # if words were scored, a row per text (boxes removed)
MENTIONS = "mentions.parquet"  # a row per mention of a finding
RESULTS = "results.json"  # every number, counts, provenance; written last: a folder without it is unfinished

_INTEGERS, _FLOATS, _BOXES = pa.list_(pa.int32()), pa.list_(pa.float64()), pa.list_(pa.list_(pa.float64()))
_IMAGE = {"index": pa.int64(), "image_id": pa.string()}  # as in `pairs.parquet`
_SHAPE = pa.struct(
    {"kind": pa.string(), "size": _INTEGERS, "coordinates": _FLOATS, "reader": pa.string(), "outline": pa.bool_()}
)
SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    PAIRS: SCHEMA,
    IMAGES: pa.schema(
        _IMAGE
        | {"patient_id": pa.string()}  # as in `pairs.parquet`
        | {"crop": _FLOATS}  # part that maps cover: left, top, right, bottom as fractions
        | {"height": pa.int32(), "width": pa.int32()}  # of the radiograph in pixels
        | {"sha256": pa.string()}  # digest of the model's input before normalization
        | {"notes": pa.list_(pa.string()), "failure": pa.string()}  # oddities; why it could not be read
        # `F` or `M`; years; `PA`, `AP` or `lateral`
        | {"sex": pa.string(), "age": pa.float64(), "projection": pa.string()}
    ),
    PREDICTIONS: pa.schema(
        _IMAGE
        | {"query": pa.string(), "finding": pa.string()}  # as in `pairs.parquet`
        | {"condition": pa.string(), "logit": pa.float64(), "probability": pa.float64()}  # as in `pairs.parquet`
        | {"map_shape": _INTEGERS, "map": pa.list_(pa.float32())}  # height and width of the raw map; cells, row by row
        # from here on for models that answer: `locate`, `recognise`, `again` (not scored); for words `report`, `where`
        | {"asked": pa.string()}
        # answer, size of the radiograph, and whether the answer is stored as JSON text
        | {"raw": pa.string(), "width": pa.int32(), "height": pa.int32(), "escaped": pa.bool_()}
        # `stop` or `length`; this image's own frame; digest of the prompt
        | {"finish": pa.string(), "frame": pa.string(), "prompt_sha256": pa.string()}
        # tokens; whether the answer was cached
        | {"tokens_in": pa.int64(), "tokens_out": pa.int64(), "from_cache": pa.bool_()}
        # thinking that a server returns separately; confidence of the whole answer
        | {"reasoning": pa.string(), "answer_confidence": pa.float64()}
        # status of the answer; boxes and points as fractions of the radiograph; confidence per box
        | {"status": pa.string(), "boxes": _BOXES, "points": _BOXES, "confidence": _FLOATS}
        | dict.fromkeys(("clipped", "reordered", "dropped", "duplicates"), pa.int32())  # what the reader changed
        | {"suspect_frame": pa.bool_()}  # whether the numbers do not look like the frame
        # true boxes; whether each is one lesion; whether they enclose outlines or masks
        | {"annotated": _BOXES, "one_by_one": pa.bool_(), "outlined": pa.bool_()}
        | {"way": pa.string(), "mass": pa.float64(), "bounded": pa.bool_()}  # yes or no
    ),
    TRUTH: pa.schema(
        _IMAGE
        | {"query": pa.string(), "finding": pa.string()}  # as in `pairs.parquet`
        | {"present": pa.bool_()}  # whether the finding is present
        | {"shape": _INTEGERS, "whole": pa.binary()}  # height and width of the grid; pixels covered wholly, as bits
        | {"partial": pa.list_(pa.uint32()), "share": _FLOATS}  # positions of partly covered pixels; their shares
        | {"kept": pa.list_(pa.uint32())}  # which of them belong to the region at any γ
        | {"shapes": pa.list_(_SHAPE)}  # annotated items, in the order of the file
    ),
    PICTURES: pa.schema({"image_id": pa.string(), "jpeg": pa.binary()}),
    PERTURBATIONS: pa.schema(
        _IMAGE
        | {"query": pa.string(), "finding": pa.string()}  # as in `pairs.parquet`
        # `deletion`, `insertion`, `road`, `other images`; `independent: TOWER`, `cascading: TOWER` (`image`, `text`)
        | {"kind": pa.string()}
        # order of a curve (`map`, `random`, `region`), or measure (`spearman`, `magnitude`, `structure`)
        | {"of": pa.string()}
        | {"step": pa.int32()}  # percent of changed pixels, or place of the layer from the output
        | {"layer": pa.string()}  # layer that was randomized last
        | {"value": pa.float64()}  # probability, or similarity of the maps
    ),
}
"""Columns by table. `map` is null without a map, `map_shape` for models without maps."""

_TEXT = _IMAGE | {"asked": pa.string()}
OF_WORDS: Final[Mapping[str, pa.Schema]] = {
    READ_TEXTS: pa.schema(_TEXT | dict.fromkeys(("text", "finish", "status", "vocabulary"), pa.string())),
    MENTIONS: pa.schema(
        _TEXT
        | {"finding": pa.string(), "status": pa.string(), "span": _INTEGERS}
        | dict.fromkeys(("sides", "zones", "flags"), pa.list_(pa.string()))
    ),
}
"""Columns of the tables that `rescore` adds, derived from predictions and a vocabulary."""

WRITING = {"compression": "zstd", "use_dictionary": False, "write_statistics": False, "write_page_checksum": True}
"""Options of pyarrow for writing tables. Dictionaries would make most columns larger; only maps need statistics."""

_FULL = frozenset({"index", "image_id", "query", "shape", "whole", "partial", "share", "kept", "shapes", "jpeg"})
_ARRAYS = frozenset({"crop", "shape", "partial", "share", "kept", "map", "map_shape"})


def is_of_a_run(folder: Path) -> bool:
    """Return whether a folder holds a run, even unfinished, rather than a prediction or a refused command."""
    if (folder / RESULTS).exists():
        return True
    refused = (folder / JOURNAL).is_dir() and not any(folder.glob(f"{JOURNAL}/*.arrow"))
    predicted = (folder / PARTS).is_dir() or ((folder / PREDICTIONS).is_file() and not (folder / JOURNAL).is_dir())
    return not (refused or predicted)


class RunFileError(UserError):
    """Missing or unreadable file of a run; `reason` is the message without the folder."""

    def __init__(self, message: str, exit_status: int = 1, reason: str = "", folder: Path = Path()) -> None:
        super().__init__(message, exit_status)
        self.reason, self.folder = reason, folder


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn errors of reading a run's files into a RunFileError with the run's folder."""
    try:
        yield
    except FileNotFoundError as error:
        name = Path(error.filename or "file").name
        give = f"a run, which holds its {RESULTS}"
        if name in SCHEMAS and name != PAIRS:
            give = "a run that was made with CaseKeeper among trainer.callbacks, as it is by default"
        text = f"{folder} is not the folder of a finished run: it has no {name}. Give the folder of {give}."
        raise RunFileError(text, 2, f"unfinished: it has no {name}", folder) from None
    except (OSError, ValueError, LookupError, TypeError, OverflowError, pa.ArrowException) as error:
        said = f"{type(error).__name__} {error}" if isinstance(error, LookupError) else str(error)
        said = " ".join(said.split())
        text = f"{folder}: a file of the run cannot be read: {said}"
        raise RunFileError(text, 1, f"unreadable: {said}", folder) from None


class Table(pq.ParquetFile):  # type: ignore[misc, unused-ignore]
    """A table of a run, with the columns of `name` if given; unlike pyarrow's, its errors name its file.

    It raises an OSError, ValueError or pyarrow.ArrowInvalid if the file is damaged or has other columns than a run
    writes, and so do all readers of rows.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.file_name = path.name
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        with self._named():
            super().__init__(path, page_checksum_verification=True)
        schema = SCHEMAS.get(name or path.name)
        if schema is not None and not self.schema_arrow.equals(schema):
            raise ValueError(f"{path.name} has other columns than a run writes")
        self._group, self._table = -1, pa.table({})

    def read(self, *args: Any, **kwargs: Any) -> pa.Table:
        """Read the table like pyarrow."""
        with self._named():
            return super().read(*args, **kwargs)

    def read_row_group(self, i: int, *args: Any, **kwargs: Any) -> pa.Table:
        """Read a group of rows like pyarrow, and check their number."""
        with self._named():
            table = super().read_row_group(i, *args, **kwargs)
            if table.num_rows != self.metadata.row_group(i).num_rows:
                raise OSError(f"group {i} has {table.num_rows} rows, unlike its metadata")
            return table

    def stated(self, key: str) -> Any:
        """Return metadata of the table."""
        metadata = self.schema_arrow.metadata or {}
        if key.encode() not in metadata:
            raise ValueError(f"{self.file_name} lacks its {key}")
        try:
            return json.loads(metadata[key.encode()])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.file_name}: its {key}: {error}") from None

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield rows, or some columns; lists of numbers become arrays, which is faster than lists."""
        for group in range(self.num_row_groups):
            yield from _rows(self.read_row_group(group, columns=columns, use_threads=False))

    def row(self, place: int) -> dict[str, Any]:
        """Return a row; the group read last stays in memory."""
        group = 0
        while place >= (size := self.metadata.row_group(group).num_rows):
            place, group = place - size, group + 1
        if group != self._group:
            self._table, self._group = self.read_row_group(group, use_threads=False), group
        return next(_rows(self._table.slice(place, 1)))

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise OSError(f"{self.file_name}: {error}") from error


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    for name in {*table.column_names} & _FULL:
        if table[name].null_count:
            raise ValueError(f"{name} has missing values that no run writes")
    columns = [_values(table[name].combine_chunks(), name in _ARRAYS) for name in table.column_names]
    return (dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(column: pa.Array, arrays: bool) -> Sequence[Any]:
    if not arrays:
        return list(column.to_pylist())
    flat = column.flatten()
    if flat.null_count:
        raise ValueError("there are missing values that no run writes")
    ends = np.asarray(column.value_lengths().fill_null(0)).cumsum()
    parts = np.split(np.asarray(flat), ends[:-1]) if len(column) else []
    return [part if there else None for part, there in zip(parts, column.is_valid().to_pylist(), strict=True)]
