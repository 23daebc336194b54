"""Geometry that albumentations lacks, as in the models' own loaders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import albumentations as A
import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

from xbench.geometry.preprocessing import Preprocessing as Preprocessing
from xbench.geometry.preprocessing import stretch


class PillowResize(A.DualTransform):
    """Resize as Pillow does (and torchvision on Pillow images), which smooths when it shrinks, unlike OpenCV.

    Args:
        size: New length of a side in pixels.
        side: The side that gets it: `shortest` and `longest` keep the proportions, `both` stretches.
        interpolation: Pillow's filter.
    """

    def __init__(
        self,
        size: int,
        side: Literal["shortest", "longest", "both"] = "shortest",
        interpolation: Literal["bilinear", "bicubic", "lanczos"] = "bicubic",
    ) -> None:
        super().__init__(p=1.0)
        self.size, self.side, self.interpolation = size, side, interpolation

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        height, width = self._target(img.shape)
        return np.asarray(Image.fromarray(img).resize((width, height), Image.Resampling[self.interpolation.upper()]))

    def apply_to_keypoints(self, keypoints: NDArray[np.float32], **params: Any) -> NDArray[np.float32]:
        shape = params["shape"]
        height, width = self._target(shape)
        moved = keypoints.copy()
        moved[:, 0] *= width / shape[1]
        moved[:, 1] *= height / shape[0]
        return moved

    def _target(self, shape: Sequence[int]) -> tuple[int, int]:
        height, width = shape[:2]
        if self.side == "both":
            return self.size, self.size
        fixed = min(height, width) if self.side == "shortest" else max(height, width)
        return tuple(self.size if side == fixed else int(self.size * side / fixed) for side in (height, width))  # type: ignore[return-value]


class TensorResize(PillowResize):
    """Stretch to a square as `torch.nn.functional.interpolate` does, and TensorFlow 2 if `antialias` is false.

    Return float32 in [0, 1], where a bicubic filter may overshoot, or pixels truncated to 8 bits if `whole`.
    """

    def __init__(
        self, size: int, interpolation: Literal["bilinear", "bicubic"], antialias: bool = False, whole: bool = False
    ) -> None:
        super().__init__(size, "both", interpolation)
        self.antialias, self.whole = antialias, whole

    def apply(self, img: NDArray[np.uint8], **params: Any) -> Any:
        pixels = torch.from_numpy(img)[None, None].float()
        mode, size = str(self.interpolation), (self.size, self.size)
        resized = interpolate(pixels, size, mode=mode, align_corners=False, antialias=self.antialias)[0, 0].numpy()
        return resized.astype(np.uint8) if self.whole else resized / np.float32(255)


class ResizeByArea(PillowResize):
    """Resize the longer side by area averaging, with GLoRIA's rounding of the other side."""

    def __init__(self, size: int) -> None:
        super().__init__(size, "longest", "area")  # type: ignore[arg-type]

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        height, width = self._target(img.shape)
        return np.asarray(cv2.resize(img, (width, height), interpolation=cv2.INTER_AREA), np.uint8)

    def _target(self, shape: Sequence[int]) -> tuple[int, int]:
        longer = max(shape[:2])
        factor = self.size / longer
        # GLoRIA's script multiplies by the rounded factor, so the second side of some squares loses a pixel too.
        height, width = (max(int(side * factor), 1) for side in shape[:2])
        return (self.size, width) if shape[0] == longer else (height, self.size)


class CenterCrop(A.DualTransform):
    """Crop the central `size` pixels of an image at least as large, with torchvision's rounding (half to even)."""

    def __init__(self, size: int) -> None:
        super().__init__(p=1.0)
        self.size = size

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        top, left = self._offset(img.shape)
        return img[top : top + self.size, left : left + self.size]

    def apply_to_keypoints(self, keypoints: NDArray[np.float32], **params: Any) -> NDArray[np.float32]:
        top, left = self._offset(params["shape"])
        moved = keypoints.copy()
        moved[:, :2] -= (left, top)
        return moved

    def _offset(self, shape: Sequence[int]) -> tuple[int, int]:
        return round((shape[0] - self.size) / 2), round((shape[1] - self.size) / 2)


def on_black_canvas(canvas: int, size: int) -> list[A.BasicTransform]:
    """Return the geometry that fits a radiograph on a black square canvas and crops its central `size` pixels."""
    return [ResizeByArea(canvas), A.PadIfNeeded(canvas, canvas), CenterCrop(size)]


class HistogramEqualisation(A.ImageOnlyTransform):
    """Equalize gray values to 8 bits as the loaders of MedKLIP and MAVL do.

    Equals `(255 * skimage.exposure.equalize_hist(image / 255)).astype(uint8)`: the cumulative distribution over 256
    bins from the least to the largest value, interpolated between the centers of bins, times 255, truncated.
    """

    def __init__(self) -> None:
        super().__init__(p=1.0)

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        # The new value depends on the gray value alone, so a table of 256 values suffices.
        gray = np.arange(256) / 255
        pixels = np.bincount(img.ravel(), minlength=256)
        occurring = gray[pixels > 0]
        counts, edges = np.histogram(gray, bins=256, range=(occurring.min(), occurring.max()), weights=pixels)
        share = counts.cumsum() / img.size
        equalised = np.interp(gray, (edges[:-1] + edges[1:]) / 2, share)
        return np.asarray(cv2.LUT(img, (255 * equalised).astype(np.uint8)), np.uint8)


class MinMax(A.ImageOnlyTransform):
    """Stretch gray values linearly to 0 to 255, as OpenCV's `normalize` does."""

    def __init__(self) -> None:
        super().__init__(p=1.0)

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        return np.asarray(cv2.normalize(img, np.empty_like(img), 0, 255, cv2.NORM_MINMAX), np.uint8)


class TruncatedMinMax(MinMax):
    """Stretch gray values to 0 to 255, truncated as in BioViL's loader; a constant image becomes 0."""

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.uint8]:
        low, high = int(img.min()), int(img.max())
        stretched = (np.arange(256).clip(low, high) - low) * 255 // max(high - low, 1)
        return np.asarray(cv2.LUT(img, stretched.astype(np.uint8)), np.uint8)


STEPS: dict[str, Callable[[int], A.BasicTransform]] = {
    "stretch": lambda side: stretch((side, side))[0],
    "shortest": lambda side: PillowResize(side, "shortest"),
    "longest": lambda side: PillowResize(side, "longest"),
    "pad": lambda side: A.PadIfNeeded(side, side),
    "crop": CenterCrop,
}
"""Steps to a declared frame by name, each of the side that it leads to."""
