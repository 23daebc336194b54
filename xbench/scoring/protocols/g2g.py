"""Generate to Ground (MIDL 2025): a mixture of two Gaussians separates the cells of the mask from the others.

Follows Felix-012/generate_to_ground 699364a, on the grid instead of 512 x 512 pixels. The official fit is
scikit-learn's, started at random; ours starts every map like scikit-learn with seed 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.maps import Map, Region, cnr, pixel_ranking
from xbench.scoring.protocols.base import PairTruth, PairView, Protocol
from xbench.scoring.protocols.common import Mask, dice_and_iou, first_maximum, stretched

NUMBERS = ("iou", "miou", "bboxiou", "bboxmiou", "cnr", "top1", "aucroc", "distance")

_ROUNDS, _ENOUGH, _REGULAR = 100, 1e-3, 1e-6
"""Constants of scikit-learn's mixture: steps, gain of the mean log-likelihood that ends them, added variance."""


def threshold(cells: Map) -> float:
    """Return the mean of the two means of a Gaussian mixture of all cells, by expectation maximization."""
    values = cells.ravel().astype(np.float64)
    if values.min() == values.max():
        # The official fit leaves one component empty, with mean 0.
        return float(values[0]) / 2
    share = _two_clusters(values - values.mean())
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


def _two_clusters(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the membership of each value in two clusters (2, N), like scikit-learn's k-means with seed 0."""
    random = np.random.RandomState(0)
    squares, ones = values**2, np.ones(len(values))

    def distances(centers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(-2 * centers[:, None] * values + centers[:, None] ** 2 + squares, 0)

    def nearer(one: float, other: float) -> NDArray[np.bool_]:
        """Return which values are nearer to the other center; rounded like scikit-learn, which decides ties."""
        return np.asarray(other**2 - 2 * (other * values) < one**2 - 2 * (one * values))

    first = random.choice(len(values), p=ones / len(values))
    (near,) = distances(values[[first]])
    # The second center is the better of two values, drawn in proportion to their squared distance to the first.
    drawn = np.searchsorted(np.cumsum(near), random.uniform(size=2) * (near @ ones)).clip(max=len(values) - 1)
    second = drawn[np.argmin(np.minimum(near, distances(values[drawn])) @ ones)]
    centers, upper, limit = values[[first, second]], ones < 0, 1e-4 * values.var()
    for step in range(300):
        before, upper = upper, nearer(*centers)
        if step and np.array_equal(upper, before):
            break
        # Added sequentially, like scikit-learn.
        moved = np.array([np.cumsum(values[part])[-1] / part.sum() for part in (~upper, upper)])
        shift, centers = ((moved - centers) ** 2).sum(), moved
        if shift <= limit:
            upper = nearer(*centers)
            break
    return np.stack([~upper, upper]).astype(np.float64)


def _parameters(values: NDArray[Any], share: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    weight = share.sum(1) + 10 * np.finfo(float).eps
    mean = share @ values / weight
    return weight, mean, (share * (values - mean[:, None]) ** 2).sum(1) / weight + _REGULAR


def cells_of_mask(cells: Map, limit: float) -> Mask:
    """Return the cells above a limit; inside the border, those with at least 5 of their 3 x 3 cells above it."""
    above = cells > limit
    mask: Mask = above.copy()
    if min(above.shape) > 2:
        windows = np.lib.stride_tricks.sliding_window_view(above, (3, 3)).sum((2, 3))
        mask[1:-1, 1:-1] = windows >= 5
    return mask


def score(mask: Mask, saliency: Map, region: Region) -> dict[str, float]:
    """Score a mask and a map on the grid.

    Return `iou`; `miou`, the mean with the IoU of the complements; `bboxiou`, `bboxmiou`, of the mask's bounding box,
    without its last row and column; `cnr` with sample variances; `top1`; `aucroc`; `distance` in pixels between the
    centers of the bounding boxes. All are 0 if the mask is empty, as in the official code, even `distance`.
    """
    if not mask.any():
        return dict.fromkeys(NUMBERS, 0.0)
    top, left, bottom, right = _edges(mask)
    box = np.zeros_like(mask)
    box[top:bottom, left:right] = True
    found = {}
    for prefix, part in (("", mask), ("bbox", box)):
        found[f"{prefix}iou"] = one = dice_and_iou(part, region)[1]
        found[f"{prefix}miou"] = (one + float(np.nan_to_num(dice_and_iou(~part, ~region)[1]))) / 2
    centers = [(a + c) / 2 for a, c in ((top, bottom), (left, right))]
    distance = math.nan
    if region.any():
        up, start, down, end = _edges(region)
        distance = math.hypot(centers[0] - (up + down) / 2, centers[1] - (start + end) / 2)
    return found | {
        "cnr": cnr(saliency, region, sample=True),
        "top1": float(region[first_maximum(saliency)]),
        "aucroc": pixel_ranking(saliency, region)[0] if np.ptp(saliency) else math.nan,
        "distance": distance,
    }


def _edges(pixels: NDArray[Any]) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
    return int(rows[0]), int(columns[0]), int(rows[-1]), int(columns[-1])


class G2G(Protocol):
    name = "g2g"
    title = "Generate to Ground"
    headline = "miou"
    heading = "Mean IoU"
    citation = "Generate to Ground, MIDL 2025 (Felix-012/generate_to_ground 699364a)"
    rule = (
        "cells above the middle of a mixture of two Gaussians; IoU and IoU of the complements, CNR with sample "
        "variances, first maximum, AUROC of pixels"
    )
    flaw = "The background term of the mean IoU is near 1, and findings weigh by the square of their count."
    setting = "512 x 512 pixels, maps of 64 x 64 cells"
    limits = ("the official fit starts at random, ours is scikit-learn's with seed 0",)
    means = NUMBERS
    average = "squares"
    lower = frozenset({"distance"})

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, float]:
        size, raw = truth.region.shape, prediction.cells
        mask = np.rint(prediction.on_grid(size, cells=cells_of_mask(raw, threshold(raw)))) > 0
        return score(mask, prediction.on_grid(size, cells=stretched(raw)), truth.region)
