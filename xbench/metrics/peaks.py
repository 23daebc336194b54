"""How far the maximum of a map lies from the region."""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

_AT_A_TIME = 2**22
"""Distances in memory: 100 MB with what they are made of."""
_FEW = 2**16
"""Distances that cost less than finding borders."""


def peak_distance(tied: NDArray[np.int64], region: NDArray[np.bool_]) -> float:
    """Return the distance from the nearest of the tied maxima to the nearest pixel of the region.

    It is measured between the centres of pixels on the film taken as a unit square: across in film widths, down in film
    heights. Compared are whole numbers, (dx H)^2 + (dy W)^2 with dx and dy in pixels; one root and one division follow.

    Args:
        tied: Row and column of the pixels where the map has its maximum (K, 2), at least one.
        region: (H, W), not empty.

    Returns:
        0 where a tied maximum lies in the region, else above; less than the root of 2.

    Examples:
        >>> region = np.array([[False, False, False, True], [False, False, False, False]])
        >>> peak_distance(np.array([[0, 1], [1, 0]]), region)
        0.5
    """
    height, width = region.shape
    if region[tied[:, 0], tied[:, 1]].any():
        return 0.0
    inside = np.flatnonzero(region)
    if len(tied) * len(inside) > _FEW:
        # Between sets of pixels that do not meet, the nearest pixels lie on the borders of both.
        peak = np.zeros_like(region)
        peak[tied[:, 0], tied[:, 1]] = True
        tied, inside = np.argwhere(_border(peak)), np.flatnonzero(_border(region))
    down, across = np.divmod(inside, width)
    step = max(1, _AT_A_TIME // len(inside))
    parts = (tied[start : start + step, :, None] for start in range(0, len(tied), step))
    least = min(
        int((((part[:, 0] - down) * width) ** 2 + ((part[:, 1] - across) * height) ** 2).min()) for part in parts
    )
    return float(math.sqrt(least) / (height * width))


def _border(pixels: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels (H, W) with a neighbour left, right, above or below that is not one of them."""
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    return pixels & ~np.asarray(cv2.erode(pixels.view(np.uint8), cross), np.bool_)
