"""What pictures are drawn from: of every scored pair the raw map and the region, of every such image the radiograph.

`maps.parquet` has a row per scored pair, that is per image and finding that it has with an annotated region,
`pictures.parquet` one per image. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xbench.rows import write_table

__all__ = ["MAPS", "PICTURES", "Case", "Cases", "PackedCase", "write_cases"]

MAPS, PICTURES = "maps.parquet", "pictures.parquet"


@dataclass(frozen=True)
class Case:
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


def write_cases(folder: Path, cases: Sequence[PackedCase], pictures: Mapping[str, bytes]) -> None:
    """Write `maps.parquet` and `pictures.parquet`.

    Args:
        folder: The run's folder.
        cases: The scored pairs, sorted.
        pictures: The radiographs as JPEG files, by name of the image.
    """
    columns: dict[str, Any] = {
        name: pa.array([getattr(case, name) for case in cases], kind) for name, kind in _CASE_COLUMNS.items()
    }
    # Small groups of rows, so that a case can be read without the others.
    write_table(folder / MAPS, pa.table(columns), row_group_size=64)
    table = pa.table(
        {
            "image_id": pa.array(list(pictures), pa.string()),
            "jpeg": pa.array(list(pictures.values()), pa.binary()),
        }
    )
    write_table(folder / PICTURES, table, row_group_size=64)


@dataclass(frozen=True, order=True)
class PackedCase:
    """A `Case` without its picture, as bytes.

    Attributes:
        index: Position of the image in the dataset.
        column: Position of the finding among the run's.
        image_id: Name of the image.
        finding: Name of the finding.
        shape: Height and width of the map.
        saliency: Its values: float32, little-endian, row by row, compressed with zstd.
        view: Part of the radiograph that it shows.
        region: The region as a PNG file of 0 and 255.
    """

    index: int
    column: int
    image_id: str
    finding: str
    shape: tuple[int, int]
    saliency: bytes
    view: tuple[float, float, float, float]
    region: bytes

    @classmethod
    def pack(cls, column: int, case: Case) -> tuple[PackedCase, bytes]:
        """Return the case and its picture, compressed."""
        values = np.ascontiguousarray(case.saliency, dtype="<f4").tobytes()
        compressed = bytes(pa.compress(values, codec="zstd", asbytes=True))
        height, width = case.saliency.shape
        region = _encoded(".png", case.region.astype(np.uint8) * 255)
        packed = cls(case.index, column, case.image_id, case.finding, (height, width), compressed, case.view, region)
        return packed, _encoded(".jpg", case.display, cv2.IMWRITE_JPEG_QUALITY, 90)


_CASE_COLUMNS = {
    "index": pa.int64(),
    "image_id": pa.string(),
    "finding": pa.string(),
    "shape": pa.list_(pa.int32(), 2),
    "view": pa.list_(pa.float64(), 4),
    "saliency": pa.binary(),
    "region": pa.binary(),
}


class Cases:
    """The scored pairs of a finished run, read from its files one at a time.

    Args:
        folder: The run's folder.

    Raises:
        OSError: The files cannot be read.
        pyarrow.ArrowInvalid: They are no such files.
    """

    def __init__(self, folder: Path) -> None:
        self._maps = pq.ParquetFile(folder / MAPS)
        self._pictures = pq.ParquetFile(folder / PICTURES)
        names = self._maps.read(["image_id", "finding"])
        pairs = zip(names["image_id"].to_pylist(), names["finding"].to_pylist(), strict=True)
        self._place = {pair: position for position, pair in enumerate(pairs)}
        ids = self._pictures.read(["image_id"])["image_id"].to_pylist()
        self._picture = {image_id: position for position, image_id in enumerate(ids)}

    def __contains__(self, pair: tuple[str, str]) -> bool:
        """Tell whether the run scored a finding in an image: `(image_id, finding)`."""
        return pair in self._place

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Go through the pairs `(image_id, finding)` in their order."""
        return iter(self._place)

    def __len__(self) -> int:
        """Return the number of scored pairs."""
        return len(self._place)

    def read(self, image_id: str, finding: str) -> Case:
        """Read a pair.

        Raises:
            KeyError: The run did not score it.
        """
        row = _row(self._maps, self._place[image_id, finding])
        picture = _row(self._pictures, self._picture[image_id])
        height, width = row["shape"]
        values = pa.decompress(row["saliency"], decompressed_size=4 * height * width, codec="zstd", asbytes=True)
        left, top, right, bottom = row["view"]
        return Case(
            index=row["index"],
            image_id=image_id,
            finding=finding,
            saliency=np.frombuffer(values, dtype="<f4").reshape(height, width).astype(np.float32),
            view=(left, top, right, bottom),
            region=_decoded(row["region"]) > 0,
            display=_decoded(picture["jpeg"]),
        )


def _row(file: pq.ParquetFile, position: int) -> dict[str, Any]:
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if position < size:
            return file.read_row_group(group).slice(position, 1).to_pylist()[0]
        position -= size
    raise IndexError(position)


def _decoded(file: bytes) -> NDArray[np.uint8]:
    image = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise ValueError("a stored picture cannot be decoded")
    return image.astype(np.uint8, copy=False)


def _encoded(ending: str, image: NDArray[np.uint8], *options: int) -> bytes:
    done, encoded = cv2.imencode(ending, image, options)
    if not done:
        raise ValueError(f"a picture of {image.shape} {image.dtype} cannot be encoded as {ending}")
    return encoded.tobytes()
