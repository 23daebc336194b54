"""Every number of a sample, with how far it may be from the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from xbench.report.schema import NUMBERS, Estimate
from xbench.report.statistics import intervals
from xbench.report.statistics.cross_fitting import GROUNDING, Grounding, grounding, pair_folds
from xbench.report.statistics.intervals import Limits, Spread
from xbench.report.statistics.sample import Sample

RECOGNITION = ("auroc", "average_precision", "f1", "accuracy")


@dataclass(frozen=True)
class Measures:
    """Numbers of a sample.

    Attributes:
        point: By key of `NUMBERS`, of each finding, (C,); NaN where a number does not exist.
        spreads: By key of `NUMBERS`, of each finding how far the number may be from the truth; None where it does not
            exist, and for optimism, which has no interval.
        folds: Fold of each scored pair, (P,), from `pair_folds`.
        fitted: Grounding, with the thresholds chosen and the scores of pairs.
    """

    sample: Sample
    point: Mapping[str, NDArray[np.float64]]
    spreads: Mapping[str, Sequence[Spread | None]]
    folds: NDArray[np.int64]
    fitted: Grounding

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
        columns = {key: macro_columns(self.point, key) for key in NUMBERS}
        return {
            key: estimate(macro(self.point, key), _combined([self.spreads[key][column] for column in columns[key]]))
            for key in NUMBERS
        }

    def curve(self) -> tuple[Estimate, ...]:
        """Return macro Dice at each threshold."""
        sample, found = self.sample, []
        of_findings = [np.flatnonzero(sample.pair_column == column) for column in np.unique(sample.pair_column)]
        unseen = _unseen(sample)
        for scores in sample.dice.T:
            spreads = [
                intervals.mean(scores[mine], sample.pair_cluster[mine], len(sample.clusters), unseen)
                for mine in of_findings
            ]
            value = float(np.mean([spread.value for spread in spreads])) if spreads else float("nan")
            found.append(estimate(value, _combined(spreads)))
        return tuple(found)

    def means(self, pairs: NDArray[np.int64], numbers: Sequence[str]) -> dict[str, Estimate]:
        """Return mean scores of some pairs of any findings.

        `pairs` are places among the P; `numbers` some of `pointing_game`, `dice_fixed` and `dice_cross_fitted`.
        """
        sample, means = self.sample, {}
        scores = {
            "pointing_game": sample.hit,
            "dice_fixed": sample.dice[:, sample.fixed],
            "dice_cross_fitted": self.fitted.of_pairs["dice"],
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
    """Return the findings of which a mean over findings is one: where the number exists.

    As in a run, the recognition scores are averaged over the same findings, those with both labels. `numbers` are by
    key of `NUMBERS`, (C,).
    """
    return [int(c) for c in np.flatnonzero(~np.isnan(numbers["auroc"] if key in RECOGNITION else numbers[key]))]


def macro(numbers: Mapping[str, NDArray[np.float64]], key: str) -> float:
    """Return the mean over the findings where a number exists; NaN where it exists for none."""
    columns = macro_columns(numbers, key)
    return float(numbers[key][columns].mean()) if columns else float("nan")


def measure(sample: Sample, folds: int) -> Measures:
    """Compute every number of a sample, with thresholds cross-fitted in so many folds."""
    pair_fold = pair_folds(sample, folds)
    fitted = grounding(sample, pair_fold)
    of_images = recognition(sample)
    nan = float("nan")
    recognised = {
        name: np.array([nan if spread is None else spread.value for spread in spreads])
        for name, spreads in of_images.items()
    }
    return Measures(
        sample=sample,
        point={**fitted.numbers, **recognised},
        spreads={**_grounding_spreads(sample, pair_fold, fitted), **of_images},
        folds=pair_fold,
        fitted=fitted,
    )


def recognition(sample: Sample) -> dict[str, list[Spread | None]]:
    """Return AUROC, average precision, F1 and accuracy of each finding.

    The values are those of `xbench.metrics.classification_scores`, and None where it gives None: AUROC and average
    precision need both labels, F1 a positive, accuracy an image whose label is known.
    """
    found: dict[str, list[Spread | None]] = {name: [] for name in RECOGNITION}
    for column in range(len(sample.findings)):
        known = sample.labels[:, column] >= 0
        present, scores = sample.labels[known, column] == 1, sample.probabilities[known, column]
        called, clusters, count = scores >= 0.5, sample.image_cluster[known], len(sample.clusters)
        both = present.any() and not present.all()
        for name, compute in (("auroc", intervals.auroc), ("average_precision", intervals.average_precision)):
            found[name].append(compute(present, scores, clusters, count) if both else None)
        found["f1"].append(intervals.f1(present, called, clusters, count) if present.any() else None)
        right = (called == present).astype(np.float64)
        found["accuracy"].append(intervals.share(right, clusters, count) if len(present) else None)
    return found


def _combined(spreads: Sequence[Spread | None]) -> Limits | None:
    existing = [spread for spread in spreads if spread is not None]
    return intervals.combined(existing) if existing and len(existing) == len(spreads) else None


def _grounding_spreads(
    sample: Sample, pair_fold: NDArray[np.int64], fitted: Grounding
) -> dict[str, list[Spread | None]]:
    found: dict[str, list[Spread | None]] = {name: [None] * len(sample.findings) for name in GROUNDING}
    unseen = _unseen(sample)
    for column in np.unique(sample.pair_column).tolist():
        mine = np.flatnonzero(sample.pair_column == column)
        folds, of = pair_fold[mine], (sample.pair_cluster[mine], len(sample.clusters))
        found["pointing_game"][column] = _of_hits(sample)(sample.hit[mine], *of)
        found["dice_gap"][column] = intervals.gap(sample.dice[mine], sample.fixed, fitted.of_pairs["dice"][mine], *of)
        for name in ("dice", "iou"):
            curves = getattr(sample, name)[mine]
            found[f"{name}_best"][column] = intervals.best(curves, *of, unseen)
            found[f"{name}_fixed"][column] = intervals.mean(curves[:, sample.fixed], *of, unseen)
            if folds[0] >= 0:
                found[f"{name}_cross_fitted"][column] = intervals.cross_fitted(curves, folds, *of, unseen)
    return found


def _unseen(sample: Sample) -> float:
    """How much of a further hit means allow for: what no map decides, as areas of regions, holds no unseen hits."""
    return 0.0 if sample.chances else intervals.UNSEEN


def _of_hits(sample: Sample) -> Callable[[NDArray[np.float64], NDArray[np.int64], int], Spread]:
    """What gives the spread of a pointing game."""
    return partial(intervals.mean, unseen=0.0) if sample.chances else intervals.share
