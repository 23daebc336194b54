"""The table that every number comes from: a row per image, query and condition. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xbench.findings.queries import PHRASES, Query

_INTEGER, _NUMBER, _TEXT, _YES, _PIXELS = pa.int32(), pa.float64(), pa.string(), pa.bool_(), pa.list_(pa.int32())
CHANGED = ("changed_digest", "changed_area", "changed_x", "changed_y", "changed_seen")
"""Columns about hidden pixels; null under conditions that hide none."""
SCHEMA = pa.schema(
    {"index": pa.int64()}  # position in the dataset, from 0
    | {"image_id": _TEXT, "patient_id": _TEXT}  # the dataset's names
    | {"query": _TEXT, "finding": _TEXT}  # what was asked, and its finding; equal unless it is a phrase
    | {"text": _TEXT, "language": _TEXT}  # the phrase; `null` for findings
    | {"condition": _TEXT}  # empty, or what was changed, such as `wording: negation`
    | {"label": pa.int8()}  # 1 present, 0 absent, -1 unknown
    # whether there is a region; whether grounding is scored; whether the question "is it present?" was asked
    | {"has_region": _YES, "scored": _YES, "asked": _YES}
    | {"logit": _NUMBER, "probability": _NUMBER}  # raw score; score for recognition, 0 to 1
    # share of the grid; center of mass, 0 at the left and top edge, 1 at the right and bottom
    | {"region_area": _NUMBER, "region_x": _NUMBER, "region_y": _NUMBER}
    | {"region_digest": _TEXT}  # start of a SHA-256 of the region on the grid
    | {"reader_dice": _NUMBER, "reader_iou": _NUMBER}  # mean agreement of two readers
    | {"pointing_hit": _NUMBER, "minimum_hit": _NUMBER}  # 0 to 1; share of tied minima in the region
    | {"peak_x": _NUMBER, "peak_y": _NUMBER}  # mean place of the maxima
    | {"peak_distance": _NUMBER}  # distance of the peak from the region
    | {"dice": _NUMBER, "iou": _NUMBER}  # at threshold 0.5; of boxes, of their mask
    | {"constant": _YES}  # whether the map is constant
    | {"grid_pixels": _INTEGER, "region_pixels": _INTEGER}  # pixels of grid and region
    # by threshold, pixels of the mask, and of mask and region; one value for an answer
    | {"mask_pixels": _PIXELS, "overlap_pixels": _PIXELS}
    | {"own_mask_pixels": _PIXELS, "own_overlap_pixels": _PIXELS}  # the same, unstretched, of logits or probabilities
    # as in `predictions.parquet`; `null` for maps, like all columns to `false_area`
    | {"answer_status": _TEXT, "one_by_one": _YES, "outlined": _YES, "suspect_frame": _YES}
    # numbers of points, boxes and true boxes, and of those matched at an IoU of 0.3 and 0.5
    | dict.fromkeys(("points", "boxes", "annotated", "matched_30", "matched_50"), _INTEGER)
    | dict.fromkeys(("clipped", "reordered", "dropped", "duplicates"), _INTEGER)  # what the reader changed
    | {"box_iou": _NUMBER, "centre_hit": _NUMBER, "best_iou": _NUMBER}  # scores of boxes
    | {"false_area": _NUMBER}  # share of the image under boxes if the finding is absent
    | {"changed_digest": _TEXT}  # of the image with hidden pixels
    # hidden share, its center, and the part of it that the model sees
    | {"changed_area": _NUMBER, "changed_x": _NUMBER, "changed_y": _NUMBER, "changed_seen": _NUMBER}
)
"""Columns of `pairs.parquet`. Scores, peaks and pixels are null unless the pair is scored."""

_KEYS = ("index", "image_id", "patient_id", "query", "finding", "text", "condition")
_LISTS = ("mask_pixels", "overlap_pixels")
_OWN_LISTS = ("own_mask_pixels", "own_overlap_pixels")
_LONGEST = 16  # characters of a status, a digest or a language


@dataclass(frozen=True)
class ScoredPixels:
    """Pixels of the S scored rows."""

    row: NDArray[np.int64]  # index of the row (S,)
    grid: NDArray[np.int64]  # pixels of the evaluation grid (S,)
    region: NDArray[np.int64]  # pixels of the region (S,)
    mask: NDArray[np.int32]  # pixels where the normalized map reaches the threshold (S, T); T = 1 for answers
    overlap: NDArray[np.int32]  # those of them in the region (S, T)


@dataclass(frozen=True)
class Rows:
    """R rows of a run, in the order of the dataset."""

    findings: tuple[str, ...]  # names of the findings of the run
    index: NDArray[np.int64]  # dataset positions of the N images with rows
    image_ids: tuple[str, ...]
    patient_ids: tuple[str | None, ...]  # None if unknown
    queries: tuple[str, ...]  # distinct names of queries
    texts: tuple[str, ...]  # distinct phrases
    image: NDArray[np.int64]  # index of each row's image among the N (R,)
    query: NDArray[np.int64]  # index of each row's query (R,)
    text: NDArray[np.int64]  # index of each row's phrase, -1 if the model words the finding (R,)
    finding: NDArray[np.int64]  # index of each row's finding, or of `PHRASES` for a query without one (R,)
    columns: Mapping[str, NDArray[Any]]  # other columns except lists (R,); null is NaN in numbers and "" in texts
    counts: ScoredPixels
    own: ScoredPixels  # at thresholds of the maps' own scale; empty without one

    @classmethod
    def of(cls, table: pa.Table, findings: Sequence[str], condition: str = "") -> Rows:
        """Read the rows of one condition from a table of `SCHEMA`; ValueError for contradictory or repeated rows."""
        table = table.filter(pc.equal(table["condition"], condition)).combine_chunks()
        index, first, image = np.unique(table["index"].to_numpy(), return_index=True, return_inverse=True)
        names: dict[str, tuple[str | None, ...]] = {}
        for key in ("image_id", "patient_id"):
            values = np.array(table[key].to_pylist(), dtype=object)
            names[key] = tuple(values[first].tolist())
            if len(wrong := np.flatnonzero(values != values[first][image])):
                raise ValueError(f"row {wrong[0]} has {key} {values[wrong[0]]!r:.200} unlike other rows of its image")
        coded = (_encoded(table[key]) for key in ("query", "finding", "text"))
        (query, queries), (code, known), (text, texts) = coded
        if unknown := [name for name in known if name not in findings]:
            raise ValueError(f"there is a finding {unknown[0]!r:.60}, which the run did not score")
        rest = findings.index(PHRASES) if PHRASES in findings else -1
        places = np.array([*map(findings.index, known), rest], np.int64)
        if len(np.unique(image * (len(queries) + 1) + query)) < len(query):
            raise ValueError("a pair of image and query is repeated")
        columns = {
            name: _column(table[name])
            for name in table.column_names
            if name not in (*_KEYS, *_LISTS, *_OWN_LISTS, "grid_pixels", "region_pixels")
        }
        row = np.flatnonzero(columns["scored"])
        scored = table.take(row)
        own = [name for name in _OWN_LISTS if scored[name].null_count < len(row)]
        if lacking := [name for name in ("grid_pixels", "region_pixels", *_LISTS, *own) if scored[name].null_count]:
            raise ValueError(f"{lacking[0]} of a scored row is null")
        grid, region = (scored[name].to_numpy().astype(np.int64) for name in ("grid_pixels", "region_pixels"))
        mask, overlap, *of_own = (_pixels(scored[name]) for name in (*_LISTS, *own))
        if {part.shape for part in (overlap, *of_own)} - {mask.shape} or len(own) == 1 or not (region > 0).all():
            raise ValueError("pixels of masks and regions do not fit together")
        of_own = of_own or [mask[:0], overlap[:0]]
        kept = len(of_own[0])
        return cls(
            findings=tuple(findings),
            index=index,
            image_ids=names["image_id"],  # type: ignore[arg-type]
            patient_ids=names["patient_id"],
            queries=queries,
            texts=texts,
            image=image.astype(np.int64),
            query=query,
            text=text,
            finding=places[code],
            columns=columns,
            counts=ScoredPixels(row, grid, region, mask, overlap),
            own=ScoredPixels(row[:kept], grid[:kept], region[:kept], *of_own),
        )

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    def __len__(self) -> int:
        return len(self.image)

    def matrix(self, column: str) -> NDArray[Any]:
        """Return a column by image and finding (N, C); NaN, -1, False or "" without a row."""
        return self.spread(self.columns[column])

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Arrange values of the rows (R,) by image and finding (N, C), as `matrix` does, without phrases."""
        empty: Any = {"f": np.nan, "i": -1}.get(values.dtype.kind, values.dtype.type())
        found = np.full((len(self.image_ids), len(self.findings)), empty, values.dtype)
        own = self.of_finding
        found[self.image[own], self.finding[own]] = values[own]
        return found

    @cached_property
    def of_finding(self) -> NDArray[np.bool_]:
        """Whether rows are about the finding itself, not a phrase (R,)."""
        named = {name: place for place, name in enumerate(self.findings)}
        place = np.array([named.get(name, -2) for name in self.queries], np.int64)
        return np.asarray(place[self.query] == self.finding)

    @property
    def patient(self) -> list[str]:
        """Patient of each of the N images by name, or the image if the patient is unknown."""
        return [image if name is None else name for image, name in zip(self.image_ids, self.patient_ids, strict=True)]


