"""Every number of a sample with its bootstrap distribution."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xbench.report.analysis import NUMBERS, Estimate
from xbench.report.statistics.cross_fitting import Grounding, grounding, pair_folds
from xbench.report.statistics.recognition import RECOGNITION, recognition
from xbench.report.statistics.resampling import chunks, estimate
from xbench.report.statistics.sample import Sample

__all__ = ["Group", "Measures", "macro", "measure"]


@dataclass(frozen=True)
class Group:
    """Some pairs of a sample, of whatever findings, whose mean scores are asked for.

    Attributes:
        pairs: Places among the P.
        numbers: Which of `pointing_game`, `dice_fixed` and `dice_cross_fitted`.
    """

    pairs: NDArray[np.int64]
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class Measures:
    """Numbers of a sample: on itself, and in each of B resamples.

    Attributes:
        sample: The sample.
        point: By key of `NUMBERS`, of each finding, (1, C); NaN where a number does not exist.
        resampled: Likewise, (B, C).
        folds: Fold of each scored pair, (P,), from `pair_folds`.
        fitted: Grounding of the sample itself, with the thresholds chosen and the scores of pairs.
        dice_curve: Macro Dice at each threshold, (B, T).
        groups: Of each group by number, value and interval.
    """

    sample: Sample
    point: dict[str, NDArray[np.float64]]
    resampled: dict[str, NDArray[np.float64]]
    folds: NDArray[np.int64]
    fitted: Grounding
    dice_curve: NDArray[np.float64]
    groups: tuple[dict[str, Estimate], ...] = field(default=())

    def findings(self) -> dict[str, dict[str, Estimate]]:
        """Return the numbers by finding, then by key of `NUMBERS`."""
        support = _support(self.sample)
        return {
            finding: {
                key: estimate(self.point[key][0, column], self.resampled[key][:, column], support[kind][column])
                for key, kind in ((key, number.group) for key, number in NUMBERS.items())
            }
            for column, finding in enumerate(self.sample.findings)
        }

    def macro(self) -> dict[str, Estimate]:
        """Return the means over findings, by key of `NUMBERS`."""
        clusters = len(self.sample.clusters)
        return {key: estimate(macro(self.point, key)[0], macro(self.resampled, key), clusters) for key in NUMBERS}

    def curve(self) -> tuple[Estimate, ...]:
        """Return macro Dice at each threshold."""
        clusters = len(self.sample.clusters)
        columns = zip(self.fitted.dice_curve[0], self.dice_curve.T, strict=True)
        return tuple(estimate(value, resampled, clusters) for value, resampled in columns)


def macro(numbers: dict[str, NDArray[np.float64]], key: str) -> NDArray[np.float64]:
    """Return the mean over the findings where a number exists, (B,); NaN where it exists for none.

    As in a run, the recognition scores are averaged over the same findings, those with both labels. A resample in which
    a finding has lost its regions, or one of its labels, leaves the finding out.

    Args:
        numbers: By key of `NUMBERS`, (B, C).
        key: Which of them.
    """
    values = numbers[key]
    exists = ~np.isnan(numbers["auroc"] if key in RECOGNITION else values)
    count = exists.sum(axis=1)
    total = np.where(exists, values, 0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)


def measure(sample: Sample, draws: NDArray[np.int16], folds: int, groups: tuple[Group, ...] = ()) -> Measures:
    """Compute every number of a sample and its bootstrap distribution.

    Args:
        sample: The sample.
        draws: How often each cluster is drawn, (K, B), from `draw`.
        folds: Folds of cross-fitting.
        groups: Pairs whose mean scores are asked for besides.
    """
    pair_fold = pair_folds(sample, folds)
    ones = np.ones((len(sample.clusters), 1))
    fitted = grounding(sample, pair_fold, ones)
    point = {**fitted.numbers, **recognition(sample, ones)}
    point_groups = _group_means(sample, fitted, groups, ones)
    parts, curves, group_parts = [], [], []
    widest = max(len(sample.hit), 2 * len(sample.clusters), 4 * sample.dice.shape[1])
    for weights in chunks(draws, widest):
        part = grounding(sample, pair_fold, weights)
        parts.append({**part.numbers, **recognition(sample, weights)})
        curves.append(part.dice_curve)
        group_parts.append(_group_means(sample, part, groups, weights))
    estimates = []
    for place, group in enumerate(groups):
        clusters = len(np.unique(sample.pair_cluster[group.pairs]))
        estimates.append(
            {
                name: estimate(
                    point_groups[place][name][0], np.concatenate([part[place][name] for part in group_parts]), clusters
                )
                for name in group.numbers
            }
        )
    return Measures(
        sample=sample,
        point=point,
        resampled={key: np.concatenate([part[key] for part in parts]) for key in point},
        folds=pair_fold,
        fitted=fitted,
        dice_curve=np.concatenate(curves),
        groups=tuple(estimates),
    )


def _group_means(
    sample: Sample, fitted: Grounding, groups: tuple[Group, ...], weights: NDArray[np.float64]
) -> list[dict[str, NDArray[np.float64]]]:
    means = []
    for group in groups:
        scores = {
            "pointing_game": sample.hit[group.pairs],
            "dice_fixed": sample.dice[group.pairs, sample.fixed],
            "dice_cross_fitted": fitted.dice_of_pairs[:, group.pairs],
        }
        drawn = weights[sample.pair_cluster[group.pairs]].T
        means.append({name: _weighted_mean(scores[name], drawn) for name in group.numbers})
    return means


def _weighted_mean(scores: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means over the pairs that have a score, (B,), of scores (P,) or (B, P) with weights (B, P)."""
    exists = ~np.isnan(scores)
    total = (np.where(exists, scores, 0) * weights).sum(axis=1)
    count = (exists * weights).sum(axis=1)
    return np.divide(total, count, out=np.full(len(weights), np.nan), where=count > 0)


def _support(sample: Sample) -> dict[str, list[int]]:
    """How many clusters each finding's numbers rest on: clusters with a pair; the rarer of those with each label."""

    def clusters(rows: NDArray[np.int64]) -> int:
        return len(np.unique(sample.image_cluster[rows]))

    columns = range(len(sample.findings))
    return {
        "grounding": [clusters(sample.pair_image[sample.pair_column == column]) for column in columns],
        "classification": [
            min(clusters(np.flatnonzero(sample.labels[:, column] == label)) for label in (0, 1)) for column in columns
        ],
    }
