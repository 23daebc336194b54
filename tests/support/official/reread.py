"""Plain code that reads files of datasets: slow, obvious, and independent of `xbench.data`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom import dcmread
from pydicom.pixels import apply_modality_lut, apply_voi_lut

from official.base import Official


def table(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def show(path: Path) -> NDArray[np.float64]:
    """The grey values (H, W), 0 to 255, that a viewer shows."""
    if path.suffix not in (".dcm", ".dicom"):
        return np.array(Image.open(path).convert("L"), float)
    dataset = dcmread(path)
    values = dataset.pixel_array.astype(float)
    if "WindowCenter" in dataset or "RescaleSlope" in dataset or dataset.BitsStored != 8:
        stored = dataset.pixel_array
        values = np.asarray(apply_voi_lut(apply_modality_lut(stored, dataset), dataset, index=0), float)
        values = np.rint((values - values.min()) / (values.max() - values.min()) * 255)
    return 255 - values if dataset.PhotometricInterpretation == "MONOCHROME1" else values


def same_masks(official: Official, drawn: Mapping[str, Mapping[str, NDArray[np.bool_]]]) -> None:
    """Assert that masks by image and finding are those of the download."""
    assert official.masks.keys() == drawn.keys()
    for image_id, masks in official.masks.items():
        assert masks.keys() == drawn[image_id].keys()
        for finding, mask in masks.items():
            np.testing.assert_array_equal(mask, drawn[image_id][finding])


def same_boxes(official: Official, boxes: Iterable[tuple[str, str, int, int, int, int]]) -> None:
    """Assert that half-open boxes (image, finding, x1, y1, x2, y2), drawn pixel by pixel, are the masks."""
    drawn: dict[str, dict[str, NDArray[np.bool_]]] = {image_id: {} for image_id in official.masks}
    for image_id, finding, x1, y1, x2, y2 in boxes:
        height, width = official.images[image_id].shape
        mask = drawn[image_id].setdefault(finding, np.zeros((height, width), np.bool_))
        for y in range(max(y1, 0), min(y2, height)):
            for x in range(max(x1, 0), min(x2, width)):
                mask[y, x] = True
    same_masks(official, drawn)


def have_neighbours(names: list[str]) -> bool:
    """Whether a name stands twice in a row."""
    return any(first == second for first, second in pairwise(names))
