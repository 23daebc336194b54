"""Paired tests: could the difference between two runs on the same images be chance?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import permutation_test, rankdata

from xbench.report.statistics.measures import Measures
from xbench.report.statistics.resampling import generator
from xbench.report.statistics.sample import Sample

__all__ = ["TESTED", "contributions", "holm", "macro_contributions", "sign_flip_tests"]

TESTED = ("pointing_game", "dice_cross_fitted", "iou_cross_fitted", "dice_fixed", "auroc")
"""Numbers that runs are compared by. Best-on-test numbers are not among them: each would be tested at the threshold
that flatters it."""

_EXCHANGES = 9_999
_SMALLEST_P = 0.02
"""Where the smallest corrected p-value must be able to lie."""
_SIGNS_AT_A_TIME = 4_000_000
_ELEMENTS_OF_A_NULL_DISTRIBUTION = 30_000_000


def contributions(first: Measures, second: Measures, number: str) -> NDArray[np.float64]:
    """Return what each cluster adds to the difference of a number, first less second, per finding, (K, C).

    A column sums to the difference of that finding; it is NaN where the number does not exist. Exchanging the two runs
    within a cluster changes the sign of its row, so that a test by exchange (sign flip) needs the rows only.

    - Means over pairs (pointing game, Dice, IoU): the differences of the cluster's pairs over the number of pairs.
      Cross-fitted thresholds are those chosen on all of the other folds' images and stay while runs are exchanged.
    - AUROC: the scales of two models differ, so scores are first replaced by their midranks within each model, then
      exchanged (Bandos, Rockette and Gur 2005, Statistics in Medicine 24, 2873, after Venkatraman and Begg 1996). The
      AUROC difference after any exchange, computed anew, is again a sum with one sign per cluster: for a positive,
      half the difference between its two ranks' shares of negatives below, over the pooled negatives of both models,
      likewise for a negative; see `_auroc_contributions`.

    Args:
        first: Of one run, on a sample from `common_samples`.
        second: Of the other.
        number: One of `TESTED`.
    """
    sample = first.sample
    if number == "auroc":
        columns = [_auroc_contributions(sample, second.sample, column) for column in range(len(sample.findings))]
        return np.stack(columns, axis=1)
    difference = _pair_scores(first, number) - _pair_scores(second, number)
    shape = len(sample.clusters), len(sample.findings)
    place = np.ravel_multi_index((sample.pair_cluster, sample.pair_column), shape)
    total = np.bincount(place, np.nan_to_num(difference), minlength=shape[0] * shape[1]).reshape(shape)
    counts = np.bincount(sample.pair_column[~np.isnan(difference)], minlength=shape[1])
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, total / counts, np.nan)


def macro_contributions(first: Measures, second: Measures, number: str) -> NDArray[np.float64] | None:
    """Return what each cluster adds to the difference of the means over findings, (K,); None where there is none."""
    columns = contributions(first, second, number)
    exists = ~np.isnan(columns).any(axis=0)
    return columns[:, exists].mean(axis=1) if exists.any() else None


def sign_flip_tests(parts: Sequence[NDArray[np.float64]], comparisons: int, seed: int, ground: str) -> list[float]:
    """Return two-sided p-values of sums of contributions, by exchanging two runs in randomly chosen clusters.

    `scipy.stats.permutation_test` draws the exchanges; all of them where there are few. Tests on equally many clusters
    share them. Clusters that add nothing are left out: exchanging there changes nothing.

    Args:
        parts: Of each test what every cluster adds to the difference, (K,).
        comparisons: By how many tests a p-value may be multiplied afterwards; more of them need more exchanges for a
            small p-value to stay one.
        seed: Any whole number that is not negative.
        ground: What the tests are about, as words; other words draw other exchanges.
    """
    exchanges = max(_EXCHANGES, round(2 * comparisons / _SMALLEST_P))
    columns = max(1, _ELEMENTS_OF_A_NULL_DISTRIBUTION // exchanges)
    p_values = [1.0] * len(parts)
    for length in sorted({len(part) for part in parts}):
        places = [place for place, part in enumerate(parts) if len(part) == length]
        for start in range(0, len(places), columns):
            some = places[start : start + columns]
            found = _sign_flip([parts[place] for place in some], exchanges, generator(seed, "exchanges", ground))
            for place, p in zip(some, found, strict=True):
                p_values[place] = p
    return p_values


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number after Holm (1979, Scandinavian Journal of Statistics 6, 65).

    Holm bounds the chance of one or more false differences, whatever the dependence between tests; comparisons of the
    same models on the same images do depend. Controlling the share of false differences instead
    (`scipy.stats.false_discovery_control`) would call a model better more easily than a table of winners should.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _sign_flip(parts: Sequence[NDArray[np.float64]], exchanges: int, random: np.random.Generator) -> list[float]:
    # Multiples of a power of two, so that sums are exact and equal differences are seen as equal.
    values = np.rint(np.column_stack(parts) * 2.0**48)
    values = values[values.any(axis=1)]
    if not len(values):
        return [1.0] * len(parts)
    # To scipy the data are the signs; that the statistic gives a number per test does not trouble it.
    outcome = permutation_test(
        (np.ones(len(values)),),
        lambda signs, axis: signs @ values,
        permutation_type="samples",
        vectorized=True,
        n_resamples=exchanges,
        batch=max(1, _SIGNS_AT_A_TIME // len(values)),
        rng=random,
    )
    return [float(p) for p in np.atleast_1d(outcome.pvalue)]


def _pair_scores(measures: Measures, number: str) -> NDArray[np.float64]:
    sample = measures.sample
    if number == "pointing_game":
        return sample.hit
    if number == "dice_fixed":
        return sample.dice[:, sample.fixed]
    return (measures.fitted.dice_of_pairs if number == "dice_cross_fitted" else measures.fitted.iou_of_pairs)[0]


def _auroc_contributions(first: Sample, second: Sample, column: int) -> NDArray[np.float64]:
    """What each cluster adds to the difference in AUROC, (K,); NaN without both labels.

    With s(i, j) = 1 if a positive i scores above a negative j, 0 below, 1/2 tied, x and y the ranks in the two models,
    and e = +1 or -1 as an image is exchanged or not, the difference of AUROCs after exchange is the mean over i, j of

        (1 + e_i e_j) / 2 * e_i (s(x_i, x_j) - s(y_i, y_j)) + (1 - e_i e_j) / 2 * e_i (s(x_i, y_j) - s(y_i, x_j)),

    and since e_i e_j e_i = e_j, that is a sum of terms with e_i and of terms with e_j.
    """
    label = first.labels[:, column]
    positive, negative = label == 1, label == 0
    if not positive.any() or not negative.any():
        return np.full(len(first.clusters), np.nan)
    known = label >= 0
    x, y = (np.full(len(label), np.nan) for _ in range(2))
    x[known] = rankdata(first.probabilities[known, column])
    y[known] = rankdata(second.probabilities[known, column])

    share = np.zeros(len(label))
    below = _pooled(x[negative], y[negative])
    share[positive] = (below(x[positive]) - below(y[positive])) / positive.sum()
    below = _pooled(x[positive], y[positive])
    share[negative] = (below(y[negative]) - below(x[negative])) / negative.sum()
    summed = np.bincount(first.image_cluster, share, minlength=len(first.clusters))
    return np.asarray(summed, dtype=np.float64)


def _pooled(first: NDArray[np.float64], second: NDArray[np.float64]) -> Callable[..., NDArray[np.float64]]:
    """Return the function that gives the share of all these values below a value, tied ones counting one half."""
    values = np.sort(np.concatenate([first, second]))

    def below(value: NDArray[np.float64]) -> NDArray[np.float64]:
        places = np.searchsorted(values, value) + np.searchsorted(values, value, "right")
        return np.asarray(places, dtype=np.float64) / (2 * len(values))

    return below
