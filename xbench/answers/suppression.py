"""Non-maximum suppression, for heads that propose more boxes than they mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def keep_strongest(
    boxes: Sequence[Sequence[float]], weights: Sequence[float], overlap: float = 0.25, least: float = 0.3
) -> list[int]:
    """Return which boxes are kept, strongest first: those that overlap no stronger one by more than an IoU.

    Args:
        boxes: Corners x0, y0, x1, y1.
        weights: Of each box; of equal ones the first is the stronger.
        overlap: Largest IoU with a stronger box that is kept.
        least: Weights below it are left out.
    """
    weight = np.asarray(weights, np.float64)
    order = np.argsort(-weight, kind="stable")
    # Weaker boxes suppress no stronger one, so leaving them out first changes nothing.
    order = order[weight[order] >= least]
    corners = np.asarray(boxes, np.float64).reshape(-1, 4)
    area = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    kept = []
    while len(order):
        first, order = int(order[0]), order[1:]
        kept.append(first)
        low = np.maximum(corners[order, :2], corners[first, :2])
        high = np.minimum(corners[order, 2:], corners[first, 2:])
        shared = np.prod(np.clip(high - low, 0, None), axis=1)
        order = order[shared <= overlap * (area[order] + area[first] - shared)]
    return kept
