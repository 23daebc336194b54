"""What a run saves of its images beside the rows: predictions, annotated regions and items, radiographs.

`images.parquet` has a row per image, `predictions.parquet` one per pair of image and query with what the model gave,
`truth.parquet` one per annotated region, and `pictures.parquet` one per image with a scored pair. Pictures are drawn
from them, and a run is scored again without its model. Needs no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cv2
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape
from xbench.runs.answers import PREDICTIONS_SCHEMA
from xbench.runs.files import IMAGES, PICTURES, PREDICTIONS, TRUTH, Table, reading

if TYPE_CHECKING:
    from xbench.geometry.grid import View

_Number = TypeVar("_Number", np.uint8, np.float32)


@dataclass(frozen=True)
class SavedImage:
    """What a run keeps of an image.

    Attributes:
        index: Position of the image in the dataset.
        image_sha256: Digest of the model input.
        view: Part of the radiograph that the maps show.
        saliency: Raw maps of the C findings (C, h, w), in the frame of the model input, NaN where nobody drew one; None
            of a model that draws no map.
        regions: Annotated regions by position of the finding, ascending.
        scored: Positions of those findings that are present with a region.
        picture: The radiograph as a JPEG file; None where no pair is scored.
        image_size: Height and width of the radiograph as it was decoded; None where nobody knows.
        instances: What the regions are the unions of, item by item, by position of the finding, ascending.
    """

    index: int
    image_id: str
    patient_id: str | None
    image_sha256: str
    view: View
    saliency: NDArray[np.float32] | None
    regions: Mapping[int, Coverage]
    scored: tuple[int, ...]
    picture: bytes | None
    image_size: tuple[int, int] | None = None
    instances: Mapping[int, tuple[Shape, ...]] = field(default_factory=dict)


_INTEGERS, _FLOATS = pa.list_(pa.int32()), pa.list_(pa.float64())
_IMAGE = {"index": pa.int64(), "image_id": pa.string()}
IMAGES_SCHEMA = pa.schema(
    _IMAGE
    | {"patient_id": pa.string(), "crop": _FLOATS, "height": pa.int32(), "width": pa.int32(), "sha256": pa.string()}
    | {"notes": pa.list_(pa.string()), "failure": pa.string()}
)
_SHAPE = pa.struct(
    {"kind": pa.string(), "size": _INTEGERS, "coordinates": _FLOATS, "reader": pa.string(), "outline": pa.bool_()}
)
TRUTH_SCHEMA = pa.schema(
    _IMAGE
    | {"query": pa.string(), "finding": pa.string(), "present": pa.bool_()}
    | {"shape": _INTEGERS, "whole": pa.binary(), "partial": pa.list_(pa.uint32()), "share": _FLOATS}
    | {"kept": pa.list_(pa.uint32()), "shapes": pa.list_(_SHAPE)}
)
PICTURES_SCHEMA = pa.schema({"image_id": pa.string(), "jpeg": pa.binary()})
_SCHEMAS = {
    IMAGES: IMAGES_SCHEMA,
    PREDICTIONS: PREDICTIONS_SCHEMA,
    TRUTH: TRUTH_SCHEMA,
    PICTURES: PICTURES_SCHEMA,
}


def saved_tables(
    findings: Sequence[str],
    images: Sequence[SavedImage],
    scores: Mapping[str, NDArray[np.float64]],
    notes: Mapping[str, Sequence[str]] | None = None,
    failures: Sequence[tuple[int, str, str]] = (),
) -> dict[str, pa.Table]:
    """Return the tables of a batch by file; of predictions only if there are maps or nothing but scores.

    Args:
        findings: Of the run.
        images: In the dataset's order.
        scores: `logit` and `probability` (B, C); empty for a model that answers, whose predictions are its answers.
        notes: What is odd about images, by their name.
        failures: Index, name and reason of images that could not be read.
    """
    about: list[dict[str, Any]] = [
        {"index": index, "image_id": image_id, "failure": reason} for index, image_id, reason in failures
    ]
    truth: list[dict[str, Any]] = []
    pictures = []
    for image in images:
        named = {"index": image.index, "image_id": image.image_id}
        height, width = image.image_size or (None, None)
        facts = {"patient_id": image.patient_id, "crop": image.view, "height": height, "width": width}
        odd = {"sha256": image.image_sha256, "notes": [*(notes or {}).get(image.image_id, ())]}
        about.append(named | facts | odd)
        for column, coverage in image.regions.items():
            parts = {name: getattr(coverage, name) for name in Coverage.__slots__} | {"whole": coverage.whole.tobytes()}
            shapes = [
                {name: getattr(item, name) for name in Shape.__slots__} for item in image.instances.get(column, ())
            ]
            of_query = {"query": findings[column], "finding": findings[column], "present": column in image.scored}
            truth.append(named | of_query | parts | {"shapes": shapes})
        if image.picture is not None:
            pictures.append({"image_id": image.image_id, "jpeg": image.picture})
    about.sort(key=itemgetter("index"))
    tables = {
        IMAGES: pa.Table.from_pylist(about, IMAGES_SCHEMA),
        TRUTH: pa.Table.from_pylist(truth, TRUTH_SCHEMA),
        PICTURES: pa.Table.from_pylist(pictures, PICTURES_SCHEMA),
    }
    return tables | ({PREDICTIONS: _predictions(findings, images, scores)} if scores else {})


def _predictions(
    findings: Sequence[str], images: Sequence[SavedImage], scores: Mapping[str, NDArray[np.float64]]
) -> pa.Table:
    """Return what a model that draws maps, or gives scores alone, gave for each pair."""
    pairs, drawn = len(images) * len(findings), [image.saliency for image in images if image.saliency is not None]
    columns: dict[str, Any] = {
        "index": np.repeat([image.index for image in images], len(findings)),
        "image_id": [image.image_id for image in images for _ in findings],
        **dict.fromkeys(("query", "finding"), [*findings] * len(images)),
        "condition": [""] * pairs,
        **{name: pa.array(values.ravel(), pa.float64(), from_pandas=True) for name, values in scores.items()},
    }
    if drawn:
        maps = np.stack(drawn).astype(np.float32, copy=False).reshape(pairs, *drawn[0].shape[1:])
        missing = no_maps(maps)
        cells = np.where(missing, 0, maps[0].size).cumsum()
        starts = pa.array(np.concatenate([[0], cells]), pa.int32())
        columns["map_shape"] = [maps.shape[1:]] * pairs
        columns["map"] = pa.ListArray.from_arrays(starts, pa.array(maps[~missing].ravel()), mask=pa.array(missing))
    arrays = [
        pa.array(columns[one.name], one.type) if one.name in columns else pa.nulls(pairs, one.type)
        for one in PREDICTIONS_SCHEMA
    ]
    return pa.table(arrays, PREDICTIONS_SCHEMA)


def read_saved_images(folder: Path, findings: Sequence[str]) -> Iterator[SavedImage]:
    """Read what a run with these findings saved of its images, one by one in the dataset's order.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: A file cannot be read, the files do not fit together, or they hold
            what no run writes.
    """
    column_of = {finding: column for column, finding in enumerate(findings)}
    files = {name: opened(folder / name) for name in _SCHEMAS if name != PICTURES or (folder / name).exists()}
    others = {name: _OfImages(file) for name, file in files.items() if name != IMAGES}
    for row in _rows(files[IMAGES]):
        if row["failure"] is not None:
            continue
        image_id = row["image_id"]
        of_image = {name: file.take(image_id) for name, file in others.items()}
        regions = {column_of[region["query"]]: region for region in of_image[TRUTH]}
        if [*regions] != sorted(regions):
            raise ValueError(f"the regions of {image_id!r:.200} in {TRUTH} are not in the order of the findings")
        picture = of_image.get(PICTURES)
        shapes = {column: tuple(map(_shape, region["shapes"])) for column, region in regions.items()}
        yield SavedImage(
            index=row["index"],
            image_id=image_id,
            patient_id=row["patient_id"],
            image_sha256=row["sha256"],
            view=crop_of(row["crop"]),
            saliency=_saliency(of_image[PREDICTIONS], findings),
            regions={column: _coverage(region) for column, region in regions.items()},
            scored=tuple(column for column, region in regions.items() if region["present"]),
            picture=picture[0]["jpeg"] if picture else None,
            image_size=None if row["height"] is None else _size(row["height"], row["width"]),
            instances={column: items for column, items in shapes.items() if items},
        )
    for name, file in others.items():
        if file.image_id is not None:
            raise ValueError(f"{name} has an image {file.image_id!r:.200} that {IMAGES} does not name in its place")


def saved_gamma(folder: Path) -> float:
    """Return the share of a grid pixel that a region of a run must cover.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or does not say it.
    """
    gamma = stated(opened(folder / TRUTH), "gamma")
    if not isinstance(gamma, float | int) or not 0 < gamma <= 1:
        raise ValueError(f"{TRUTH} has an impossible gamma")
    return float(gamma)


def saved_regions(folder: Path) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """Go through the regions that a run saved: image, finding, and the region as it was scored (H, W).

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run writes.
    """
    gamma = saved_gamma(folder)
    for region in _rows(opened(folder / TRUTH)):
        yield region["image_id"], region["query"], _coverage(region).at(gamma)


def saved_instances(folder: Path) -> Iterator[tuple[tuple[str, str], tuple[Shape, ...]]]:
    """Go through the annotated items that a run saved, by image and finding.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run writes.
    """
    for region in _rows(opened(folder / TRUTH)):
        if region["shapes"]:
            yield (region["image_id"], region["query"]), tuple(map(_shape, region["shapes"]))


def read_images(folder: Path) -> pa.Table:
    """Read `images.parquet`, without what it says beside its rows.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run writes.
    """
    table = opened(folder / IMAGES).read().replace_schema_metadata(None)
    if any(table[name].null_count for name in ("index", "image_id")):
        raise ValueError(f"{IMAGES} has gaps that no run leaves")
    return table


def saved_sizes(folder: Path) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Go through the images of a run with their height and width; None where nobody knows them.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run writes.
    """
    for row in read_images(folder).select(["image_id", "height", "width", "failure"]).to_pylist():
        if row["failure"] is None:
            yield row["image_id"], None if row["height"] is None else _size(row["height"], row["width"])


