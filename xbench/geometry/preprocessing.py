"""Preprocessing of a model's input: geometry, then mean and standard deviation.

The geometry is an albumentations pipeline (stretch, resize and crop, pad ...), which may also equalize gray values. The
corners of the radiograph pass through it as keypoints, so the view is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.geometry.grid import View
from xbench.runtime.notes import INPUT_NOTE

if TYPE_CHECKING:
    import albumentations as A


class Preprocessing:
    """A model's preprocessing of a grayscale radiograph.

    Args:
        geometry: albumentations transforms that resize, crop and pad to a fixed size along the axes, or change only
            gray values. Use `PillowResize` instead of LongestMaxSize and SmallestMaxSize: these move keypoints by the
            unrounded factor, which misplaces the view by up to half a pixel. None leaves the image as it is.
        mean: Mean per channel, after scaling to [0, 1]; None for 0.
        std: Standard deviation per channel; None for 1. A run warns of a vision-language model that gives neither mean
            nor std; give zeros and ones if it was trained on pixels in [0, 1].
    """

    def __init__(
        self,
        geometry: Sequence[A.BasicTransform] | None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self.stated = mean is not None or std is not None
        self.unseen = False  # True if no model reads the pixels; batches then omit them
        self.undecoded = False  # True if the images are used for nothing else either; they are then not decoded
        self._steps = geometry
        self._mean = torch.tensor((0.0,) * 3 if mean is None else mean, dtype=torch.float32)[:, None, None]
        self._std = torch.tensor((1.0,) * 3 if std is None else std, dtype=torch.float32)[:, None, None]

    @cached_property
    def geometry(self) -> Any:
        """The albumentations pipeline; imported on first use, because undecoded images do not need it."""
        import albumentations as A

        corners = A.KeypointParams(format="xy", remove_invisible=False)
        return A.Compose([A.NoOp()] if self._steps is None else [*self._steps], keypoint_params=corners)

    def description(self) -> dict[str, Any]:
        """Return the steps as plain values for results."""
        return {
            "geometry": None if self.undecoded else [repr(transform) for transform in self.geometry.transforms],
            "mean": [round(value, 6) for value in self._mean.flatten().tolist()],
            "std": [round(value, 6) for value in self._std.flatten().tolist()],
        }

    def __call__(self, image: NDArray[np.uint8]) -> tuple[Tensor, View]:
        """Return the model input (3, h, w) and view of a radiograph (H, W) uint8."""
        pixels, view = self.pixels(image)
        return self.normalise(pixels), view

    def pixels(self, image: NDArray[np.uint8]) -> tuple[NDArray[np.uint8] | NDArray[np.float32], View]:
        """Return pixels (h, w), uint8 or float32 depending on the geometry, and view of a radiograph (H, W) uint8."""
        height, width = image.shape
        corners = np.array([[0, 0], [width, height]], np.float32)
        moved = self.geometry(image=image, keypoints=corners)
        pixels = moved["image"]
        (x0, y0), (x1, y1) = np.asarray(moved["keypoints"], np.float64)
        h, w = pixels.shape
        # Model input x lies at the share (x - x0) / (x1 - x0) of the radiograph's width.
        edges = (-x0 / (x1 - x0), -y0 / (y1 - y0), (w - x0) / (x1 - x0), (h - y0) / (y1 - y0))
        # albumentations moves points in float32; its rounding errors must not turn a full view into a crop.
        left, top, right, bottom = (round(float(edge), 6) + 0.0 for edge in edges)
        return np.ascontiguousarray(pixels), (left, top, right, bottom)

    def normalise(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> Tensor:
        """Return normalized pixels (3, h, w) float32 for gray pixels (h, w), uint8 or float32 in [0, 1]."""
        gray = torch.from_numpy(np.array(pixels, np.float32))
        if pixels.dtype == np.uint8:
            gray.div_(255)
        return gray.sub(self._mean).div(self._std)

    def problem(self, images: Tensor, radiographs: Sequence[Tensor], seen: Tensor | None = None) -> str | None:
        """Return what is wrong with the range or contrast of model inputs, or None.

        Published means and standard deviations (ImageNet, CLIP, 0.5 and 0.5, none) send black and white to at most -2.2
        and 2.7 and multiply contrast by 1 to 5, so the mean of any image lies in [-3, 3]. The limits, values in [-10,
        10] and at least a fifth of the contrast, leave room for standard deviations from 0.1 to 5 and for crops. A
        scale that is wrong by a factor of 255 is far outside, whatever the image; constants of another model go
        unnoticed.

        Args:
            images: Model inputs from this preprocessing (B, 3, h, w), B at least 1.
            radiographs: The B grayscale radiographs (H, W), uint8.
            seen: What the network itself gets, if known (B, 3, h, w).
        """
        made = images.float().cpu()
        pixels = made * self._std + self._mean
        before = max(_contrast(pixels), *(_contrast(radiograph / 255) for radiograph in radiographs))
        if problem := _range_problem(made, before):
            return problem
        darkest, brightest = float(pixels.amin()), float(pixels.amax())
        # Interpolation of float pixels may overshoot slightly.
        if darkest < -0.5 or brightest > 1.5:
            return (
                f"{INPUT_NOTE}: before mean and std, its pixels range from {darkest:.3g} to {brightest:.3g} instead of "
                "0 to 1. Let the geometry return 8-bit pixels or floats in [0, 1]"
            )
        problem = None if seen is None else _range_problem(seen.float().cpu(), before)
        return problem and f"{problem} (`forward` changes the correct output of `Preprocessing`)"


class WholeRadiograph(Preprocessing):
    """No preprocessing, for models that take the whole radiograph at its own size."""

    def __init__(self) -> None:
        super().__init__(None)

    def normalise(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> Tensor:
        """Return the pixels as a tensor (H, W), uint8; `Batch` recognizes radiographs by their two dimensions."""
        return torch.from_numpy(np.array(pixels))


def _range_problem(images: Tensor, before: float) -> str | None:
    """Return what is wrong with images (B, 3, h, w) that had the contrast `before` normalization."""
    low, high, mean, spread = float(images.amin()), float(images.amax()), float(images.mean()), _contrast(images)
    if low >= -10 and high <= 10 and abs(mean) <= 3 and spread >= 0.2 * before:
        return None
    return (
        f"{INPUT_NOTE}: its values range from {low:.3g} to {high:.3g} with mean {mean:.3g} and standard deviation "
        f"{spread:.2g} ({before:.2g} before normalization). Divide pixels by 255 once, before mean and std, and give "
        "mean and std for pixels in [0, 1] (127.5 and 63.75 become 0.5 and 0.25), unless the model was trained on "
        "such values"
    )


def _contrast(images: Tensor) -> float:
    """Return the largest standard deviation of a channel (..., h, w), because one image may be black."""
    return float(images.float().flatten(-2).std(-1, correction=0).amax())


def stretch(size: tuple[int, int]) -> list[A.BasicTransform]:
    """Return the geometry that resizes the whole radiograph to (h, w) by area averaging, ignoring proportions."""
    import albumentations as A

    return [A.Resize(size[0], size[1], interpolation=cv2.INTER_AREA)]
