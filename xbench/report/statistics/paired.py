"""Paired tests: could the difference between two runs on the same images be chance?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import ceil, comb, log2

import numpy as np
from numpy.typing import NDArray

from xbench.report.schema import WORDS, Comparison, Estimate
from xbench.report.statistics import intervals
from xbench.report.statistics.intervals import share_below
from xbench.report.statistics.measures import Measures, estimate, macro_columns, measure
from xbench.report.statistics.sample import Sample, common_samples
from xbench.scoring.numbers import holm

TESTED = ("pointing_game", "dice_cross_fitted", "iou_cross_fitted", "dice_fixed", "auroc")
"""Numbers that runs are compared by; none at the threshold best on the same images, which flatters each run."""
SIGNIFICANT = 0.05
"""Largest corrected p-value of a difference; above it, runs are ties."""
Pairing = Callable[[str, str], tuple[Measures, Measures] | None]
"""Returns the measures of two runs, by label, on what both scored; None without any."""
_EXCHANGES = 9_999
_SMALLEST_P = 0.02
"""The smallest corrected p-value must be able to be this low."""
_SIGNS_AT_A_TIME = 2_000_000
_FEW = 14
"""Most clusters for which every exchange is computed; a table of the differences has 64 kB."""
_STEP = 256
"""Exchanges computed together; their sums at every threshold should fit into a core's cache."""
_ROUNDING = 1e-12
"""Differences this close are equal: far above the rounding of their sums, far below one image's share."""


def compare(
    labels: Sequence[str], on_common: Pairing, seed: int, ground: str, begin: Callable[[str], None]
) -> tuple[Comparison, ...]:
    """Compare every two runs by every number of `TESTED`, macro over the findings where both have it.

    `ground` names the dataset and split; `begin` is called with the names of each two runs.
    """
    found: list[Comparison] = []
    tests: dict[int, PairedTest] = {}
    for first, second in combinations(labels, 2):
        begin(f"{first} against {second}")
        if (both := on_common(first, second)) is None:
            continue
        one, other = both
        # Between single masks there are no thresholds to choose, and the cross-fitted score is that at 0.5.
        repeated = "dice_cross_fitted" if one.sample.one_mask and other.sample.one_mask else ""
        for number in TESTED:
            if number == repeated or not _shared(one, other, number):
                continue
            untested = ""
            if (test := paired_test(one, other, number)) is None:
                untested = "they swept different numbers of thresholds, of which none can be chosen for both"
            elif len(one.sample.clusters) > 1:
                tests[len(found)] = test
            else:
                untested = f"they share one of the {one.sample.clustered_by} only, and a paired test needs two at least"
            difference = macro_difference(one, other, number)
            images = _images(one.sample, number, _shared(one, other, number))
            found.append(Comparison(number, first, second, images, difference, None, None, untested))
    p_values = dict(zip(tests, exchange_tests([*tests.values()], comb(len(labels), 2), seed, ground), strict=True))
    for number in TESTED:
        tested = [place for place in tests if found[place].number == number]
        corrected = holm([p_values[place] for place in tested])
        for place, p_adjusted in zip(tested, corrected, strict=True):
            found[place] = replace(found[place], p=p_values[place], p_adjusted=p_adjusted)
    return tuple(sorted(found, key=lambda comparison: TESTED.index(comparison.number)))


def _images(sample: Sample, number: str, columns: Sequence[int]) -> int:
    """Return how many images have a label (AUROC) or a scored pair of the compared findings."""
    if number == "auroc":
        return int((sample.labels[:, columns] >= 0).any(axis=1).sum())
    return len(np.unique(sample.pair_image[np.isin(sample.pair_column, columns)]))


def common_measures(first: Measures, second: Measures, folds: int) -> tuple[Measures, Measures] | None:
    """Return two runs' numbers on the images and findings of both; None without any."""
    samples = common_samples(first.sample, second.sample)
    if samples is None or samples[0] is first.sample:
        return samples and (first, second)
    return measure(samples[0], folds), measure(samples[1], folds)


