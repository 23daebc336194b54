"""Generate to Ground (MIDL 2025): a mixture of two Gaussians tells the cells of the mask from the others.

Follows Felix-012/generate_to_ground 699364a, on the grid instead of 512 x 512 pixels. The official fit begins at
random; ours begins at the best split of the values in two, so it is the same every time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.metrics.maps import Map, Region, cnr, pixel_ranking
from xbench.metrics.protocols.common import Mask, first_maximum, iou

_ROUNDS, _ENOUGH, _REGULAR = 100, 1e-3, 1e-6
"""As scikit-learn's mixture has them: steps, gain of the mean log-likelihood that ends them, added variance."""


def threshold(cells: Map) -> float:
    """Return the mean of the two means of a Gaussian mixture of all cells, by expectation maximisation."""
    values = np.sort(cells.ravel().astype(np.float64))
    if values[0] == values[-1]:
        # The official fit leaves one component empty, with the mean 0.
        return float(values[0]) / 2
    sums = np.cumsum(values)
    number = np.arange(1, len(values))
    # The split in two with the least variance within, which k-means looks for.
    split = int(np.argmax(sums[:-1] ** 2 / number + (sums[-1] - sums[:-1]) ** 2 / (len(values) - number))) + 1
    share = np.zeros((2, len(values)))
    share[0, :split] = share[1, split:] = 1
    before = -math.inf
    weight, mean, variance = _parameters(values, share)
    for _ in range(_ROUNDS):
        logs = (
            np.log(weight / len(values))[:, None]
            - 0.5 * np.log(2 * math.pi * variance)[:, None]
            - (values - mean[:, None]) ** 2 / (2 * variance[:, None])
        )
        total = np.logaddexp(*logs)
        weight, mean, variance = _parameters(values, np.exp(logs - total))
        likelihood = float(total.mean())
        if abs(likelihood - before) < _ENOUGH:
            break
        before = likelihood
    return float(mean.mean())


def _parameters(values: NDArray[Any], share: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Weights, means and variances of two components that have these shares of each value (2, N)."""
    weight = share.sum(1) + 10 * np.finfo(float).eps
    mean = share @ values / weight
    return weight, mean, (share * (values - mean[:, None]) ** 2).sum(1) / weight + _REGULAR


def cells_of_mask(cells: Map, limit: float) -> Mask:
    """Return the cells above a limit; inside of the border those in whose 3 x 3 cells at least 5 are above it."""
    above = cells > limit
    mask: Mask = above.copy()
    if min(above.shape) > 2:
        windows = np.lib.stride_tricks.sliding_window_view(above, (3, 3)).sum((2, 3))
        mask[1:-1, 1:-1] = windows >= 5
    return mask


def score(mask: Mask, saliency: Map, region: Region) -> dict[str, float]:
    """Score a mask and a map on the grid.

    Returns:
        `iou`; `miou`, the mean with the IoU of the complements; `bboxiou`, `bboxmiou`, of the mask's bounding box,
        whose last row and column are left out; `cnr` with sample variances; `top1`; `aucroc`; `distance` in pixels
        between the centres of the bounding boxes. All are 0 if the mask is empty, as in the official code, `distance`
        too.
    """
    names = ("iou", "miou", "bboxiou", "bboxmiou", "cnr", "top1", "aucroc", "distance")
    if not mask.any():
        return dict.fromkeys(names, 0.0)
    top, left, bottom, right = _edges(mask)
    box = np.zeros_like(mask)
    box[top:bottom, left:right] = True
    found = {}
    for prefix, part in (("", mask), ("bbox", box)):
        found[f"{prefix}iou"] = one = iou(part, region)
        found[f"{prefix}miou"] = (one + _or_zero(iou(~part, ~region))) / 2
    centres = [(a + c) / 2 for a, c in ((top, bottom), (left, right))]
    distance = math.nan
    if region.any():
        up, start, down, end = _edges(region)
        distance = math.hypot(centres[0] - (up + down) / 2, centres[1] - (start + end) / 2)
    return found | {
        "cnr": cnr(saliency, region, sample=True),
        "top1": float(region[first_maximum(saliency)]),
        "aucroc": pixel_ranking(saliency, region)[0] if np.ptp(saliency) else math.nan,
        "distance": distance,
    }


def _edges(pixels: NDArray[Any]) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
    return int(rows[0]), int(columns[0]), int(rows[-1]), int(columns[-1])


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
