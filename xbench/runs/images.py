"""Saved images of a run: predictions, annotated regions and items, radiographs.

Reports draw them, and `rescore` scores them without the model. Needs no torch. Readers raise an OSError, ValueError or
pyarrow.ArrowInvalid for unreadable or foreign content.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xbench.findings.attributes import ATTRIBUTES
from xbench.findings.queries import Query
from xbench.geometry.regions import Coverage, region_digest
from xbench.geometry.shapes import Shape
from xbench.runs.files import IMAGES, PAIRS, PICTURES, PREDICTIONS, SCHEMAS, TRUTH, Table, reading
from xbench.scoring.rows import column_of, nulls, query_columns, texts_column

if TYPE_CHECKING:
    from xbench.geometry.grid import View
    from xbench.types import Batch, Truth

_Number = TypeVar("_Number", np.uint8, np.float32)
_nulls = lru_cache(maxsize=16)(lambda name, rows: nulls(SCHEMAS[name], rows))
_MOST_CELLS = 2**26  # limit for a map, because a few bytes can claim any number of empty cells


@dataclass(frozen=True)
class SavedImage:
    """Saved data of an image. Positions are those of its K queries, ascending."""

    index: int  # position of the image in the dataset
    image_id: str
    patient_id: str | None
    image_sha256: str | None  # digest of the model input; None if not decoded
    view: View
    queries: Sequence[Query]  # (K)
    # Raw maps (K, h, w) in the frame of the model input, NaN where missing; None for a model without maps.
    saliency: NDArray[np.float32] | None
    regions: Mapping[int, Coverage]  # by position
    scored: tuple[int, ...]  # positions of positive queries with a region
    picture: bytes | None  # JPEG of the radiograph; None without a scored pair
    image_size: tuple[int, int] | None = None  # height and width as decoded; None if unknown
    # Items that form the regions, by position.
    instances: Mapping[int, tuple[Shape, ...]] = field(default_factory=dict)


def table_of(name: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Return rows, without columns that are null, as a table of a run; NaN becomes null."""
    columns = zip(SCHEMAS[name], zip(*rows, strict=True), strict=False)
    arrays = {column.name: pa.array(values, column.type, from_pandas=True) for column, values in columns}
    return _table(name, arrays, len(rows))


def image_rows(batch: Batch) -> tuple[tuple[Any, ...], ...]:
    """Return the rows of a batch for `table_of(IMAGES, ...)`, of readable and unreadable images."""
    truth, notes = batch.truth, dict[str, tuple[str, ...]]()
    for note in batch.notes:
        notes[note.image_id] = (*notes.get(note.image_id, ()), note.text)
    index, facts = truth.index.tolist(), (truth.patient_ids, truth.views, truth.image_sizes, batch.image_sha256)
    rows = [
        (place, image_id, patient, view, *(size or (None, None)), sha256, notes.get(image_id, ()), None)
        for place, image_id, patient, view, size, sha256 in zip(index, truth.image_ids, *facts, strict=True)
    ]
    lost = [(failure.index, failure.image_id, *[None] * 6, failure.reason) for failure in batch.failures]
    return tuple(sorted(rows + lost))


def with_attributes(tables: Mapping[str, pa.Table], attributes: Sequence[Mapping[str, Any]]) -> Mapping[str, pa.Table]:
    """Fill sex, age and projection into `images.parquet` of a batch."""
    if (images := tables.get(IMAGES)) is None:
        return tables
    places = images["index"].to_numpy().tolist()
    for name in ATTRIBUTES if any(attributes[place] for place in places) else ():
        column = SCHEMAS[IMAGES].field(name)
        values = [attributes[place].get(name) for place in places]
        images = images.set_column(images.schema.get_field_index(name), column, pa.array(values, column.type))
    return {**tables, IMAGES: images}