def saves_maps(folder: Path) -> bool:
    """Return whether a run saved maps.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read.
    """
    shapes = opened(folder / PREDICTIONS).read(["map_shape"])["map_shape"]
    return bool(len(shapes) > shapes.null_count)


@dataclass(frozen=True)
class ScoredPair:
    """A scored pair as pictures show it."""

    index: int  # position of the image in the dataset
    image_id: str
    finding: str
    saliency: NDArray[np.float32] | None  # raw map (h, w), in the frame of the model input; None without one
    view: View  # part of the radiograph that this frame shows
    region: NDArray[np.bool_]  # annotated region (H, W)
    # The grey radiograph (H, W), on the evaluation grid or, if a side of that is longer than 1,024 pixels, smaller in
    # the same proportions.
    display: NDArray[np.uint8]


class ScoredPairs:
    """The scored pairs of a finished run by image and finding, read from the files in its folder one at a time.

    Raises:
        UserError: The files cannot be read, or hold what no run writes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with reading(folder):
            files = {name: opened(folder / name) for name in _SCHEMAS}
            self._rows = {name: StoredRows(file) for name, file in files.items()}
            self._gamma = saved_gamma(folder)
            truth = files[TRUTH].read(["image_id", "query", "present"]).to_pylist()
            self._image, self._picture = (
                {one: place for place, one in enumerate(files[name].read(["image_id"])["image_id"].to_pylist())}
                for name in (IMAGES, PICTURES)
            )
            self._map = _places_of_maps(files[PREDICTIONS])
        self._place = {(one["image_id"], one["query"]): row for row, one in enumerate(truth) if one["present"]}

    def __contains__(self, pair: tuple[str, str]) -> bool:
        """Tell whether the run scored a finding in an image: `(image_id, finding)`."""
        return pair in self._place

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Go through the pairs `(image_id, finding)` in their order."""
        return iter(self._place)

    def __len__(self) -> int:
        """Return the number of scored pairs."""
        return len(self._place)

    def read(self, image_id: str, finding: str) -> ScoredPair:
        """Read a pair.

        Raises:
            KeyError: The run did not score it.
            UserError: The files cannot be read, or hold what no run writes.
        """
        place = self._place[image_id, finding]
        with reading(self._folder):
            on_grid = _coverage(self._rows[TRUTH][place]).at(self._gamma)
            image = self._rows[IMAGES][self._image[image_id]]
            file = np.frombuffer(self._rows[PICTURES][self._picture[image_id]]["jpeg"], np.uint8)
            display = cv2.imdecode(file, cv2.IMREAD_GRAYSCALE) if len(file) else None
            if display is None:
                raise ValueError("a stored picture cannot be decoded")
            drawn = self._map.get((image_id, finding))
            return ScoredPair(
                index=image["index"],
                image_id=image_id,
                finding=finding,
                saliency=None if drawn is None else map_of(self._rows[PREDICTIONS][drawn]),
                view=crop_of(image["crop"]),
                region=Coverage.of(on_grid, (display.shape[0], display.shape[1])).at(0.5),
                display=display.astype(np.uint8, copy=False),
            )


