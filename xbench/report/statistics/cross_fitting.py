"""Grounding when images count more than once or not at all, with thresholds chosen on these or on other images."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from xbench.report.statistics.sample import Sample

__all__ = ["GROUNDING", "Grounding", "exact_scale", "grounding", "pair_folds"]

GROUNDING = (
    *("pointing_game", "dice_best", "iou_best", "dice_cross_fitted", "iou_cross_fitted"),
    *("dice_fixed", "iou_fixed", "dice_optimism", "dice_gap"),
)


@dataclass(frozen=True)
class Grounding:
    """Grounding of a sample in B resamples.

    Attributes:
        numbers: By name, (B, C); NaN where a number does not exist.
        dice_curve: Macro Dice at each threshold, (B, T).
        dice_of_pairs: Dice of each pair at the threshold that is best on the other folds, (B, P); NaN without one.
        iou_of_pairs: Likewise IoU.
        dice_thresholds: By finding and fold, places of the thresholds among the T, (B,).
        iou_thresholds: Likewise.
    """

    numbers: dict[str, NDArray[np.float64]]
    dice_curve: NDArray[np.float64]
    dice_of_pairs: NDArray[np.float64]
    iou_of_pairs: NDArray[np.float64]
    dice_thresholds: dict[tuple[int, int], NDArray[np.int64]]
    iou_thresholds: dict[tuple[int, int], NDArray[np.int64]]


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


def grounding(sample: Sample, folds: NDArray[np.int64], weights: NDArray[np.float64]) -> Grounding:
    """Return every grounding number per finding.

    In each resample the best threshold is chosen again, as it is in a run; cross-fitting keeps the folds, so that an
    image drawn twice never stands on both sides, and chooses again too. Of equally good thresholds the lowest counts.
    Where all that was drawn lies in one fold there is nothing to choose a threshold on, and no cross-fitted number.

    Args:
        sample: The sample.
        folds: From `pair_folds`.
        weights: How often each cluster is drawn, (K, B), whole numbers.
    """
    resamples, columns, thresholds = weights.shape[1], len(sample.findings), sample.dice.shape[1]
    numbers = {name: np.full((resamples, columns), np.nan) for name in GROUNDING}
    curve, findings = np.zeros((resamples, thresholds)), np.zeros(resamples)
    of_pairs = {name: np.full((resamples, len(folds)), np.nan) for name in ("dice", "iou")}
    chosen: dict[str, dict[tuple[int, int], NDArray[np.int64]]] = {"dice": {}, "iou": {}}
    for column in range(columns):
        mine = np.flatnonzero(sample.pair_column == column)
        if not len(mine):
            continue
        sums, counts, unit = _sums(sample, mine, folds[mine], weights)
        total, count = np.sum([*sums.values()], axis=0), np.sum([*counts.values()], axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = total / count[:, None] * unit
        curves = {"dice": mean[:, 1 : thresholds + 1], "iou": mean[:, thresholds + 1 :]}
        numbers["pointing_game"][:, column] = mean[:, 0]
        curve += np.where(count[:, None] > 0, curves["dice"], 0)
        findings += count > 0
        for name, first in (("dice", 1), ("iou", thresholds + 1)):
            numbers[f"{name}_fixed"][:, column] = curves[name][:, sample.fixed]
            numbers[f"{name}_best"][:, column] = curves[name].max(axis=1)
            if folds[mine[0]] < 0:
                continue
            summed, lost = np.zeros(resamples), np.zeros(resamples, dtype=bool)
            for fold, own in sums.items():
                others = (total - own)[:, first : first + thresholds]
                place = others.argmax(axis=1)
                blind = (count == counts[fold]) & (counts[fold] > 0)
                lost |= blind
                summed += own[np.arange(resamples), first + place]
                chosen[name][column, fold] = place
                pairs = mine[folds[mine] == fold]
                scores = getattr(sample, name)[pairs[:, None], place].T
                of_pairs[name][:, pairs] = np.where(blind[:, None], np.nan, scores)
            with np.errstate(invalid="ignore", divide="ignore"):
                numbers[f"{name}_cross_fitted"][:, column] = np.where(lost, np.nan, summed / count * unit)
    numbers["dice_optimism"] = numbers["dice_best"] - numbers["dice_cross_fitted"]
    numbers["dice_gap"] = numbers["dice_best"] - numbers["dice_fixed"]
    with np.errstate(invalid="ignore", divide="ignore"):
        curve /= findings[:, None]
    return Grounding(numbers, curve, of_pairs["dice"], of_pairs["iou"], chosen["dice"], chosen["iou"])


def exact_scale(count: float) -> float:
    """Return the power of two whose multiples scores are rounded to: 2**40 as in the run itself unless there are many.

    Twice the sum of so many scores from 0 to 1 is then a whole number of float64, whatever the order of summation.
    """
    return 2.0 ** min(40, 52 - ceil(log2(max(1.0, count))))


def _sums(
    sample: Sample, mine: NDArray[np.int64], folds: NDArray[np.int64], weights: NDArray[np.float64]
) -> tuple[dict[int, NDArray[np.float64]], dict[int, NDArray[np.float64]], float]:
    """Weighted sums of hits and both curves in each fold, (B, 1 + 2 T), the weights' sums, (B,), and the unit of sums.

    Scores are rounded so that every sum is exact: neither the order of images nor the library that multiplies decides
    between tied thresholds.
    """
    drawn = weights[sample.pair_cluster[mine]]
    counts = {int(fold): drawn[folds == fold].sum(axis=0) for fold in np.unique(folds)}
    scale = exact_scale(float(np.sum([*counts.values()], axis=0).max()))
    scores = np.rint(np.column_stack([sample.hit[mine], sample.dice[mine], sample.iou[mine]]) * scale)
    sums = {fold: drawn[folds == fold].T @ scores[folds == fold] for fold in counts}
    return sums, counts, 1 / scale