def truth_table(regions: Sequence[tuple[int, str, Query, bool, Coverage, Sequence[Shape]]]) -> pa.Table:
    """Return `truth.parquet` of a batch: index and name of the image, query, presence, region and items."""
    names = [kind.name for kind in SCHEMAS[TRUTH].field("shapes").type.value_type]
    rows = []
    for index, image_id, query, present, one, shapes in regions:
        covered = one.shape, one.whole.tobytes(), one.partial, one.share, one.kept
        items = [{name: getattr(shape, name) for name in names} for shape in shapes]
        rows.append((index, image_id, *query[:2], present, *covered, items))
    return table_of(TRUTH, rows)


def predictions_table(
    truth: Truth, maps: NDArray[np.float32] | None, scores: Mapping[str, NDArray[np.float64]], condition: str
) -> pa.Table:
    """Return `predictions.parquet` of the pairs of `truth`: maps (P, h, w), NaN where missing, and scores (P,)."""
    queries = query_columns(tuple(truth.queries))
    columns: dict[str, Any] = {
        "index": column_of(truth.index[truth.image], pa.int64()),
        "image_id": texts_column(tuple([truth.image_ids[image] for image in truth.image.tolist()])),
        "query": queries["query"],
        "finding": queries["finding"],
        "condition": texts_column((condition,) * len(truth.queries)),
        **{name: column_of(values, pa.float64()) for name, values in scores.items()},
    }
    if maps is not None:
        there, shape = ~no_maps(maps), np.empty((len(maps), 2), np.int32)
        shape[:] = maps.shape[1:]
        cells = maps.reshape(len(maps), math.prod(maps.shape[1:]))
        kinds = {name: SCHEMAS[PREDICTIONS].field(name).type for name in ("map_shape", "map")}
        columns["map_shape"] = column_of(shape, kinds["map_shape"])
        columns["map"] = column_of(cells if there.all() else cells[there], kinds["map"], there)
    return _table(PREDICTIONS, columns, len(truth.queries))


def _table(name: str, columns: Mapping[str, Any], rows: int) -> pa.Table:
    return pa.Table.from_arrays([*{**_nulls(name, rows), **columns}.values()], schema=SCHEMAS[name])


def read_saved_images(
    folder: Path, queries: Mapping[str, Sequence[Query]], condition: str = ""
) -> Iterator[SavedImage]:
    """Yield the saved images with these queries, in the dataset's order."""
    names = (PREDICTIONS, TRUTH, PICTURES) if (folder / PICTURES).exists() else (PREDICTIONS, TRUTH)
    others = {name: _OfImages(Table(folder / name)) for name in names}
    for row in Table(folder / IMAGES).rows():
        if row["failure"] is not None:
            continue
        image_id = row["image_id"]
        of_image = {name: file.take(image_id) for name, file in others.items()}
        predicted = [row for row in of_image[PREDICTIONS] if row["condition"] == condition and row["asked"] is None]
        asked = queries.get(image_id, ())
        place_of = {query.name: place for place, query in enumerate(asked)}
        # A condition may cover only some images and queries.
        there = (region for region in of_image[TRUTH] if region["query"] in place_of or not condition)
        regions = {place_of[region["query"]]: region for region in there}
        if [*regions] != sorted(regions):
            raise ValueError(f"the regions of {image_id!r:.200} in {TRUTH} are not in the order of the queries")
        picture = of_image.get(PICTURES)
        shapes = {column: shapes_of(region) for column, region in regions.items()}
        yield SavedImage(
            index=row["index"],
            image_id=image_id,
            patient_id=row["patient_id"],
            image_sha256=row["sha256"],
            view=crop_of(row),
            queries=asked,
            saliency=_saliency(predicted, [*place_of]),
            regions={column: coverage_of(region) for column, region in regions.items()},
            scored=tuple(column for column, region in regions.items() if region["present"]),
            picture=picture[0]["jpeg"] if picture else None,
            image_size=size_of(row),
            instances={column: items for column, items in shapes.items() if items},
        )
    for name, file in others.items():
        if file.image_id is not None:
            raise ValueError(f"{name} has image {file.image_id!r:.200}, which {IMAGES} lacks at that position")


