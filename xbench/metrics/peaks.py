"""How far the maximum of a map lies from the region."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["peak_distance"]

_AT_A_TIME = 2**22
"""Distances in memory: 100 MB with what they are made of."""


def peak_distance(tied: NDArray[np.bool_], region: NDArray[np.bool_]) -> float:
    """Return the distance from the nearest of the tied maxima to the nearest pixel of the region.

    It is measured between the centres of pixels on the film taken as a unit square: across in film widths, down in film
    heights. Compared are whole numbers, (dx H)^2 + (dy W)^2 with dx and dy in pixels; one root and one division follow.

    Args:
        tied: (H, W), where the map has its maximum; somewhere.
        region: (H, W), not empty.

    Returns:
        0 where a tied maximum lies in the region, else above; less than the root of 2.

    Example:
        >>> region = np.array([[False, False, False, True], [False, False, False, False]])
        >>> peak_distance(np.array([[False, True, False, False], [True, False, False, False]]), region)
        0.5
    """
    if (tied & region).any():
        return 0.0
    height, width = region.shape
    # Between sets of pixels that do not meet, the nearest pixels lie on the borders of both.
    (rows, columns), (down, across) = (_border(pixels).nonzero() for pixels in (tied, region))
    step = max(1, _AT_A_TIME // len(down))
    least = min(
        int(
            (
                ((rows[start : start + step, None] - down) * width) ** 2
                + ((columns[start : start + step, None] - across) * height) ** 2
            ).min()
        )
        for start in range(0, len(rows), step)
    )
    return math.sqrt(least) / (height * width)


def _border(pixels: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Those of the pixels (H, W) that have a neighbour left, right, above or below that is none of them."""
    inner = pixels.copy()
    inner[1:] &= pixels[:-1]
    inner[:-1] &= pixels[1:]
    inner[:, 1:] &= pixels[:, :-1]
    inner[:, :-1] &= pixels[:, 1:]
    return pixels & ~inner