def tied_with_best(
    macros: Mapping[str, Mapping[str, Estimate]], comparisons: Sequence[Comparison]
) -> dict[str, frozenset[str]]:
    """Return by number the labels of the best run and of those not significantly different from it."""
    tied = {}
    for number in (*TESTED, *WORDS):
        # Boxes alone have no cross-fitted scores: the fixed ones are equal.
        names = (number, number.replace("cross_fitted", "fixed"))
        known = ({label: of[name].value for label, of in macros.items() if name in of} for name in names)
        found = ({label: value for label, value in of.items() if value is not None} for of in known)
        if values := next(filter(None, found), None):
            best = max(values, key=lambda label: values[label])
            tests = (one for one in comparisons if one.number == number and best in (one.first, one.second))
            p_values = {frozenset((one.first, one.second)): one.p_adjusted for one in tests}
            ties = (pair for pair, p in p_values.items() if p is not None and p > SIGNIFICANT)
            tied[number] = frozenset({best}).union(*ties)
    return tied


def macro_difference(first: Measures, second: Measures, number: str) -> Estimate:
    """Return the difference of the means over the findings where both have a number; there must be one."""
    columns = [c for c in macro_columns(first.point, number) if c in macro_columns(second.point, number)]
    value = float(np.mean([first.point[number][c] - second.point[number][c] for c in columns]))
    of_both = [[spread for c in columns if (spread := one.spreads[number][c])] for one in (first, second)]
    return estimate(value, intervals.difference(*of_both))


@dataclass(frozen=True)
class PairedTest:
    """The difference of a number between two runs, as a function of the exchanged clusters.

    `difference` maps signs of exchanges (E, K), -1 where a cluster is exchanged and else 1, to differences (E,); an
    exchange can change it only in the clusters of `matters` (K,).
    """

    matters: NDArray[np.bool_]
    difference: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def paired_test(first: Measures, second: Measures, number: str, finding: str | None = None) -> PairedTest | None:
    """Return the test of a number of `TESTED`, on the common samples of two runs; None if it cannot be tested.

    It is of a finding, or of the mean over the findings that have the number in both runs. Cross-fitted thresholds
    depend on the images of other folds, so they are chosen again after each exchange, and both runs must share the
    thresholds. The other numbers are sums over clusters, and an exchange only changes signs.
    """
    columns = [c for c in _shared(first, second, number) if finding in (None, first.sample.findings[c])]
    refitted = number.endswith("_cross_fitted")
    # The one mask of an answer goes with any number of thresholds.
    thresholds = {first.sample.dice.shape[1], second.sample.dice.shape[1]} - {1}
    if not columns or (refitted and len(thresholds) > 1):
        return None
    if refitted:
        refits = [_refit(first, second, number.partition("_")[0], column) for column in columns]
        matters = np.any([refit.matters for refit in refits], axis=0)
        return PairedTest(matters, lambda signs: np.mean([refit.difference(signs) for refit in refits], axis=0))
    return weighed(contributions(first, second, number)[:, columns].mean(axis=1))


def weighed(part: NDArray[np.float64]) -> PairedTest:
    """Return the test of a sum of what each cluster adds (K,)."""
    return PairedTest(part != 0, lambda signs: np.asarray(signs @ part))


def _shared(first: Measures, second: Measures, number: str) -> list[int]:
    return [int(column) for column in np.flatnonzero(~np.isnan(first.point[number] - second.point[number]))]


def contributions(first: Measures, second: Measures, number: str) -> NDArray[np.float64]:
    """Return what each cluster adds to the difference of a number, first minus second, per finding (K, C).

    A column sums to the difference of the finding, or is NaN without the number.
    """
    sample = first.sample
    if number == "auroc":
        columns = [_auroc_contributions(sample, second.sample, column) for column in range(len(sample.findings))]
        return np.stack(columns, axis=1)
    a, b = (of.hit if number == "pointing_game" else of.dice[:, of.fixed] for of in (sample, second.sample))
    shape = len(sample.clusters), len(sample.findings)
    place = np.ravel_multi_index((sample.pair_cluster, sample.pair_column), shape)
    total = np.bincount(place, a - b, minlength=shape[0] * shape[1]).reshape(shape)
    counts = np.bincount(sample.pair_column, minlength=shape[1])
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, total / counts, np.nan)


