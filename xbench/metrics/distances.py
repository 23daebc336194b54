"""How far a mask lies from a region: between their centres, and between their borders."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion, distance_transform_edt, generate_binary_structure

Mask = NDArray[np.bool_]


def centroid_distance(mask: Mask, region: Mask) -> float:
    """Return the distance between the centres of mass, as a share of the grid's diagonal; NaN if either is empty.

    Examples:
        >>> row = np.eye(4, 4, dtype=bool)[:1]
        >>> centroid_distance(row, row[:, ::-1]) * math.hypot(1, 4)
        3.0
    """
    if not mask.any() or not region.any():
        return math.nan
    (y, x), (v, u) = (np.argwhere(pixels).mean(0) for pixels in (mask, region))
    return math.hypot(y - v, x - u) / math.hypot(*mask.shape)


def border_distances(mask: Mask, region: Mask, tolerance: float) -> dict[str, float]:
    """Return distances between the borders of a mask and a region, in pixels of the grid.

    A border is what the cross of four neighbours erodes; what lies beyond the image erodes too.

    Args:
        mask: (H, W).
        region: (H, W).
        tolerance: Of `surface_dice`, in pixels.

    Returns:
        `hausdorff`: the largest way from either border to the other; `hausdorff_95`: the larger of both ways' 95th
        percentiles; `surface_distance`: the mean over the pixels of both borders (ASSD); `surface_dice`: the share of
        both borders within the tolerance of the other (NSD). NaN if either is empty.
    """
    if not mask.any() or not region.any():
        return dict.fromkeys(("hausdorff", "hausdorff_95", "surface_distance", "surface_dice"), math.nan)
    one, other = _border(mask), _border(region)
    ways: list[NDArray[np.float64]] = [distance_transform_edt(~other)[one], distance_transform_edt(~one)[other]]
    both = np.concatenate(ways)
    return {
        "hausdorff": float(both.max()),
        "hausdorff_95": max(float(np.percentile(way, 95)) for way in ways),
        "surface_distance": math.fsum(both.tolist()) / len(both),
        "surface_dice": int(np.count_nonzero(both <= tolerance)) / len(both),
    }


def _border(pixels: Mask) -> NDArray[Any]:
    return np.asarray(pixels & ~binary_erosion(pixels, generate_binary_structure(2, 1)))
