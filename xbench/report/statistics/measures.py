"""Compute every number of a sample with its interval; thresholds are chosen on the same or on other images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from xbench.report.schema import NUMBERS, Estimate
from xbench.report.statistics import intervals
from xbench.report.statistics.intervals import Limits, Spread
from xbench.report.statistics.sample import Sample
from xbench.scoring.numbers import by_digest, counted, macro_mean, mean, recognition_numbers, summed

RECOGNITION = tuple(key for key, number in NUMBERS.items() if number.group == "classification")
_OF_RECOGNITION: Mapping[str, Callable[..., Spread]] = {
    "auroc": intervals.auroc,
    "average_precision": intervals.average_precision,
    "f1": lambda present, scores, *of: intervals.f1(present, scores >= 0.5, *of),
    "accuracy": lambda present, scores, *of: intervals.share(np.equal(scores >= 0.5, present).astype(np.float64), *of),
}


@dataclass(frozen=True)
class Measures:
    """Numbers of a sample.

    Attributes:
        point: By key of `NUMBERS`, of each finding (C,); NaN if missing.
        spreads: The same with their spreads; None if missing, and for optimism, which has no interval.
        folds: Fold of each scored pair (P,), from `pair_folds`.
        of_pairs: By `dice` and `iou`, score of each pair at the threshold that is best on the other folds (P,), or NaN.
        thresholds: By `dice` and `iou`, indices of thresholds by finding and fold (C, F); -1 for a fold without a pair.
    """

    sample: Sample
    point: Mapping[str, NDArray[np.float64]]
    spreads: Mapping[str, Sequence[Spread | None]]
    folds: NDArray[np.int64]
    of_pairs: Mapping[str, NDArray[np.float64]]
    thresholds: Mapping[str, NDArray[np.int64]]

    def findings(self) -> dict[str, dict[str, Estimate]]:
        """Return the numbers by finding, then by key of `NUMBERS`."""

        def of(key: str, column: int) -> Estimate:
            spread = self.spreads[key][column]
            return estimate(float(self.point[key][column]), spread.interval() if spread else None)

        return {name: {key: of(key, place) for key in NUMBERS} for place, name in enumerate(self.sample.findings)}

    def macro(self) -> dict[str, Estimate]:
        """Return the means over findings, by key of `NUMBERS`."""
        spreads = {key: [self.spreads[key][c] for c in macro_columns(self.point, key)] for key in NUMBERS}
        return {key: estimate(macro(self.point, key), _combined(spreads[key])) for key in NUMBERS}

    def curve(self) -> tuple[Estimate, ...]:
        """Return macro Dice at each threshold."""
        sample, found = self.sample, []
        of_findings = [np.flatnonzero(sample.pair_column == column) for column in np.unique(sample.pair_column)]
        compute = partial(intervals.mean, count=len(sample.clusters), unseen=_unseen(sample))
        for scores in sample.dice.T:
            spreads = [compute(scores[mine], sample.pair_cluster[mine]) for mine in of_findings]
            value = float(np.mean([spread.value for spread in spreads])) if spreads else float("nan")
            found.append(estimate(value, _combined(spreads)))
        return tuple(found)

    def means(self, pairs: NDArray[np.int64], numbers: Sequence[str]) -> dict[str, Estimate]:
        """Return mean scores of the pairs with these indices, of any findings.

        `numbers` are some of `pointing_game`, `dice_fixed`, `iou_fixed` and `dice_cross_fitted`.
        """
        sample, means = self.sample, dict.fromkeys(numbers, Estimate(None))
        scores = {"pointing_game": sample.hit, "dice_cross_fitted": self.of_pairs["dice"]}
        scores |= {"dice_fixed": sample.dice[:, sample.fixed], "iou_fixed": sample.iou[:, sample.fixed]}
        for name in numbers:
            compute = _of_hits(sample) if name == "pointing_game" else partial(intervals.mean, unseen=_unseen(sample))
            if len(known := pairs[~np.isnan(scores[name][pairs])]):
                spread = compute(scores[name][known], sample.pair_cluster[known], len(sample.clusters))
                means[name] = estimate(spread.value, spread.interval())
        return means


def estimate(value: float, limits: Limits | None) -> Estimate:
    """Return a value or NaN with its interval, which is widened to it, because the two were summed in other orders."""
    if np.isnan(value):
        return Estimate(None)
    return Estimate(value) if limits is None else Estimate(value, min(limits[0], value), max(limits[1], value))


def macro_columns(numbers: Mapping[str, NDArray[np.float64]], key: str) -> list[int]:
    """Return the findings of a mean over findings: those where the number, (C,) by key of `NUMBERS`, exists.

    As in a run, recognition scores are averaged over the findings with both labels.
    """
    return [int(c) for c in np.flatnonzero(~np.isnan(numbers["auroc" if key in RECOGNITION else key]))]


def macro(numbers: Mapping[str, NDArray[np.float64]], key: str) -> float:
    """Return the mean over the findings where a number exists; NaN where it exists for none."""
    mean = macro_mean(numbers[key][macro_columns(numbers, key)].tolist())
    return float("nan") if mean is None else mean


def measure(sample: Sample, folds: int) -> Measures:
    """Compute every number of a sample, with thresholds cross-fitted in so many folds.

    Sums are exact, so the order of images does not decide between tied thresholds; the lowest of them counts.
    """
    fold_of, unseen, findings = pair_folds(sample, folds), _unseen(sample), len(sample.findings)
    column = sample.pair_column
    count = counted(column, findings)
    # The first part of a finding has its pairs without a fold.
    parts = findings * (folds + 1)
    part = column * (folds + 1) + fold_of + 1
    held_out = counted(part, parts).reshape(findings, -1)[:, 1:]
    point = {"pointing_game": mean(summed(sample.hit, column, findings), count)}
    of_pairs, thresholds = {}, {}
    for name in ("dice", "iou"):
        scores: NDArray[np.float64] = getattr(sample, name)
        sums = summed(scores, part, parts).reshape(findings, folds + 1, -1)
        total, own = sums.sum(axis=1), sums[:, 1:]
        place = (total[:, None] - own).argmax(axis=2)
        means = mean(total, count)
        point[f"{name}_fixed"], point[f"{name}_best"] = means[:, sample.fixed], means.max(axis=1)
        at_place = np.take_along_axis(own, place[..., None], axis=2)
        point[f"{name}_cross_fitted"] = mean(at_place.sum(axis=(1, 2)), held_out.sum(axis=1))
        chosen = scores[np.arange(len(scores)), place[column, fold_of]]
        of_pairs[name] = np.where(fold_of < 0, np.nan, chosen)
        thresholds[name] = np.where(held_out > 0, place, -1)
    point["dice_optimism"] = point["dice_best"] - point["dice_cross_fitted"]
    point["dice_gap"] = point["dice_best"] - point["dice_fixed"]
    spreads: dict[str, list[Spread | None]] = {name: [None] * findings for name in NUMBERS}
    for finding in np.unique(column).tolist():
        mine = np.flatnonzero(column == finding)
        of = sample.pair_cluster[mine], len(sample.clusters)
        spreads["pointing_game"][finding] = _of_hits(sample)(sample.hit[mine], *of)
        for name in ("dice", "iou"):
            scores = getattr(sample, name)[mine]
            spreads[f"{name}_fixed"][finding] = intervals.mean(scores[:, sample.fixed], *of, unseen)
            spreads[f"{name}_best"][finding] = intervals.best(scores, *of, unseen)
            if fold_of[mine[0]] >= 0:
                spreads[f"{name}_cross_fitted"][finding] = intervals.cross_fitted(scores, fold_of[mine], *of, unseen)
        spreads["dice_gap"][finding] = intervals.gap(sample.dice[mine], sample.fixed, of_pairs["dice"][mine], *of)
    for finding in range(findings):
        known = sample.labels[:, finding] >= 0
        present, scores = sample.labels[known, finding] == 1, sample.probabilities[known, finding]
        numbers = recognition_numbers(present.astype(np.int8), scores)
        for name in RECOGNITION:
            point.setdefault(name, np.full(findings, np.nan))
            if numbers[name] is not None:
                point[name][finding] = numbers[name]
                of = sample.image_cluster[known], len(sample.clusters)
                spreads[name][finding] = _OF_RECOGNITION[name](present, scores, *of)
    return Measures(sample, point, spreads, fold_of, of_pairs, thresholds)


def pair_folds(sample: Sample, folds: int) -> NDArray[np.int64]:
    """Return the fold of each scored pair (P,); -1 if its finding occurs in one cluster only.

    Of each finding, the clusters with a scored pair are dealt out in the order of the SHA-256 digests of their names,
    which is unrelated to the images and the same for every run on them. With fewer clusters than folds, each is a fold.
    """
    rank = by_digest(sample.clusters)
    fold = np.full(len(sample.pair_column), -1, dtype=np.int64)
    for column in range(len(sample.findings)):
        mine = np.flatnonzero(sample.pair_column == column)
        clusters, place = np.unique(rank[sample.pair_cluster[mine]], return_inverse=True)
        if len(clusters) > 1:
            fold[mine] = place % min(folds, len(clusters))
    return fold


def _combined(spreads: Sequence[Spread | None]) -> Limits | None:
    existing = [spread for spread in spreads if spread is not None]
    return intervals.combined(existing) if existing and len(existing) == len(spreads) else None


def _unseen(sample: Sample) -> float:
    # No map decides areas of regions, so no hits are unseen.
    return 0.0 if sample.chances else intervals.UNSEEN


def _of_hits(sample: Sample) -> Callable[[NDArray[np.float64], NDArray[np.int64], int], Spread]:
    return partial(intervals.mean, unseen=_unseen(sample)) if sample.chances or sample.boxes else intervals.share
