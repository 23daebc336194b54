"""What a run saves of its images beside the scores: raw maps, annotated regions, radiographs.

`maps.parquet` has a row per image with the raw maps of all findings, `regions.parquet` one per annotated region,
`instances.parquet` one per item that a region is the union of, and `pictures.parquet` one per image with a scored pair.
Pictures are drawn from them, and a run is scored again without its model. Needs no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cv2
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from xbench.geometry.coverage import Coverage
from xbench.geometry.shapes import Shape
from xbench.runs.files import INSTANCES, MAPS, PICTURES, REGIONS, RESULTS, Table, reading

if TYPE_CHECKING:
    from xbench.geometry.grid import View

_Number = TypeVar("_Number", np.uint8, np.float32)


@dataclass(frozen=True)
class SavedImage:
    """What a run keeps of an image."""

    index: int  # position of the image in the dataset
    image_id: str
    image_sha256: str  # digest of the model input that the maps were made from
    view: View  # part of the radiograph that the maps show
    saliency: NDArray[
        np.float32
    ]  # raw maps of the C findings (C, h, w), in the frame of the model input; NaN where missing
    regions: Mapping[int, Coverage]  # annotated regions by position of the finding, ascending
    scored: tuple[int, ...]  # positions of those findings that grounding is scored on: present, with a region
    picture: bytes | None  # the radiograph as a JPEG file; None where no pair is scored
    image_size: tuple[int, int] | None = None  # height and width as it was decoded; None in runs of earlier versions
    # What the regions are the unions of, item by item, by position of the finding, ascending; as far as known.
    instances: Mapping[int, tuple[Shape, ...]] = field(default_factory=dict)


def saved_tables(
    findings: Sequence[str], images: Sequence[SavedImage], with_instances: bool = True
) -> dict[str, pa.Table]:
    """Return maps, regions, instances and pictures of images, in the dataset's order, as tables by file.

    `with_instances` is false for a run that does not know them.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SAVED_SCHEMAS if name != MAPS}
    maps: dict[str, list[Any]] = {name: [] for name in _MAPS.names}
    for image in images:
        named = {"index": image.index, "image_id": image.image_id}
        shown = {"image_sha256": image.image_sha256, "view": image.view, "size": image.image_size}
        for name, value in (named | shown | {"shape": image.saliency.shape[1:], "saliency": image.saliency}).items():
            maps[name].append(value)
        for column, coverage in image.regions.items():
            parts = {name: getattr(coverage, name) for name in Coverage.__slots__}
            of_finding = {"finding": findings[column], "scored": column in image.scored}
            rows[REGIONS].append(named | of_finding | parts | {"whole": coverage.whole.tobytes()})
        for column, items in image.instances.items() if with_instances else ():
            for number, item in enumerate(items):
                which = {"finding": findings[column], "instance": number, "reader": item.reader or None}
                parts = {"frame": item.size} | {
                    name: getattr(item, name) for name in ("kind", "coordinates", "outline")
                }
                rows[INSTANCES].append(named | which | parts)
        if image.picture is not None:
            rows[PICTURES].append({"image_id": image.image_id, "jpeg": image.picture})
    cells = [image.saliency.astype(np.float32, copy=False).ravel() for image in images]
    starts = np.cumsum([0, *map(len, cells)], dtype=np.int32)
    # Cells of maps that nobody drew are null.
    flat = pa.array(np.concatenate([np.zeros(0, np.float32), *cells]), from_pandas=True)
    saliency = pa.ListArray.from_arrays(pa.array(starts), flat)
    columns = [saliency if name == "saliency" else pa.array(maps[name], _MAPS.field(name).type) for name in _MAPS.names]
    kept = {name: pa.Table.from_pylist(of_file, SAVED_SCHEMAS[name]) for name, of_file in rows.items()}
    if not with_instances:
        del kept[INSTANCES]
    return {MAPS: pa.table(columns, _MAPS)} | kept


_IMAGE = {"index": pa.int64(), "image_id": pa.string()}
_INTEGERS, _FLOATS = pa.list_(pa.int32()), pa.list_(pa.float64())
_MAPS = pa.schema(
    _IMAGE
    | {"image_sha256": pa.string(), "view": _FLOATS, "size": _INTEGERS}
    | {"shape": _INTEGERS, "saliency": pa.list_(pa.float32())}
)
_REGIONS = pa.schema(
    _IMAGE
    | {"finding": pa.string(), "scored": pa.bool_(), "shape": _INTEGERS, "whole": pa.binary()}
    | {"partial": pa.list_(pa.uint32()), "share": _FLOATS, "kept": pa.list_(pa.uint32())}
)
_PICTURES = pa.schema({"image_id": pa.string(), "jpeg": pa.binary()})
_INSTANCES = pa.schema(
    _IMAGE
    | {"finding": pa.string(), "instance": pa.int32(), "kind": pa.string(), "frame": _INTEGERS}
    | {"coordinates": _FLOATS, "reader": pa.string(), "outline": pa.bool_()}
)
SAVED_SCHEMAS = {MAPS: _MAPS, REGIONS: _REGIONS, INSTANCES: _INSTANCES, PICTURES: _PICTURES}
_SCHEMAS = {MAPS: _MAPS, REGIONS: _REGIONS, PICTURES: _PICTURES}


