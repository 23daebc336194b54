"""How far the maximum of a map lies from the region."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

_AT_A_TIME = 2**22
"""Distances in memory: 100 MB with what they are made of."""
_FEW = 64
"""Tied maxima whose distances cost less than finding their border."""


def least_distance(tied: NDArray[np.int64], region: NDArray[np.bool_]) -> int:
    """Return the square of the distance from the nearest of the tied maxima to the nearest pixel of the region.

    It is measured between the centres of pixels on the film taken as a unit square, across in film widths, down in film
    heights, and given in whole numbers: (dx H)^2 + (dy W)^2 with dx and dy in pixels. The root, over H W, is the
    distance.

    Args:
        tied: Row and column of the pixels where the map has its maximum (K, 2), at least one.
        region: (H, W), not empty.

    Returns:
        0 where a tied maximum lies in the region, else above.

    Examples:
        >>> region = np.array([[False, False, False, True], [False, False, False, False]])
        >>> (least_distance(np.array([[0, 1], [1, 0]]), region) ** 0.5) / (2 * 4)
        0.5
    """
    height, width = region.shape
    if region[tied[:, 0], tied[:, 1]].any():
        return 0
    # Between sets of pixels that do not meet, the nearest pixels lie on the borders of both.
    down, across = _border(region)
    if len(tied) > _FEW:
        peak = np.zeros_like(region)
        peak[tied[:, 0], tied[:, 1]] = True
        tied = np.stack(_border(peak), 1)
    step = max(1, _AT_A_TIME // len(down))
    parts = (tied[start : start + step, :, None] for start in range(0, len(tied), step))
    return min(
        int((((part[:, 0] - down) * width) ** 2 + ((part[:, 1] - across) * height) ** 2).min()) for part in parts
    )


def _border(pixels: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the pixels (H, W) with a neighbour left, right, above or below that is not one of them."""
    left, top, width, height = cv2.boundingRect(pixels.view(np.uint8))
    box = pixels[top : top + height, left : left + width]
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    within = cv2.erode(box.view(np.uint8), cross, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    down, across = np.divmod(np.flatnonzero(box & (within == 0)), width)
    return down + top, across + left