def in_order(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables of the same images under several conditions, sorted by image and then condition."""
    if len(tables) == 1:
        return tables[0]
    table = pa.concat_tables(tables)
    order = pc.sort_indices(table, [("index", "ascending"), ("condition", "ascending")]).to_numpy()
    return table if (order[1:] > order[:-1]).all() else table.take(order)


def with_changes(table: pa.Table, facts: Mapping[str, Sequence[Any] | NDArray[Any]]) -> pa.Table:
    """Return a table of `SCHEMA` with a value of each column of `CHANGED` per row; NaN and "" become null."""
    for name in CHANGED:
        values = [None if value == "" else value for value in facts[name]]
        column = pa.array(values, SCHEMA.field(name).type, from_pandas=True)
        table = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), column)
    return table


def fixed_only(table: pa.Table) -> pa.Table:
    """Return a table of `SCHEMA` with pixels at the middle threshold only, which saves most of its memory."""
    for name in (*_LISTS, *_OWN_LISTS):
        lists = table[name].combine_chunks()
        length = len(lists.flatten()) // max(1, len(lists) - lists.null_count)
        middle = pc.list_slice(lists, length // 2, length // 2 + 1, return_fixed_size_list=False)
        table = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), middle.cast(_PIXELS))
    return table


def nulls(schema: pa.Schema, rows: int) -> dict[str, pa.Array]:
    """Return null columns of a schema by name."""
    return {field.name: pa.nulls(rows, field.type) for field in schema}


def column_of(values: NDArray[Any], kind: pa.DataType, there: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers (N,), NaN as null, or lists (N, T), as a column; with `there` (R,), of R rows, the others null."""
    if there is not None and len(there) == len(values):
        there = None
    if values.ndim == 2:
        ends, known = _ends(*values.shape), None
        if there is not None:
            ends = pa.py_buffer(np.concatenate([[0], there.cumsum() * values.shape[1]]).astype(np.int32))
            known = pa.py_buffer(np.packbits(there, bitorder="little"))
        cells = np.ascontiguousarray(values, kind.value_type.to_pandas_dtype())
        cells = pa.Array.from_buffers(kind.value_type, cells.size, [None, pa.py_buffer(cells)])
        rows = len(values) if there is None else len(there)
        return pa.Array.from_buffers(kind, rows, [known, ends], children=[cells])
    if there is None:
        # Convert in numpy, because Arrow is slower.
        return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), kind, from_pandas=True)
    spread = np.zeros(len(there), kind.to_pandas_dtype())
    spread[there] = values
    return pa.array(spread, kind, ~there | np.isnan(spread))