def stated_gamma(truth: Table) -> float:
    """Return the share of a grid pixel that a region must cover, from `truth.parquet`."""
    gamma = truth.stated("gamma")
    if not isinstance(gamma, float | int) or not 0 < gamma <= 1:
        raise ValueError(f"{TRUTH} has an impossible gamma")
    return float(gamma)


@dataclass(frozen=True)
class ScoredPair:
    """A scored pair for display."""

    index: int  # position of the image in the dataset
    image_id: str
    finding: str
    saliency: NDArray[np.float32] | None  # raw map (h, w) in the frame of the model input, if any
    view: View  # part of the radiograph in this frame
    region: NDArray[np.bool_]  # (H, W)
    # Gray radiograph (H, W) on the evaluation grid, shrunk if a side exceeds 1,024 pixels.
    display: NDArray[np.uint8]
    aspect: float = 1.0  # width of the radiograph over its height, as decoded


class ScoredPairs:
    """Scored pairs `(image_id, finding)`, read one at a time; UserError if damaged or without these `digests`."""

    def __init__(self, folder: Path, digests: Mapping[tuple[str, str], str] | None = None) -> None:
        self._folder, self._digests = folder, digests
        with reading(folder):
            self._files = {name: Table(folder / name) for name in (IMAGES, PREDICTIONS, TRUTH, PICTURES)}
            self._gamma = stated_gamma(self._files[TRUTH])
            names = (self._files[name].read(["image_id"])["image_id"].to_pylist() for name in (IMAGES, PICTURES))
            self._image, self._picture = ({one: place for place, one in enumerate(column)} for column in names)
            self._map = _places(self._files[PREDICTIONS], "map_shape")
            present = self._files[TRUTH].read(["present"])["present"].fill_null(False).to_pylist()
            self._place = {pair: row for pair, row in _places(self._files[TRUTH], "query").items() if present[row]}

    def __contains__(self, pair: tuple[str, str]) -> bool:
        return pair in self._place

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)

    def read(self, image_id: str, finding: str) -> ScoredPair:
        """Read a pair; raise a KeyError if the run did not score it."""
        place, drawn = self._place[image_id, finding], self._map.get((image_id, finding))
        with reading(self._folder):
            on_grid = coverage_of(self._files[TRUTH].row(place)).at(self._gamma)
            if self._digests is not None and self._digests[image_id, finding] != region_digest(on_grid):
                raise ValueError(f"the regions of {TRUTH} are not those of {PAIRS}")
            image = self._files[IMAGES].row(self._image[image_id])
            file = np.frombuffer(self._files[PICTURES].row(self._picture[image_id])["jpeg"], np.uint8)
            display = cv2.imdecode(file, cv2.IMREAD_GRAYSCALE) if len(file) else None
            if display is None:
                raise ValueError("a stored picture cannot be decoded")
            height, width = size_of(image) or display.shape
            return ScoredPair(
                index=image["index"],
                image_id=image_id,
                finding=finding,
                saliency=None if drawn is None else map_of(self._files[PREDICTIONS].row(drawn)),
                view=crop_of(image),
                region=Coverage.of(on_grid, (display.shape[0], display.shape[1])).at(0.5),
                display=display.astype(np.uint8, copy=False),
                aspect=round(width / height, 4),
            )


def jpeg(image: NDArray[np.uint8]) -> bytes:
    """Encode a gray image (H, W) as JPEG."""
    done, encoded = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, 90))
    if not done:
        raise ValueError(f"a picture of {image.shape} {image.dtype} cannot be encoded")
    return encoded.tobytes()


def shrunk(image: NDArray[_Number], longest: int) -> NDArray[_Number]:
    """Shrink a picture (H, W) so that no side exceeds `longest` pixels."""
    height, width = image.shape
    scale = longest / max(height, width)
    if scale >= 1:
        return image
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(image.dtype, copy=False)