def jpeg(image: NDArray[np.uint8]) -> bytes:
    """Encode a grey image (H, W) as a JPEG file."""
    done, encoded = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, 90))
    if not done:
        raise ValueError(f"a picture of {image.shape} {image.dtype} cannot be encoded")
    return encoded.tobytes()


class _OfImages:
    """Rows of a file, which holds those of an image one after the other."""

    def __init__(self, file: Table) -> None:
        grouped = groupby(_rows(file), key=itemgetter("image_id"))
        self._images: Iterator[tuple[str | None, list[dict[str, Any]]]] = ((name, [*rows]) for name, rows in grouped)
        self.image_id, self._waiting = next(self._images, (None, []))

    def take(self, image_id: str) -> list[dict[str, Any]]:
        """Return the rows of the next image if that is its name, else none."""
        if image_id != self.image_id:
            return []
        rows = self._waiting
        self.image_id, self._waiting = next(self._images, (None, []))
        return rows


def opened(path: Path, name: str = "") -> Table:
    """Open a table of a run, called `name` there; an OSError or a ValueError if it is none."""
    file = Table(path)
    if not file.schema_arrow.equals(_SCHEMAS[name or path.name]):
        raise ValueError(f"{path.name} has not the columns that a run writes")
    return file


def stated(file: Table, key: str) -> Any:
    """Return what a table says beside its rows; a ValueError if it does not."""
    metadata = file.schema_arrow.metadata or {}
    if key.encode() not in metadata:
        raise ValueError(f"{file.file_name} does not say its {key}")
    try:
        return json.loads(metadata[key.encode()])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.file_name}: its {key}: {error}") from None