def read_saved_images(folder: Path, of: Sequence[str] | None = None) -> Iterator[SavedImage]:
    """Read what a run saved of its images, one by one in the dataset's order; `of` are its findings, if to be checked.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: A file cannot be read, the files do not fit together, or they hold
            what no run writes.
    """
    maps, regions, pictures = (_opened(folder / name) for name in _SCHEMAS)
    with maps, regions, pictures, ExitStack() as stack:
        findings = _findings(maps)
        if of is not None and findings != [*of]:
            raise ValueError(f"{MAPS} is of other findings than {RESULTS}")
        column_of = {finding: column for column, finding in enumerate(findings)}
        drawn, shown, items = _OfImages(regions), _OfImages(pictures), None
        if (folder / INSTANCES).is_file():
            items = _OfImages(stack.enter_context(_opened(folder / INSTANCES)))
        for row in _rows(maps):
            image_id = row["image_id"]
            mine, picture = drawn.take(image_id), shown.take(image_id)
            size = row.get("size")
            instances = _instances(items.take(image_id), column_of) if items else {}
            if not {*instances} <= {column_of[region["finding"]] for region in mine}:
                raise ValueError(f"{INSTANCES} has an item of a finding without a region on {image_id!r}")
            yield SavedImage(
                index=row["index"],
                image_id=image_id,
                image_sha256=row["image_sha256"],
                view=_view(row["view"]),
                saliency=_saliency(row, len(findings)),
                regions={column_of[region["finding"]]: _coverage(region) for region in mine},
                scored=tuple(column_of[region["finding"]] for region in mine if region["scored"]),
                picture=picture[0]["jpeg"] if picture else None,
                image_size=None if size is None else _size(size),
                instances=instances,
            )
        for image_id in (drawn.image_id, shown.image_id, items and items.image_id):
            if image_id is not None:
                raise ValueError(f"{folder} keeps something of an image {image_id!r} that {MAPS} does not name")


def saved_regions(folder: Path) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """Go through the regions that a run saved: image, finding, and the region as it was scored (H, W).

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run writes.
    """
    file = _opened(folder / REGIONS)
    gamma = float(_about(file, "gamma"))
    for region in _rows(file):
        yield region["image_id"], region["finding"], _coverage(region).at(gamma)


def saved_instances(folder: Path, findings: Sequence[str]) -> Iterator[tuple[tuple[str, str], tuple[Shape, ...]]]:
    """Go through the annotated items that a run saved, by image and finding.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run writes.
    """
    column_of = {finding: column for column, finding in enumerate(findings)}
    with _opened(folder / INSTANCES) as file:
        for image_id, rows in groupby(_rows(file), key=itemgetter("image_id")):
            for column, items in _instances([*rows], column_of).items():
                yield (image_id, findings[column]), items


def saved_sizes(folder: Path) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Go through the images of a run with their height and width; None where it does not know them.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run writes.
    """
    with _opened(folder / MAPS) as file:
        names = [name for name in ("image_id", "size") if name in file.schema_arrow.names]
        for row in file.read(names).to_pylist():
            size = row.get("size")
            yield row["image_id"], None if size is None else _size(size)


def shows_nothing(folder: Path) -> bool:
    """Return whether all maps of a run are a single cell, as those of a model that gives probabilities alone.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read.
    """
    with _opened(folder / MAPS) as file:
        return all(shape == [1, 1] for shape in file.read(["shape"])["shape"].to_pylist())


@dataclass(frozen=True)
class ScoredPair:
    """A scored pair as pictures show it."""

    index: int  # position of the image in the dataset
    image_id: str
    finding: str
    saliency: NDArray[np.float32]  # raw map (h, w), in the frame of the model input
    view: View  # part of the radiograph that this frame shows
    region: NDArray[np.bool_]  # annotated region (H, W)
    # The grey radiograph (H, W), on the evaluation grid or, if a side of that is longer than 1,024 pixels, smaller in
    # the same proportions.
    display: NDArray[np.uint8]


class ScoredPairs:
    """The scored pairs of a finished run by image and finding, read from the files in its folder one at a time.

    Attributes:
        findings: The findings whose maps the run saved, in their order.

    Raises:
        UserError: The files cannot be read, or hold what no run writes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with reading(folder):
            self._maps, self._regions, self._pictures = (_opened(folder / name) for name in _SCHEMAS)
            self.findings = _findings(self._maps)
            self._gamma = float(_about(self._regions, "gamma"))
            pairs = self._regions.read(["image_id", "finding", "scored"]).to_pylist()
            self._map, self._picture = (
                {image_id.as_py(): place for place, image_id in enumerate(file.read(["image_id"])["image_id"])}
                for file in (self._maps, self._pictures)
            )
        self._place = {(pair["image_id"], pair["finding"]): row for row, pair in enumerate(pairs) if pair["scored"]}

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
            on_grid = _coverage(_row(self._regions, place)).at(self._gamma)
            maps = _row(self._maps, self._map[image_id])
            file = np.frombuffer(_row(self._pictures, self._picture[image_id])["jpeg"], np.uint8)
            display = cv2.imdecode(file, cv2.IMREAD_GRAYSCALE)
            if display is None:
                raise ValueError("a stored picture cannot be decoded")
            return ScoredPair(
                index=maps["index"],
                image_id=image_id,
                finding=finding,
                saliency=_saliency(maps, len(self.findings))[self.findings.index(finding)],
                view=_view(maps["view"]),
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


def _opened(path: Path) -> Table:
    file, schema = Table(path), _SCHEMAS.get(path.name, _INSTANCES)
    # Earlier versions took a region for one part, and did not keep the size of an image.
    if (later := {REGIONS: "kept", MAPS: "size"}.get(path.name)) and later not in file.schema_arrow.names:
        schema = schema.remove(schema.get_field_index(later))
    if not file.schema_arrow.equals(schema):
        raise ValueError(f"{path.name} has not the columns that a run writes")
    return file


def _about(file: Table, key: str) -> Any:
    metadata = file.schema_arrow.metadata or {}
    if key.encode() not in metadata:
        raise ValueError(f"a file of a run does not say its {key}; it is of another version of xbench")
    try:
        return json.loads(metadata[key.encode()])
    except ValueError as error:
        raise ValueError(f"{file.file_name}: its {key}: {error}") from None


def _findings(maps: Table) -> list[str]:
    return [str(finding) for finding in _about(maps, "findings")]


def _rows(file: Table) -> Iterator[dict[str, Any]]:
    for group in range(file.num_row_groups):
        yield from _rows_of(file.read_row_group(group, use_threads=False))


def _rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Go through rows, in which lists of numbers are arrays; as Python's own lists they would take most of the time."""
    columns = [
        table[name].to_pylist() if name in _NULLABLE else _values(table[name].combine_chunks())
        for name in table.column_names
    ]
    return (dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True))