def exchange_tests(tests: Sequence[PairedTest], comparisons: int, seed: int, ground: str) -> list[float]:
    """Return the two-sided p-values of paired tests, by exchanging two runs in randomly chosen clusters.

    p is the share of exchanges whose difference is at least as far from zero: of all exchanges if they are few, else of
    random ones and the one found (Phipson and Smyth 2010, Statistical Applications in Genetics and Molecular Biology 9,
    39). Tests on equally many clusters share the random ones. A p-value may be multiplied by up to `comparisons`
    afterwards, which needs more exchanges. Another `ground` (words on what is tested) or `seed` draws other exchanges.
    """
    exchanges = max(_EXCHANGES, round(2 * comparisons / _SMALLEST_P))
    p_values = [1.0] * len(tests)
    sampled: dict[int, list[int]] = {}
    for place, test in enumerate(tests):
        if 1 << int(test.matters.sum()) <= exchanges:
            p_values[place] = float(_as_far([test], _every_exchange(test.matters))[0]) / (1 << int(test.matters.sum()))
        else:
            sampled.setdefault(len(test.matters), []).append(place)
    for clusters, places in sampled.items():
        digest = hashlib.sha256(f"exchanges\0{ground}".encode()).digest()
        random = np.random.default_rng([seed, *np.frombuffer(digest, dtype=np.uint32).tolist()])
        sizes = (min(_at_a_time(clusters), exchanges - done) for done in range(0, exchanges, _at_a_time(clusters)))
        heads = (random.integers(0, 2, (size, clusters), dtype=np.int8) for size in sizes)
        far = _as_far([tests[place] for place in places], (2 * part.astype(np.float64) - 1 for part in heads))
        for place, count in zip(places, far.tolist(), strict=True):
            p_values[place] = float((count + 1) / (exchanges + 1))
    return p_values


def _as_far(tests: Sequence[PairedTest], exchanges: Iterable[NDArray[np.float64]]) -> NDArray[np.int64]:
    found = [abs(test.difference(np.ones((1, len(test.matters))))[0]) - _ROUNDING for test in tests]
    count = np.zeros(len(tests), np.int64)
    for part in exchanges:
        count += [int((abs(test.difference(part)) >= least).sum()) for test, least in zip(tests, found, strict=True)]
    return count


@lru_cache(maxsize=8)
def _all_signs(clusters: int) -> NDArray[np.float64]:
    """Return every exchange of so many clusters (E, clusters)."""
    return np.asarray(1.0 - 2 * (np.arange(1 << clusters)[:, None] >> np.arange(clusters) & 1), np.float64)


def _every_exchange(matters: NDArray[np.bool_]) -> Iterator[NDArray[np.float64]]:
    every, step = _all_signs(int(matters.sum())), _at_a_time(len(matters))
    for some in np.split(every, range(step, len(every), step)):
        signs = np.ones((len(some), len(matters)))
        signs[:, matters] = some
        yield signs