def _rows(file: Table) -> Iterator[dict[str, Any]]:
    for group in range(file.num_row_groups):
        yield from _rows_of(file.read_row_group(group, use_threads=False))


def _rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Go through rows, in which lists of numbers are arrays; as Python's own lists they would take most of the time."""
    for name in {*table.column_names} & _FULL:
        if table[name].null_count:
            raise ValueError(f"{name} has gaps that no run leaves")
    columns = [_values(table[name].combine_chunks(), name in _ARRAYS) for name in table.column_names]
    return (dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True))


_FULL = frozenset({"index", "image_id", "query", "shape", "whole", "partial", "share", "kept", "shapes", "jpeg"})
_ARRAYS = frozenset({"crop", "shape", "partial", "share", "kept", "map", "map_shape"})


def _values(column: pa.Array, arrays: bool) -> Sequence[Any]:
    if not arrays:
        return list(column.to_pylist())
    flat = column.flatten()
    if flat.null_count:
        raise ValueError("there are gaps that no run leaves")
    ends = np.asarray(column.value_lengths().fill_null(0)).cumsum()
    parts = np.split(np.asarray(flat), ends[:-1]) if len(column) else []
    return [part if there else None for part, there in zip(parts, column.is_valid().to_pylist(), strict=True)]


class StoredRows:
    """Rows of a file by their place; the last group that was read is kept."""

    def __init__(self, file: Table) -> None:
        self._file, self._group, self._table = file, -1, pa.table({})
        self._ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])

    def __getitem__(self, place: int) -> dict[str, Any]:
        """Return a row, in which lists of numbers are arrays."""
        group = int(np.searchsorted(self._ends, place, side="right"))
        if group != self._group:
            self._table, self._group = self._file.read_row_group(group, use_threads=False), group
        return next(_rows_of(self._table.slice(place - int(self._ends[group]) + len(self._table), 1)))


