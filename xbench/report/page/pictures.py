"""Pictures in the page: outlines as paths, films and maps as text."""

from __future__ import annotations

import base64

import cv2
import numpy as np
from numpy.typing import NDArray


def outline_of(region: NDArray[np.bool_], scale: tuple[float, float] = (1, 1)) -> str:
    """Draw the border of a region (H, W) along the edges of its pixels, as a path in pixels of it times a scale."""
    # OpenCV draws through the centres of pixels. At twice the size, with a border, halving leads to the nearest edge.
    twice = np.pad(region.astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1), 1)
    contours, _ = cv2.findContours(twice, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    # Half a pixel is less than a screen shows, and most of what a ragged outline weighs.
    tolerance = max(1.0, max(region.shape) / 224) / 2
    smooth = [cv2.approxPolyDP(contour // 2, tolerance, True)[:, 0] for contour in contours]
    return "".join(
        "M" + "L".join(f"{x * scale[0]:.5g} {y * scale[1]:.5g}" for x, y in points) + "Z" for points in smooth
    )


def encoded(ending: str, image: NDArray[np.uint8], options: tuple[int, int]) -> str:
    """Return a picture encoded by the ending of its format, in base64."""
    done, data = cv2.imencode(ending, image, options)
    if not done:
        raise ValueError(f"a picture of {image.shape} {image.dtype} cannot be encoded as {ending}")
    return base64.b64encode(data.tobytes()).decode("ascii")
