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
    strong = np.flatnonzero(weight >= least)  # weaker boxes suppress no stronger one
    strong = strong[np.argsort(-weight[strong], kind="stable")]
    corners = np.asarray(boxes, np.float64).reshape(-1, 4)[strong]
    low, high = corners[:, :2], corners[:, 2:]
    area = np.prod(high - low, axis=1)
    # A box that overlaps another by more than this IoU has a side of at most that side / overlap, so on each axis its
    # centre lies within half of that. Each box is compared with its neighbors on the axis on which it has fewer.
    centre, reach = (low + high) / 2, (high - low) / (2 * overlap or 1e-9)
    sorted_by = np.argsort(centre, axis=0)
    ascending = np.take_along_axis(centre, sorted_by, axis=0)
    from_, to = centre - reach, centre + reach
    starts = np.stack([np.searchsorted(ascending[:, axis], from_[:, axis]) for axis in (0, 1)], axis=1)
    ends = np.stack([np.searchsorted(ascending[:, axis], to[:, axis], "right") for axis in (0, 1)], axis=1)
    nearer = np.argmin(ends - starts, axis=1) if len(strong) else ()
    left, kept = np.ones(len(strong), np.bool_), []
    for at, axis in enumerate(nearer):
        if left[at]:
            kept.append(int(strong[at]))
            near = sorted_by[starts[at, axis] : ends[at, axis], axis]
            sides = np.minimum(high[near], high[at]) - np.maximum(low[near], low[at])
            shared = np.clip(sides[:, 0], 0, None) * np.clip(sides[:, 1], 0, None)
            left[near[shared > overlap * (area[near] + area[at] - shared)]] = False
    return kept