def crop_of(values: NDArray[np.float64] | None) -> View:
    """Return the crop that `images.parquet` states; a ValueError if it is none."""
    if values is None:
        raise ValueError("an image has no crop")
    left, top, right, bottom = values.tolist()
    if not (-math.inf < left < right < math.inf and -math.inf < top < bottom < math.inf):
        raise ValueError(f"a crop has the edges {left}, {top}, {right}, {bottom}")
    return left, top, right, bottom


def _saliency(rows: Sequence[Mapping[str, Any]], queries: Sequence[str]) -> NDArray[np.float32] | None:
    """Return the maps of an image (C, h, w), NaN for those that nobody drew; None where there are none at all."""
    if not rows or rows[0]["map_shape"] is None:
        return None
    if [row["query"] for row in rows] != [*queries] or len({tuple(row["map_shape"]) for row in rows}) > 1:
        raise ValueError(f"{PREDICTIONS} has not one map of one shape for each finding of {rows[0]['image_id']!r:.200}")
    return np.stack([map_of(row) for row in rows])


def map_of(row: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the map of a row (h, w), NaN for one that nobody drew."""
    if row["map_shape"] is None:
        raise ValueError("a map has no shape")
    height, width = row["map_shape"].tolist()
    if not (height >= 1 <= width and height * width <= _MOST_CELLS):
        raise ValueError(f"a map has {height} x {width} cells")
    if row["map"] is None:
        return np.full((height, width), np.nan, np.float32)
    if not np.isfinite(row["map"]).all():
        raise ValueError("a map is not finite")
    cells: NDArray[np.float32] = row["map"].reshape(height, width)
    return cells


_MOST_CELLS = 2**26
"""Of a map that is read. A file of a few bytes can claim any number for one that nobody drew."""


def _places_of_maps(file: Table) -> dict[tuple[str, str], int]:
    """Return the row of each pair of image and finding whose map has a shape."""
    table = file.read(["image_id", "query", "map_shape"])
    images, queries = (table[name].to_pylist() for name in ("image_id", "query"))
    places = np.flatnonzero(table["map_shape"].is_valid()).tolist()
    return {(images[place], queries[place]): place for place in places}


def no_maps(maps: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which of maps (..., h, w) nobody drew (...): all their cells are NaN."""
    return np.asarray(np.isnan(maps).all((-2, -1)))


def _size(height: int, width: int) -> tuple[int, int]:
    if min(height, width) < 1:
        raise ValueError(f"an image has {height} x {width} pixels")
    return height, width


def _shape(values: Mapping[str, Any]) -> Shape:
    return Shape.checked(**{**values, "coordinates": np.array(values["coordinates"], np.float64)})


def _coverage(row: Mapping[str, Any]) -> Coverage:
    height, width = row["shape"].tolist()
    whole, parts = np.frombuffer(row["whole"], np.uint8), (row[name].copy() for name in ("partial", "share", "kept"))
    return Coverage.checked((height, width), whole, *parts)


def shrunk(image: NDArray[_Number], longest: int) -> NDArray[_Number]:
    """Return a picture (H, W) shrunk so that no side is longer than `longest` pixels."""
    height, width = image.shape
    scale = longest / max(height, width)
    if scale >= 1:
        return image
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(image.dtype, copy=False)
