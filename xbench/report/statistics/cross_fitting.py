"""Grounding with thresholds chosen on the same or on other images."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from xbench.report.statistics.sample import Sample

GROUNDING = (
    *("pointing_game", "dice_best", "iou_best", "dice_cross_fitted", "iou_cross_fitted"),
    *("dice_fixed", "iou_fixed", "dice_optimism", "dice_gap"),
)


@dataclass(frozen=True)
class Grounding:
    """Grounding of a sample.

    Attributes:
        numbers: By name, (C,); NaN where a number does not exist.
        of_pairs: By `dice` and `iou`, score of each pair at the threshold that is best on the other folds, (P,); NaN
            without one.
        thresholds: By `dice` and `iou`, then by finding and fold, places of the thresholds among the T.
    """

    numbers: dict[str, NDArray[np.float64]]
    of_pairs: dict[str, NDArray[np.float64]]
    thresholds: dict[str, dict[tuple[int, int], int]]


def pair_folds(sample: Sample, folds: int) -> NDArray[np.int64]:
    """Return the fold of each scored pair, (P,); -1 where its finding occurs in one cluster only.

    Of each finding, the clusters with a scored pair are dealt out in the order of the SHA-256 digests of their names:
    an order that has nothing to do with the images, and that every run on these images shares. All pairs of a cluster
    are in one fold. With fewer clusters than folds, each is a fold of its own.
    """
    digest = {name: hashlib.sha256(name.encode()).digest() for name in sample.clusters}
    rank = np.empty(len(sample.clusters), dtype=np.int64)
    rank[sorted(range(len(sample.clusters)), key=lambda place: digest[sample.clusters[place]])] = np.arange(len(rank))
    fold = np.full(len(sample.pair_column), -1, dtype=np.int64)
    for column in range(len(sample.findings)):
        mine = np.flatnonzero(sample.pair_column == column)
        clusters, place = np.unique(rank[sample.pair_cluster[mine]], return_inverse=True)
        if len(clusters) > 1:
            fold[mine] = place % min(folds, len(clusters))
    return fold


def grounding(sample: Sample, folds: NDArray[np.int64]) -> Grounding:
    """Return every grounding number per finding.

    Scores are rounded so that every sum is exact: the order of images does not decide between tied thresholds. Of
    equally good ones the lowest counts. The folds are those of `pair_folds`.
    """
    numbers = {name: np.full(len(sample.findings), np.nan) for name in GROUNDING}
    of_pairs = {name: np.full(len(folds), np.nan) for name in ("dice", "iou")}
    chosen: dict[str, dict[tuple[int, int], int]] = {"dice": {}, "iou": {}}
    for column in np.unique(sample.pair_column).tolist():
        mine = np.flatnonzero(sample.pair_column == column)
        scale = exact_scale(len(mine))
        unit = 1 / (scale * len(mine))
        numbers["pointing_game"][column] = np.rint(sample.hit[mine] * scale).sum() * unit
        for name in ("dice", "iou"):
            scores = getattr(sample, name)[mine]
            rounded = np.rint(scores * scale)
            total = rounded.sum(axis=0)
            numbers[f"{name}_fixed"][column] = total[sample.fixed] * unit
            numbers[f"{name}_best"][column] = total.max() * unit
            if folds[mine[0]] < 0:
                continue
            summed = 0.0
            for fold in np.unique(folds[mine]).tolist():
                held_out = folds[mine] == fold
                own = rounded[held_out].sum(axis=0)
                place = int((total - own).argmax())
                chosen[name][column, fold] = place
                of_pairs[name][mine[held_out]] = scores[held_out, place]
                summed += own[place]
            numbers[f"{name}_cross_fitted"][column] = summed * unit
    numbers["dice_optimism"] = numbers["dice_best"] - numbers["dice_cross_fitted"]
    numbers["dice_gap"] = numbers["dice_best"] - numbers["dice_fixed"]
    return Grounding(numbers, of_pairs, chosen)


def exact_scale(count: float) -> float:
    """Return the power of two whose multiples scores are rounded to: 2**40 as in the run itself unless there are many.

    Twice the sum of so many scores from 0 to 1 is then a whole number of float64, whatever the order of summation.
    """
    return 2.0 ** min(40, 52 - ceil(log2(max(1.0, count))))