def _at_a_time(clusters: int) -> int:
    """Return how many exchanges to hold at once: eights, which numpy draws from one number, so draws do not change."""
    return 8 * max(1, min(1024, _SIGNS_AT_A_TIME // (8 * clusters)))


def _refit(first: Measures, second: Measures, name: str, column: int) -> PairedTest:
    """Return the test of a cross-fitted number of one finding, with thresholds chosen again after every exchange.

    With a and b the scores of a pair in the two runs and s its cluster's sign, after the exchange the first run has (a
    + b + s (a - b)) / 2 and the second (a + b - s (a - b)) / 2. So the sums over a fold at every threshold are a
    product of the signs with the summed a - b of its clusters. With few clusters, the difference after each exchange is
    computed once, because the threshold of a fold depends on the other folds alone.
    """
    sample, folds = first.sample, first.folds
    mine = np.flatnonzero(sample.pair_column == column)
    # Multiples of a power of two, so that twice any sum is a whole float64 and tied thresholds stay tied.
    scale = 2.0 ** min(40, 52 - ceil(log2(len(mine))))
    scores = [np.rint(getattr(measures.sample, name)[mine] * scale) for measures in (first, second)]
    a, b = np.broadcast_arrays(*scores)
    keys, place = np.unique(folds[mine] * len(sample.clusters) + sample.pair_cluster[mine], return_inverse=True)
    fold_of, clusters = np.divmod(keys, len(sample.clusters))  # fold by fold
    starts = np.flatnonzero(np.diff(fold_of, prepend=-2))
    apart, together = np.zeros((2, len(clusters), a.shape[1]))
    np.add.at(apart, place, a - b)
    np.add.at(together, place, a + b)
    together = np.add.reduceat(together, starts)
    matters = np.zeros(len(sample.clusters), dtype=bool)
    matters[clusters] = apart.any(axis=1)
    total, whole = together.sum(axis=0), 2 * scale * len(mine)
    if len(clusters) <= _FEW:
        first_run = np.zeros(1 << len(clusters))
        for both, start, end in zip(together, starts, [*starts[1:], len(clusters)], strict=True):
            others = np.delete(apart, slice(start, end), axis=0)
            best = (total - both + _all_signs(len(others)) @ others).argmax(axis=1).reshape(-1, 1 << start)
            own = both + _all_signs(end - start) @ apart[start:end]
            first_run.reshape(len(best), len(own), -1)[:] += own[:, best].swapaxes(0, 1)
        # An exchange gives the second run what its opposite gives the first, so the last cluster may stay.
        of_patterns = (first_run - first_run[::-1])[: len(first_run) // 2] / whole
        bits = np.zeros(len(sample.clusters))
        bits[clusters[:-1]] = 2.0 ** np.arange(len(clusters) - 1)

        def looked_up(signs: NDArray[np.float64]) -> NDArray[np.float64]:
            last = signs[:, clusters[-1]]
            pattern = ((bits.sum() - last * (signs @ bits)) / 2).astype(np.int64)
            return np.asarray(last * of_patterns[pattern])

        return PairedTest(matters, looked_up)
    kept = _ever_best(together, np.split(apart, starts[1:]))
    total, together, parts = total[kept], together[:, kept], np.split(apart[:, kept], starts[1:])

    def some(signs: NDArray[np.float64]) -> NDArray[np.float64]:
        of = [own @ part for own, part in zip(np.split(signs, starts[1:], axis=1), parts, strict=True)]
        moved, rows, found = sum(of), np.arange(len(signs)), np.zeros(len(signs))
        for both, moves in zip(together, of, strict=True):
            rest, moved_rest = total - both, moved - moves
            for sign, others in ((1, rest + moved_rest), (-1, rest - moved_rest)):
                best = others.argmax(axis=1)
                found += sign * both[best] + moves[rows, best]
        return found / whole

    def difference(signs: NDArray[np.float64]) -> NDArray[np.float64]:
        signs = signs[:, clusters]
        return np.concatenate([some(signs[start : start + _STEP]) for start in range(0, len(signs), _STEP)])

    return PairedTest(matters, difference)


def _ever_best(together: NDArray[np.float64], apart: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Return the thresholds that can be the first best one of all folds but one, after some exchange."""
    thresholds = np.arange(together.shape[1])
    # The least lead of each threshold over each other one, because exchanges move the sums by no more than `moves`.
    sums = together[:, :, None] - together[:, None]
    moves = np.stack([sum(abs(of[:, None] - of) for of in parts) for parts in apart])
    ahead = (sums.sum(axis=0) - sums) - (moves.sum(axis=0) - moves)
    beaten = (ahead > 0) | ((ahead == 0) & (thresholds[:, None] < thresholds))
    return np.flatnonzero(~beaten.any(axis=1).all(axis=0))


def _auroc_contributions(first: Sample, second: Sample, column: int) -> NDArray[np.float64]:
    """Return what each cluster adds to the difference in AUROC (K,); NaN without both labels.

    The scales of two models differ, so scores are replaced by their midranks within each model, then exchanged (Bandos,
    Rockette and Gur 2005, Statistics in Medicine 24, 2873, after Venkatraman and Begg 1996). The difference after any
    exchange is again a sum with one sign per cluster. With s(i, j) = 1 if a positive i scores above a negative j, 0
    below, 1/2 tied, x and y the ranks in the two models, and e = -1 if an image is exchanged, else 1, it is the mean
    over i, j of

    (1 + e_i e_j) / 2 * e_i (s(x_i, x_j) - s(y_i, y_j)) + (1 - e_i e_j) / 2 * e_i (s(x_i, y_j) - s(y_i, x_j)),

    and since e_i e_j e_i = e_j, that is a sum of terms with e_i and of terms with e_j.
    """
    label = first.labels[:, column]
    positive, negative = label == 1, label == 0
    if not positive.any() or not negative.any():
        return np.full(len(first.clusters), np.nan)
    known = label >= 0
    x, y = np.full((2, len(label)), np.nan)
    for ranks, scores in ((x, first.probabilities[known, column]), (y, second.probabilities[known, column])):
        ranks[known] = share_below(scores, scores)
    share = np.zeros(len(label))
    for mine, others, sign in ((positive, negative, 1), (negative, positive, -1)):
        pooled = np.concatenate([x[others], y[others]])
        share[mine] = sign * (share_below(pooled, x[mine]) - share_below(pooled, y[mine])) / mine.sum()
    summed = np.bincount(first.image_cluster, share, minlength=len(first.clusters))
    return np.asarray(summed, dtype=np.float64)