def no_maps(maps: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which maps (..., h, w) are missing, that is, NaN in all cells (...)."""
    return np.asarray(np.isnan(maps).all((-2, -1)))


class _OfImages:
    """Iterator over a file's rows, grouped by image."""

    def __init__(self, file: Table) -> None:
        grouped = groupby(file.rows(), key=itemgetter("image_id"))
        self._images: Iterator[tuple[str | None, list[dict[str, Any]]]] = ((name, [*rows]) for name, rows in grouped)
        self.image_id, self._waiting = next(self._images, (None, []))

    def take(self, image_id: str) -> list[dict[str, Any]]:
        """Return the rows of the next image if it has that name, else none."""
        if image_id != self.image_id:
            return []
        rows = self._waiting
        self.image_id, self._waiting = next(self._images, (None, []))
        return rows


def _places(file: Table, column: str) -> dict[tuple[str, str], int]:
    """Return the row number by image and query of rows with a value in a column."""
    names = dict.fromkeys(("image_id", "query", "condition", column))
    table = file.read([name for name in names if name in file.schema_arrow.names])
    images, queries = (table[name].to_pylist() for name in ("image_id", "query"))
    there = table[column].is_valid()
    if "condition" in table.column_names:
        there = pc.and_(there, pc.equal(table["condition"], ""))
    return {(images[row], queries[row]): row for row in np.flatnonzero(there).tolist()}


def _saliency(rows: Sequence[Mapping[str, Any]], queries: Sequence[str]) -> NDArray[np.float32] | None:
    """Return the maps of an image (C, h, w), NaN where missing; None without any."""
    if not rows or rows[0]["map_shape"] is None:
        return None
    if [row["query"] for row in rows] != [*queries] or len({tuple(row["map_shape"]) for row in rows}) > 1:
        raise ValueError(f"{PREDICTIONS} needs a map of one shape per finding of {rows[0]['image_id']!r:.200}")
    return np.stack([map_of(row) for row in rows])


def map_of(row: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the map of a row of predictions (h, w); NaN if missing."""
    if row["map_shape"] is None:
        raise ValueError("a map has no shape")
    height, width = row["map_shape"].tolist()
    if not (height >= 1 <= width and height * width <= _MOST_CELLS):
        raise ValueError(f"a map has {height} x {width} cells")
    if row["map"] is None:
        return np.full((height, width), np.nan, np.float32)
    if not np.isfinite(row["map"]).all():
        raise ValueError("a map is not finite")
    return np.asarray(row["map"].reshape(height, width))


def crop_of(row: Mapping[str, Any]) -> View:
    """Return the crop of a row of images."""
    if row["crop"] is None:
        raise ValueError("an image has no crop")
    left, top, right, bottom = row["crop"].tolist()
    if not (-math.inf < left < right < math.inf and -math.inf < top < bottom < math.inf):
        raise ValueError(f"a crop has the edges {left}, {top}, {right}, {bottom}")
    return left, top, right, bottom


def size_of(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return height and width of a row of images; None if unknown."""
    if row["height"] is None:
        return None
    if min(row["height"], row["width"]) < 1:
        raise ValueError(f"an image has {row['height']} x {row['width']} pixels")
    return row["height"], row["width"]


def shapes_of(row: Mapping[str, Any]) -> tuple[Shape, ...]:
    """Return the annotated items of a row of the truth."""
    return tuple(
        Shape.checked(**{**values, "coordinates": np.array(values["coordinates"], np.float64)})
        for values in row["shapes"]
    )


def coverage_of(row: Mapping[str, Any]) -> Coverage:
    """Return the region of a row of the truth."""
    height, width = row["shape"].tolist()
    whole, parts = np.frombuffer(row["whole"], np.uint8), (row[name].copy() for name in ("partial", "share", "kept"))
    return Coverage((height, width), whole, *parts).checked()
