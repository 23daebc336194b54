"""SIIM-ACR Pneumothorax: DICOM files under study and series, masks as relative run lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from official.base import Official, hexadecimal, scatter, write_lines
from official.dicom import secondary_capture, write_dicom
from xbench.data.phantom import draw_phantom

SIDE = 1024
FINDING = "Pneumothorax"


def write_siim(root: Path, positives: int = 6, negatives: int = 4) -> Official:
    """Write phantoms: every fourth is of the former stage-1 test, every second positive has overlapping masks."""
    official = Official(root, tolerance=8)
    rows = []
    wanted = {True: positives, False: negatives}
    index = 0
    while any(wanted.values()):
        phantom = draw_phantom(0, index, SIDE // 8, SIDE // 8)
        mask = phantom.masks.get(FINDING)
        index += 1
        if not wanted[mask is not None]:
            continue
        wanted[mask is not None] -= 1
        name = f"1.2.276.0.7230010.3.1.4.8323329.{index}.1517875201.{850000 + index}"
        image = enlarge(phantom.image)
        # Full range, so that the stretch to 8 bits gives the image back.
        image[0, :2] = 0, 255
        number = len(official.images) + 1
        tags = secondary_capture(hexadecimal(name), name)
        split = "stage1_test" if number % 4 == 0 else "stage1_train"
        folder = root / ("dicom-images-test" if number % 4 == 0 else "dicom-images-train")
        file = folder / tags["StudyInstanceUID"] / tags["SeriesInstanceUID"] / f"{name}.dcm"
        pixels, encoding, more = _as_published(image, number)
        write_dicom(official.add(name, image, file, split), pixels, encoding, tags | more)
        official.annotate(name, {FINDING: int(mask is not None)})
        rows += _rows(official, name, None if mask is None else enlarge(mask), number % 2 == 1)
    # The first row once more: the union of masks does not mind.
    scattered = scatter(rows)
    write_lines(root / "train-rle.csv", "ImageId, EncodedPixels", *scattered, scattered[0])
    return official


def write_mavl_list(official: Official, path: Path) -> list[str]:
    """Write a list of rows (not images), all values after a space, as MAVL's; return the images in it."""
    rows = rows_of(official.root / "train-rle.csv")
    chosen = [*rows[: (len(rows) + 1) // 2], rows[-1]]
    write_lines(path, "ImageId,EncodedPixels", *(", ".join(map(str.strip, row.split(","))) for row in chosen))
    return list(dict.fromkeys(row.partition(",")[0] for row in chosen))


def enlarge(pixels: NDArray[Any]) -> NDArray[Any]:
    return pixels.repeat(8, axis=0).repeat(8, axis=1)


def encode_relative_rle(mask: NDArray[np.bool_]) -> str:
    edges = np.flatnonzero(np.diff(mask.T.ravel(), prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    gaps = starts - np.concatenate(([0], ends[:-1]))
    return " ".join(map(str, np.stack([gaps, ends - starts], axis=1).ravel().tolist()))


def rows_of(path: Path) -> Sequence[str]:
    return path.read_text().splitlines()[1:]


def _rows(official: Official, name: str, mask: NDArray[np.bool_] | None, several: bool) -> list[str]:
    if mask is None:
        return [f"{name},-1"]
    official.mark(name, FINDING, mask)
    rows, lines = np.flatnonzero(mask.any(axis=1)), []
    # Overlapping masks, whose union is the whole.
    for low, high in ((0.0, 0.4), (0.3, 0.7), (0.6, 1.0)) if several else ((0.0, 1.0),):
        part = np.zeros_like(mask)
        chosen = rows[int(low * len(rows)) : int(np.ceil(high * len(rows)))]
        part[chosen] = mask[chosen]
        lines.append(f"{name},{encode_relative_rle(part)}")
    return lines


def _as_published(image: NDArray[np.uint8], number: int) -> tuple[NDArray[Any], str, dict[str, Any]]:
    """An image as pixels, encoding and tags of a DICOM file that shows it; the first of these kinds is the official."""
    levels = image.astype(np.int64)
    inverted = {
        **dict(BitsStored=12, HighBit=11, PhotometricInterpretation="MONOCHROME1"),
        **dict(WindowCenter=[2048, 1], WindowWidth=[4080, 1], VOILUTFunction="LINEAR_EXACT"),
    }
    kinds: list[tuple[NDArray[Any], str, dict[str, Any]]] = [
        (image, "jpeg", {}),
        (image, "native", {}),
        (image, "rle", {}),
        ((4095 - levels * 16 - 7).astype(np.uint16), "native", inverted),
        ((levels * 257).astype(np.uint16), "jpeg-2000", {}),
        ((levels - 1024).astype(np.int16), "native", {"RescaleSlope": "2", "RescaleIntercept": "2048"}),
    ]
    return kinds[(number - 1) % len(kinds)]
