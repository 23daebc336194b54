"""How a model wants its input: geometry, then mean and standard deviation.

The geometry is an albumentations pipeline of the model's own choice (stretch, resize and crop, pad ...), with
equalisation of the grey values anywhere in it. The two outer corners of the radiograph travel through it as keypoints,
so that where the input lies on the radiograph is measured and never guessed.
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
    """A model's preprocessing of a grey radiograph.

    Args:
        geometry: albumentations transforms that move pixels, any mix of resizing, cropping and padding to a fixed
            size, along the axes, or that change nothing but grey values. (albumentations' own LongestMaxSize and
            SmallestMaxSize move points by the unrounded factor and so misplace the view by up to half a pixel; use
            `PillowResize`.) None if an image stays as it is.
        mean: Per channel, subtracted after scaling to [0, 1]; None for 0.
        std: Per channel, divided by; None for 1. A vision-language model that was trained on pixels in [0, 1] says so
            by zeros and ones: a run warns of one that gives neither (`stated` is false), for forgetting both is easy.
    """

    def __init__(
        self,
        geometry: Sequence[A.BasicTransform] | None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self.stated = mean is not None or std is not None
        self.unseen = False  # True if no model reads the pixels; batches then leave them out
        self.undecoded = False  # True if nothing is compared with the images either; they are then not decoded
        self._steps = geometry
        self._mean = torch.tensor((0.0,) * 3 if mean is None else mean, dtype=torch.float32)[:, None, None]
        self._std = torch.tensor((1.0,) * 3 if std is None else std, dtype=torch.float32)[:, None, None]

    @cached_property
    def geometry(self) -> Any:
        """The pipeline of albumentations, which is not imported for images that are not decoded: it takes long."""
        import albumentations as A

        corners = A.KeypointParams(format="xy", remove_invisible=False)
        return A.Compose([A.NoOp()] if self._steps is None else [*self._steps], keypoint_params=corners)

    def description(self) -> dict[str, Any]:
        """Return what is done to an image, in plain values for results."""
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
        """Return pixels (h, w), uint8 or float32 as the geometry leaves them, and view of a radiograph (H, W) uint8."""
        height, width = image.shape
        corners = np.array([[0, 0], [width, height]], np.float32)
        moved = self.geometry(image=image, keypoints=corners)
        pixels = moved["image"]
        (x0, y0), (x1, y1) = np.asarray(moved["keypoints"], np.float64)
        h, w = pixels.shape
        # Model input x lies at the share (x - x0) / (x1 - x0) of the radiograph's width.
        edges = (-x0 / (x1 - x0), -y0 / (y1 - y0), (w - x0) / (x1 - x0), (h - y0) / (y1 - y0))
        # albumentations moves points in float32; a rounding error must not make a full view look like a crop.
        left, top, right, bottom = (round(float(edge), 6) + 0.0 for edge in edges)
        return np.ascontiguousarray(pixels), (left, top, right, bottom)

    def normalise(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> Tensor:
        """Scale to [0, 1], repeat for three channels, subtract the mean and divide by the standard deviation.

        From (h, w), uint8 in 0..255 or float32 in [0, 1], to (3, h, w) float32.
        """
        grey = torch.from_numpy(np.array(pixels, np.float32))
        if pixels.dtype == np.uint8:
            grey.div_(255)
        return grey.sub(self._mean).div(self._std)

    def problem(self, images: Tensor, radiographs: Sequence[Tensor], seen: Tensor | None = None) -> str | None:
        """Return what is wrong with the range or the spread of what a network gets to see; None if nothing is.

        A published mean and standard deviation (ImageNet's, CLIP's, 0.5 and 0.5, none at all) send black and white to
        -2.2 and 2.7 at most and stretch the contrast by 1 to 5, so that the mean of any picture lies within -3 and 3.
        No value beyond -10 and 10, and no contrast below a fifth of that before, leave room for other standard
        deviations, from 0.1 to 5, and for crops. A scale that is wrong by 255 is far off these limits, however dark or
        bright the film. Constants of another model are not found.

        Args:
            images: Model inputs that this preprocessing made (B, 3, h, w), B at least 1.
            radiographs: Of the B grey radiographs (H, W), uint8.
            seen: What the network itself gets, if that is known (B, 3, h, w); the model inputs if None.
        """
        made = images.float().cpu()
        pixels = made * self._std + self._mean
        before = max(_contrast(pixels), *(_contrast(radiograph / 255) for radiograph in radiographs))
        if problem := _range_problem(made, before):
            return problem
        darkest, brightest = float(pixels.amin()), float(pixels.amax())
        # Interpolation of float pixels may overshoot a little.
        if darkest < -0.5 or brightest > 1.5:
            return (
                f"{INPUT_NOTE}: without mean and std its pixels go from {darkest:.3g} to {brightest:.3g} and not from "
                "0 to 1, so the geometry normalises, or leaves floats of another range; let it give 8-bit pixels, or "
                "floats in [0, 1]"
            )
        problem = None if seen is None else _range_problem(seen.float().cpu(), before)
        return problem and f"{problem} (`Preprocessing` makes it right, and `forward` changes it)"


class WholeRadiograph(Preprocessing):
    """No preprocessing: for models that get the whole radiograph in its own size, and do with it what they like."""

    def __init__(self) -> None:
        super().__init__(None)

    def normalise(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> Tensor:
        """Return the pixels as a tensor (H, W), uint8: `Batch` knows radiographs by their two dimensions."""
        return torch.from_numpy(np.array(pixels))


def _range_problem(images: Tensor, before: float) -> str | None:
    """Return what is wrong with images (B, 3, h, w) whose contrast was another before mean and std."""
    low, high, mean, spread = float(images.amin()), float(images.amax()), float(images.mean()), _contrast(images)
    if low >= -10 and high <= 10 and abs(mean) <= 3 and spread >= 0.2 * before:
        return None
    return (
        f"{INPUT_NOTE}: its values go from {low:.3g} to {high:.3g} with a mean of {mean:.3g} and a standard deviation "
        f"of {spread:.2g}, that before being {before:.2g} of white. Pixels are divided by 255 once, before mean and "
        "std: give these for pixels in [0, 1] (127.5 and 63.75 become 0.5 and 0.25) and divide by nothing again, "
        "unless the model was trained on such numbers"
    )


def _contrast(images: Tensor) -> float:
    """Standard deviation of the values of a channel (..., h, w), of that which has the most: one image may be black."""
    return float(images.float().flatten(-2).std(-1, correction=0).amax())


def stretch(size: tuple[int, int]) -> list[A.BasicTransform]:
    """Return the geometry that resizes the whole radiograph to (h, w) by area averaging, whatever its proportions."""
    import albumentations as A

    return [A.Resize(size[0], size[1], interpolation=cv2.INTER_AREA)]