_NULLABLE = frozenset({"size", "reader"})


def _values(column: pa.Array) -> Sequence[Any]:
    lists = pa.types.is_list(column.type)
    # Only of maps, whose cells are the float32, some may be missing.
    if column.null_count or (lists and column.type.value_type != pa.float32() and column.flatten().null_count):
        raise ValueError("there are gaps that no run leaves")
    if not lists:
        return list(column.to_pylist())
    starts = np.asarray(column.offsets)
    return np.split(np.asarray(column.flatten()), starts[1:-1] - starts[0]) if len(column) else []


def _row(file: Table, position: int) -> dict[str, Any]:
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if position < size:
            return next(_rows_of(file.read_row_group(group, use_threads=False).slice(position, 1)))
        position -= size
    raise IndexError(position)


def _view(values: NDArray[np.float64]) -> View:
    left, top, right, bottom = values.tolist()
    if not (-math.inf < left < right < math.inf and -math.inf < top < bottom < math.inf):
        raise ValueError(f"a view has the edges {left}, {top}, {right}, {bottom}")
    return left, top, right, bottom


def _saliency(row: Mapping[str, Any], findings: int) -> NDArray[np.float32]:
    height, width = row["shape"]
    # A copy, for Arrow's memory is read-only.
    maps = np.array(row["saliency"], np.float32).reshape(findings, height, width)
    if not np.isfinite(maps[~no_maps(maps)]).all():
        raise ValueError("a map is not finite")
    return maps


def no_maps(maps: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which of maps (..., h, w) nobody drew (...): all their cells are NaN."""
    return np.asarray(np.isnan(maps).all((-2, -1)))


def _size(value: Sequence[int]) -> tuple[int, int]:
    height, width = value
    if min(height, width) < 1:
        raise ValueError(f"an image has {height} x {width} pixels")
    return height, width


def _instances(rows: Sequence[Mapping[str, Any]], column_of: Mapping[str, int]) -> dict[int, tuple[Shape, ...]]:
    found: dict[int, tuple[Shape, ...]] = {}
    for row in rows:
        column = column_of[row["finding"]]
        before = found.get(column, ())
        if row["instance"] != len(before) or (not before and found and column <= max(found)):
            raise ValueError(f"the items of {row['image_id']!r} in {INSTANCES} are not in their order")
        size, numbers = row["frame"].tolist(), np.array(row["coordinates"], np.float64)
        item = Shape.checked(row["kind"], size, numbers, row["reader"] or "", row["outline"])
        found[column] = (*before, item)
    return found


def _coverage(row: Mapping[str, Any]) -> Coverage:
    height, width = row["shape"].tolist()
    return Coverage.checked(
        (height, width),
        np.frombuffer(row["whole"], np.uint8),
        np.array(row["partial"], np.uint32),
        np.array(row["share"], np.float64),
        np.array(row["kept"], np.uint32) if "kept" in row else None,
    )


def shrunk(image: NDArray[_Number], longest: int) -> NDArray[_Number]:
    """Return a picture (H, W) shrunk so that no side is longer than `longest` pixels."""
    height, width = image.shape
    scale = longest / max(height, width)
    if scale >= 1:
        return image
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(image.dtype, copy=False)
