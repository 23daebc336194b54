"""What a run saves of its images beside the scores: raw maps, annotated regions, radiographs.

`maps.parquet` has a row per image with the raw maps of all findings, `regions.parquet` one per annotated region and
`pictures.parquet` one per image with a scored pair. Pictures are drawn from them, and a run is scored again without its
model. Needs no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.geometry.coverage import Coverage, region_digest
from xbench.runs.files import MAPS, PICTURES, REGIONS, RESULTS, WRITING, Table, reading
from xbench.runtime.files import atomic_writer

_Number = TypeVar("_Number", np.uint8, np.float32)

_GROUP = 32
"""Images to a group of rows: few enough to read one case fast, enough to compress well."""


@dataclass(frozen=True)
class SavedImage:
    """What a run keeps of an image.

    Attributes:
        index: Position of the image in the dataset.
        image_id: Its name.
        image_sha256: Digest of the model input that the maps were made from.
        view: Part of the radiograph that the maps show: left, top, right, bottom in fractions of width and height.
        saliency: Raw maps of the C findings (C, h, w) float32, in the frame of the model input.
        regions: Annotated regions by position of the finding, ascending.
        scored: Positions of those findings that grounding is scored on: present, with a region.
        picture: The radiograph as a JPEG file; None where no pair is scored.
    """

    index: int
    image_id: str
    image_sha256: str
    view: tuple[float, float, float, float]
    saliency: NDArray[np.float32]
    regions: Mapping[int, Coverage]
    scored: tuple[int, ...]
    picture: bytes | None


def write_saved_images(
    folder: Path,
    findings: Sequence[str],
    gamma: float,
    depends_on: Mapping[str, Any],
    images: Iterable[SavedImage],
) -> None:
    """Write `maps.parquet`, `regions.parquet` and `pictures.parquet`, image by image, whatever their number.

    Args:
        folder: The run's folder.
        findings: Names of the C findings.
        gamma: Share of a grid pixel that a region must cover.
        depends_on: What the maps depend on but for the image (weights, preprocessing, prompts), as nested plain values.
        images: In the dataset's order.
    """
    schemas = {
        MAPS: _MAPS.with_metadata({"findings": json.dumps([*findings]), "depends_on": json.dumps(depends_on)}),
        REGIONS: _REGIONS.with_metadata({"gamma": json.dumps(gamma)}),
        PICTURES: _PICTURES,
    }
    with ExitStack() as stack:
        writers = {}
        for name, schema in schemas.items():
            file = stack.enter_context(atomic_writer(folder / name))
            # Bytes of one place in a float lie together and so compress better.
            split = ["saliency.list.element"] if name == MAPS else False
            writers[name] = stack.enter_context(
                pq.ParquetWriter(
                    file, schema, use_dictionary=False, use_byte_stream_split=split, version="2.6", **WRITING
                )
            )
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in schemas}

        def flush(name: str) -> None:
            if rows[name]:
                writers[name].write_table(pa.Table.from_pylist(rows[name], schemas[name]))
                rows[name].clear()

        for image in images:
            named = {"index": image.index, "image_id": image.image_id}
            rows[MAPS].append(
                named
                | {
                    "image_sha256": image.image_sha256,
                    "view": image.view,
                    "shape": image.saliency.shape[1:],
                    "saliency": image.saliency.astype(np.float32, copy=False).ravel(),
                }
            )
            for column, coverage in image.regions.items():
                rows[REGIONS].append(
                    named
                    | {
                        "finding": findings[column],
                        "scored": column in image.scored,
                        "shape": coverage.shape,
                        "whole": coverage.whole.tobytes(),
                        "partial": coverage.partial,
                        "share": coverage.share,
                        "kept": coverage.kept,
                    }
                )
            if image.picture is not None:
                rows[PICTURES].append({"image_id": image.image_id, "jpeg": image.picture})
            for name in rows:
                if len(rows[name]) >= _GROUP:
                    flush(name)
        for name in rows:
            flush(name)


_MAPS = pa.schema(
    {
        "index": pa.int64(),
        "image_id": pa.string(),
        "image_sha256": pa.string(),
        "view": pa.list_(pa.float64()),
        "shape": pa.list_(pa.int32()),
        "saliency": pa.list_(pa.float32()),
    }
)
_REGIONS = pa.schema(
    {
        "index": pa.int64(),
        "image_id": pa.string(),
        "finding": pa.string(),
        "scored": pa.bool_(),
        "shape": pa.list_(pa.int32()),
        "whole": pa.binary(),
        "partial": pa.list_(pa.uint32()),
        "share": pa.list_(pa.float64()),
        "kept": pa.list_(pa.uint32()),
    }
)
_PICTURES = pa.schema({"image_id": pa.string(), "jpeg": pa.binary()})
_SCHEMAS = {MAPS: _MAPS, REGIONS: _REGIONS, PICTURES: _PICTURES}


def read_saved_images(folder: Path, of: Sequence[str] | None = None) -> Iterator[SavedImage]:
    """Read what a run saved of its images, one by one in the dataset's order.

    Args:
        folder: The run's folder.
        of: The run's findings; not checked if None.

    Raises:
        OSError: A file cannot be read.
        ValueError: The files do not fit together, or hold what no run writes.
        pyarrow.ArrowInvalid: They are no such files.
    """
    with ExitStack() as stack:
        maps, regions, pictures = (stack.enter_context(_opened(folder / name)) for name in _SCHEMAS)
        findings = _findings(maps)
        if of is not None and findings != [*of]:
            raise ValueError(f"{MAPS} is of other findings than {RESULTS}")
        column_of = {finding: column for column, finding in enumerate(findings)}
        drawn, shown = _OfImages(regions), _OfImages(pictures)
        for group in range(maps.num_row_groups):
            for row in _rows(maps.read_row_group(group, use_threads=False)):
                image_id = row["image_id"]
                mine = drawn.take(image_id)
                picture = shown.take(image_id)
                yield SavedImage(
                    index=row["index"],
                    image_id=image_id,
                    image_sha256=row["image_sha256"],
                    view=_view(row["view"]),
                    saliency=_saliency(row, len(findings)),
                    regions={column_of[region["finding"]]: _coverage(region) for region in mine},
                    scored=tuple(column_of[region["finding"]] for region in mine if region["scored"]),
                    picture=picture[0]["jpeg"] if picture else None,
                )
        for file in (drawn, shown):
            if file.image_id is not None:
                raise ValueError(f"{folder} keeps something of an image {file.image_id!r} that {MAPS} does not name")


def saved_region_digests(folder: Path, image_ids: Sequence[str], findings: Sequence[str]) -> NDArray[np.bytes_]:
    """Return the digests of the regions that a run saved (N, C), 16 bytes each; empty without a region.

    Args:
        folder: The run's folder.
        image_ids: Its N images.
        findings: Its C findings.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is of other images or findings, or holds what no run writes.
        pyarrow.ArrowInvalid: It is no such file.
    """
    row_of, column_of = ({name: place for place, name in enumerate(names)} for names in (image_ids, findings))
    digests = np.zeros((len(image_ids), len(findings)), "S16")
    for image_id, finding, region in saved_regions(folder):
        if image_id not in row_of or finding not in column_of:
            raise ValueError(f"{folder / REGIONS} is of other images or findings than the run")
        digests[row_of[image_id], column_of[finding]] = region_digest(region)
    return digests


def saved_regions(folder: Path) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """Go through the regions that a run saved: image, finding, and the region as it was scored (H, W).

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds what no run writes.
        pyarrow.ArrowInvalid: It is no such file.
    """
    file = _opened(folder / REGIONS)
    gamma = float(_about(file, "gamma"))
    for group in range(file.num_row_groups):
        for region in _rows(file.read_row_group(group, use_threads=False)):
            yield region["image_id"], region["finding"], _coverage(region).at(gamma)


@dataclass(frozen=True)
class ScoredPair:
    """A scored pair as pictures show it.

    Attributes:
        index: Position of the image in the dataset.
        image_id: Its name.
        finding: Name of the finding.
        saliency: Raw map (h, w) float32, in the frame of the model input.
        view: Part of the radiograph that this frame shows: left, top, right, bottom in fractions of width and height.
        region: Annotated region (H, W) bool.
        display: The grey radiograph (H, W) uint8, on the evaluation grid or, if a side of that is longer than 1,024
            pixels, smaller in the same proportions.
    """

    index: int
    image_id: str
    finding: str
    saliency: NDArray[np.float32]
    view: tuple[float, float, float, float]
    region: NDArray[np.bool_]
    display: NDArray[np.uint8]


class ScoredPairs:
    """The scored pairs of a finished run, read from its files one at a time.

    Args:
        folder: The run's folder.

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
            names = self._regions.read(["image_id", "finding", "scored"]).to_pylist()
            self._map, self._picture = (
                {
                    image_id: position
                    for position, image_id in enumerate(file.read(["image_id"])["image_id"].to_pylist())
                }
                for file in (self._maps, self._pictures)
            )
        self._place = {
            (row["image_id"], row["finding"]): position for position, row in enumerate(names) if row["scored"]
        }

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
            region = _row(self._regions, place)
            maps = _row(self._maps, self._map[image_id])
            display = _decoded(_row(self._pictures, self._picture[image_id])["jpeg"])
            saliency = _saliency(maps, len(self.findings))
            on_grid = _coverage(region).at(self._gamma)
            return ScoredPair(
                index=maps["index"],
                image_id=image_id,
                finding=finding,
                saliency=saliency[self.findings.index(finding)],
                view=_view(maps["view"]),
                region=Coverage.of(on_grid, (display.shape[0], display.shape[1])).at(0.5),
                display=display,
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
        groups = (_rows(file.read_row_group(group, use_threads=False)) for group in range(file.num_row_groups))
        self._images = groupby((row for rows in groups for row in rows), key=itemgetter("image_id"))
        self.image_id: str | None = None
        self._waiting: list[dict[str, Any]] = []
        self._next()

    def _next(self) -> None:
        self.image_id, rows = next(self._images, (None, iter(())))
        self._waiting = list(rows)

    def take(self, image_id: str) -> list[dict[str, Any]]:
        """Return the rows of the next image if that is its name, else none."""
        if image_id != self.image_id:
            return []
        rows = self._waiting
        self._next()
        return rows


def _opened(path: Path) -> Table:
    file = Table(path)
    try:
        schema = _SCHEMAS[path.name]
        if path.name == REGIONS and "kept" not in file.schema_arrow.names:
            # Of an earlier version, which took a region for one part.
            schema = schema.remove(schema.get_field_index("kept"))
        fits = file.schema_arrow.equals(schema)
    except ValueError:
        fits = False
    if not fits:
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


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Go through rows, in which lists of numbers are arrays; as Python's own lists they would take most of the time."""
    columns = [_values(table[name].combine_chunks()) for name in table.column_names]
    return (dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(column: pa.Array) -> Sequence[Any]:
    if column.null_count or (pa.types.is_list(column.type) and column.flatten().null_count):
        raise ValueError("there are gaps that no run leaves")
    if not pa.types.is_list(column.type):
        return list(column.to_pylist())
    starts = np.asarray(column.offsets)
    return np.split(np.asarray(column.flatten()), starts[1:-1] - starts[0]) if len(column) else []


def _row(file: Table, position: int) -> dict[str, Any]:
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if position < size:
            (row,) = _rows(file.read_row_group(group, use_threads=False).slice(position, 1))
            return row
        position -= size
    raise IndexError(position)


def _view(values: NDArray[np.float64]) -> tuple[float, float, float, float]:
    left, top, right, bottom = values.tolist()
    if not (-math.inf < left < right < math.inf and -math.inf < top < bottom < math.inf):
        raise ValueError(f"a view has the edges {left}, {top}, {right}, {bottom}")
    return left, top, right, bottom


def _saliency(row: Mapping[str, Any], findings: int) -> NDArray[np.float32]:
    height, width = row["shape"]
    if not np.isfinite(row["saliency"]).all():
        raise ValueError("a map is not finite")
    # A copy, for Arrow's memory is read-only.
    return np.array(row["saliency"], np.float32).reshape(findings, height, width)


def _coverage(row: Mapping[str, Any]) -> Coverage:
    height, width = row["shape"].tolist()
    return Coverage.checked(
        (height, width),
        np.frombuffer(row["whole"], np.uint8),
        np.array(row["partial"], np.uint32),
        np.array(row["share"], np.float64),
        np.array(row["kept"], np.uint32) if "kept" in row else None,
    )


def _decoded(file: bytes) -> NDArray[np.uint8]:
    image = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise ValueError("a stored picture cannot be decoded")
    return image.astype(np.uint8, copy=False)


def shrunk(image: NDArray[_Number], longest: int) -> NDArray[_Number]:
    """Return a picture (H, W) shrunk so that no side is longer than `longest` pixels."""
    height, width = image.shape
    scale = longest / max(height, width)
    if scale >= 1:
        return image
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(image.dtype, copy=False)
