"""Every number of a sample, with how far it may be from the truth; thresholds chosen on the same or on other images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from xbench.report.schema import NUMBERS, Estimate
from xbench.report.statistics import intervals
from xbench.report.statistics.intervals import Limits, Spread
from xbench.report.statistics.sample import Sample

GROUNDING, RECOGNITION = (
    tuple(key for key, number in NUMBERS.items() if number.group == group) for group in ("grounding", "classification")
)


@dataclass(frozen=True)
class Measures:
    """Numbers of a sample.

    Attributes:
        point: By key of `NUMBERS`, of each finding, (C,); NaN where a number does not exist.
        spreads: The same with how far each may be from the truth; None where it does not exist, and for optimism, which
            has no interval.
        folds: Fold of each scored pair, (P,), from `pair_folds`.
        of_pairs: By `dice` and `iou`, score of each pair at the threshold that is best on the other folds, (P,); NaN
            without one.
        thresholds: By `dice` and `iou`, then by finding and fold, places of the thresholds among the T.
    """

    sample: Sample
    point: Mapping[str, NDArray[np.float64]]
    spreads: Mapping[str, Sequence[Spread | None]]
    folds: NDArray[np.int64]
    of_pairs: Mapping[str, NDArray[np.float64]]
    thresholds: Mapping[str, Mapping[tuple[int, int], int]]

    def findings(self) -> dict[str, dict[str, Estimate]]:
        """Return the numbers by finding, then by key of `NUMBERS`."""
        found: dict[str, dict[str, Estimate]] = {}
        for column, finding in enumerate(self.sample.findings):
            spreads = {key: self.spreads[key][column] for key in NUMBERS}
            found[finding] = {
                key: estimate(float(self.point[key][column]), spread.interval() if spread else None)
                for key, spread in spreads.items()
            }
        return found

    def macro(self) -> dict[str, Estimate]:
        """Return the means over findings, by key of `NUMBERS`."""
        found = {}
        for key in NUMBERS:
            spreads = [self.spreads[key][column] for column in macro_columns(self.point, key)]
            found[key] = estimate(macro(self.point, key), _combined(spreads))
        return found

    def curve(self) -> tuple[Estimate, ...]:
        """Return macro Dice at each threshold."""
        sample, found = self.sample, []
        of_findings = [np.flatnonzero(sample.pair_column == column) for column in np.unique(sample.pair_column)]
        for scores in sample.dice.T:
            spreads = [
                intervals.mean(scores[mine], sample.pair_cluster[mine], len(sample.clusters), _unseen(sample))
                for mine in of_findings
            ]
            value = float(np.mean([spread.value for spread in spreads])) if spreads else float("nan")
            found.append(estimate(value, _combined(spreads)))
        return tuple(found)

    def means(self, pairs: NDArray[np.int64], numbers: Sequence[str]) -> dict[str, Estimate]:
        """Return mean scores of some pairs, by their places among the P, whatever their findings.

        `numbers` are some of `pointing_game`, `dice_fixed` and `dice_cross_fitted`.
        """
        sample, means = self.sample, {}
        scores = {
            "pointing_game": sample.hit,
            "dice_fixed": sample.dice[:, sample.fixed],
            "dice_cross_fitted": self.of_pairs["dice"],
        }
        for name in numbers:
            known = pairs[~np.isnan(scores[name][pairs])]
            if not len(known):
                means[name] = Estimate(None)
                continue
            compute = _of_hits(sample) if name == "pointing_game" else partial(intervals.mean, unseen=_unseen(sample))
            spread = compute(scores[name][known], sample.pair_cluster[known], len(sample.clusters))
            means[name] = estimate(spread.value, spread.interval())
        return means


def estimate(value: float, limits: Limits | None) -> Estimate:
    """Return a value, NaN where it does not exist, with its interval; the two were summed in different orders."""
    if np.isnan(value):
        return Estimate(None)
    return Estimate(value) if limits is None else Estimate(value, min(limits[0], value), max(limits[1], value))


def macro_columns(numbers: Mapping[str, NDArray[np.float64]], key: str) -> list[int]:
    """Return the findings that a mean over findings takes: those where the number, (C,) by key of `NUMBERS`, exists.

    As in a run, the recognition scores are averaged over the same findings, those with both labels.
    """
    return [int(c) for c in np.flatnonzero(~np.isnan(numbers["auroc" if key in RECOGNITION else key]))]


def macro(numbers: Mapping[str, NDArray[np.float64]], key: str) -> float:
    """Return the mean over the findings where a number exists; NaN where it exists for none."""
    columns = macro_columns(numbers, key)
    return float(numbers[key][columns].mean()) if columns else float("nan")


def measure(sample: Sample, folds: int) -> Measures:
    """Compute every number of a sample, with thresholds cross-fitted in so many folds.

    Scores are rounded so that every sum is exact: the order of images does not decide between tied thresholds. Of
    equally good ones the lowest counts.
    """
    fold_of, unseen, recognised = pair_folds(sample, folds), _unseen(sample), recognition(sample)
    point = {name: np.full(len(sample.findings), np.nan) for name in GROUNDING}
    spreads: dict[str, list[Spread | None]] = {name: [None] * len(sample.findings) for name in GROUNDING}
    of_pairs = {name: np.full(len(fold_of), np.nan) for name in ("dice", "iou")}
    chosen: dict[str, dict[tuple[int, int], int]] = {"dice": {}, "iou": {}}
    for column in np.unique(sample.pair_column).tolist():
        mine = np.flatnonzero(sample.pair_column == column)
        folds_here, of = fold_of[mine], (sample.pair_cluster[mine], len(sample.clusters))
        scale = exact_scale(len(mine))
        unit = 1 / (scale * len(mine))
        point["pointing_game"][column] = np.rint(sample.hit[mine] * scale).sum() * unit
        spreads["pointing_game"][column] = _of_hits(sample)(sample.hit[mine], *of)
        for name in ("dice", "iou"):
            scores = getattr(sample, name)[mine]
            rounded = np.rint(scores * scale)
            total = rounded.sum(axis=0)
            point[f"{name}_fixed"][column] = total[sample.fixed] * unit
            point[f"{name}_best"][column] = total.max() * unit
            spreads[f"{name}_fixed"][column] = intervals.mean(scores[:, sample.fixed], *of, unseen)
            spreads[f"{name}_best"][column] = intervals.best(scores, *of, unseen)
            if folds_here[0] < 0:
                continue
            summed = 0.0
            for fold in np.unique(folds_here).tolist():
                held_out = folds_here == fold
                own = rounded[held_out].sum(axis=0)
                place = int((total - own).argmax())
                chosen[name][column, fold] = place
                of_pairs[name][mine[held_out]] = scores[held_out, place]
                summed += own[place]
            point[f"{name}_cross_fitted"][column] = summed * unit
            spreads[f"{name}_cross_fitted"][column] = intervals.cross_fitted(scores, folds_here, *of, unseen)
        spreads["dice_gap"][column] = intervals.gap(sample.dice[mine], sample.fixed, of_pairs["dice"][mine], *of)
    point["dice_optimism"] = point["dice_best"] - point["dice_cross_fitted"]
    point["dice_gap"] = point["dice_best"] - point["dice_fixed"]
    for name, found in recognised.items():
        point[name] = np.array([float("nan") if spread is None else spread.value for spread in found])
    return Measures(sample, point, spreads | recognised, fold_of, of_pairs, chosen)


def pair_folds(sample: Sample, folds: int) -> NDArray[np.int64]:
    """Return the fold of each scored pair, (P,); -1 where its finding occurs in one cluster only.

    Of each finding, the clusters with a scored pair are dealt out in the order of the SHA-256 digests of their names:
    an order that has nothing to do with the images, and that every run on these images shares. All pairs of a cluster
    are in one fold. With fewer clusters than folds, each is a fold of its own.
    """
    digests = [hashlib.sha256(name.encode()).digest() for name in sample.clusters]
    rank = np.argsort(sorted(range(len(digests)), key=digests.__getitem__))
    fold = np.full(len(sample.pair_column), -1, dtype=np.int64)
    for column in range(len(sample.findings)):
        mine = np.flatnonzero(sample.pair_column == column)
        clusters, place = np.unique(rank[sample.pair_cluster[mine]], return_inverse=True)
        if len(clusters) > 1:
            fold[mine] = place % min(folds, len(clusters))
    return fold


def exact_scale(count: float) -> float:
    """Return the power of two whose multiples scores are rounded to: 2**40 as in the run itself unless there are many.

    Twice the sum of so many scores from 0 to 1 is then a whole number of float64, whatever the order of summation.
    """
    return 2.0 ** min(40, 52 - ceil(log2(max(1.0, count))))


def recognition(sample: Sample) -> dict[str, list[Spread | None]]:
    """Return AUROC, average precision, F1 and accuracy of each finding.

    The values are those of `xbench.metrics.classification_scores`, and None where it gives None: AUROC and average
    precision need both labels, F1 a positive, accuracy an image whose label is known.
    """
    found: dict[str, list[Spread | None]] = {name: [] for name in RECOGNITION}
    for column in range(len(sample.findings)):
        known = sample.labels[:, column] >= 0
        present, scores = sample.labels[known, column] == 1, sample.probabilities[known, column]
        called, of = scores >= 0.5, (sample.image_cluster[known], len(sample.clusters))
        if np.isnan(scores).any():  # nobody asked
            for spreads in found.values():
                spreads.append(None)
            continue
        both = present.any() and not present.all()
        found["auroc"].append(intervals.auroc(present, scores, *of) if both else None)
        found["average_precision"].append(intervals.average_precision(present, scores, *of) if both else None)
        found["f1"].append(intervals.f1(present, called, *of) if present.any() else None)
        right = (called == present).astype(np.float64)
        found["accuracy"].append(intervals.share(right, *of) if len(present) else None)
    return found


def _combined(spreads: Sequence[Spread | None]) -> Limits | None:
    existing = [spread for spread in spreads if spread is not None]
    return intervals.combined(existing) if existing and len(existing) == len(spreads) else None


def _unseen(sample: Sample) -> float:
    """How much of a further hit means allow for: what no map decides, as areas of regions, holds no unseen hits."""
    return 0.0 if sample.chances else intervals.UNSEEN


def _of_hits(sample: Sample) -> Callable[[NDArray[np.float64], NDArray[np.int64], int], Spread]:
    """What gives the spread of a pointing game."""
    return partial(intervals.mean, unseen=0.0) if sample.chances else intervals.share