@lru_cache(maxsize=64)
def _ends(lists: int, length: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(lists + 1, dtype=np.int32) * np.int32(length))


def float_columns(values: Mapping[str, NDArray[Any]], there: NDArray[np.bool_]) -> dict[str, pa.Array]:
    """Return numbers of the R rows or of those `there` as columns of float64, all at once, which is faster."""
    rows = len(there)
    table = np.full((len(values), rows), np.nan)
    for row, column in zip(table, values.values(), strict=True):
        row[there if len(column) < rows else ...] = column
    joined = pa.array(table.ravel(), from_pandas=True)
    return {name: joined.slice(place * rows, rows) for place, name in enumerate(values)}


@lru_cache(maxsize=64)
def query_columns(queries: tuple[Query, ...]) -> dict[str, pa.Array]:
    """Return `query`, `finding`, `text` and `language` of queries as columns; cached, as batches ask the same."""
    columns = zip(*queries, strict=True) if queries else [()] * 4
    return dict(zip(("query", "finding", "text", "language"), map(texts_column, columns), strict=True))


@lru_cache(maxsize=64)
def texts_column(values: tuple[str | None, ...]) -> pa.Array:
    """Return texts as a column; cached because the tables of a batch, and of the next, share most of them."""
    return pa.array(values, pa.string())


def _encoded(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the code of each text, and the distinct texts; null has the last code, -1."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy().astype(np.int64), tuple(encoded.dictionary.to_pylist())


def _column(column: pa.ChunkedArray) -> NDArray[Any]:
    if pa.types.is_string(column.type):
        # In numpy, each text takes as much memory as the longest.
        if (longest := pc.max(pc.utf8_length(column)).as_py() or 0) > _LONGEST:
            raise ValueError(f"a text has {longest} characters, more than a run writes")
        codes, texts = _encoded(column)
        return np.array([*texts, ""], dtype=np.str_)[codes]
    if column.null_count and pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return np.asarray(column.to_numpy())


def _pixels(column: pa.ChunkedArray) -> NDArray[np.int32]:
    values = column.combine_chunks()
    lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(f"scored rows have {lengths[0]:g} and {lengths[-1]:g} thresholds")
    return np.asarray(values.flatten()).reshape(len(values), int(lengths[0]) if len(values) else 1)
