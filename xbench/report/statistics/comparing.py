"""Every two runs of a dataset compared, and which of them are as good as the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np

from xbench.report.schema import Comparison, Estimate
from xbench.report.statistics import intervals
from xbench.report.statistics.measures import Measures, estimate, macro_columns, measure
from xbench.report.statistics.paired import TESTED, PairedTest, exchange_tests, holm, paired_test
from xbench.report.statistics.sample import common_samples

__all__ = ["SIGNIFICANT", "Pairing", "common_measures", "compare", "macro_difference", "tied_with_best"]

SIGNIFICANT = 0.05
"""Corrected p-values up to this are differences; above it, runs are ties."""

Pairing = Callable[[str, str], tuple[Measures, Measures] | None]
"""Gives the measures of two runs, by label, on what both scored; None if that is nothing."""


def compare(
    labels: Sequence[str], on_common: Pairing, seed: int, ground: str, begin: Callable[[str], None]
) -> tuple[Comparison, ...]:
    """Compare every two runs by every number of `TESTED`, macro over the findings where both have it.

    Args:
        labels: Of the runs.
        on_common: Gives the measures of two runs, by label, on what both scored.
        seed: Of exchanges.
        ground: Dataset and split.
        begin: Told which two runs come next.
    """
    found: list[Comparison] = []
    tests: dict[int, PairedTest] = {}
    for first, second in combinations(labels, 2):
        begin(f"{first} against {second}")
        both = on_common(first, second)
        if both is None:
            continue
        one, other = both
        for number in TESTED:
            test = paired_test(one, other, number)
            if test is None:
                continue
            difference, images = macro_difference(one, other, number), len(one.sample.image_ids)
            untested = ""
            if len(one.sample.clusters) > 1:
                tests[len(found)] = test
            else:
                untested = f"they share one of the {one.sample.clustered_by} only, and a paired test needs two at least"
            found.append(Comparison(number, first, second, images, difference, None, None, untested))
    p_values = dict(zip(tests, exchange_tests([*tests.values()], comb(len(labels), 2), seed, ground), strict=True))
    comparisons: list[Comparison] = []
    for number in TESTED:
        places = [place for place, comparison in enumerate(found) if comparison.number == number]
        tested = [place for place in places if place in p_values]
        adjusted = dict(zip(tested, holm([p_values[place] for place in tested]), strict=True))
        comparisons += [
            replace(found[place], p=p_values.get(place), p_adjusted=adjusted.get(place)) for place in places
        ]
    return tuple(comparisons)


def common_measures(first: Measures, second: Measures, folds: int) -> tuple[Measures, Measures] | None:
    """Return two runs' numbers on what both scored; None if they have nothing in common."""
    samples = common_samples(first.sample, second.sample)
    if samples is None:
        return None
    if samples[0] is first.sample:
        return first, second
    return measure(samples[0], folds), measure(samples[1], folds)


def tied_with_best(
    macros: Mapping[str, Mapping[str, Estimate]], comparisons: Sequence[Comparison]
) -> dict[str, frozenset[str]]:
    """Return by number the labels of the runs that the test cannot tell from the best one, with that.

    Args:
        macros: Macro numbers by label of the run.
        comparisons: All comparisons of these runs.
    """
    tied = {}
    for number in TESTED:
        values = {label: macro[number].value for label, macro in macros.items()}
        existing = {label: value for label, value in values.items() if value is not None}
        if not existing:
            continue
        best = max(existing, key=lambda label: existing[label])
        others = {
            label
            for comparison in comparisons
            if comparison.number == number and best in (comparison.first, comparison.second)
            for label in (comparison.first, comparison.second)
            if comparison.p_adjusted is not None and comparison.p_adjusted > SIGNIFICANT
        }
        tied[number] = frozenset({best} | others)
    return tied


def macro_difference(first: Measures, second: Measures, number: str) -> Estimate:
    """Return the difference of the means over the findings where both have a number; there must be one."""
    columns = [c for c in macro_columns(first.point, number) if c in macro_columns(second.point, number)]
    value = float(np.mean([first.point[number][c] - second.point[number][c] for c in columns]))
    of_both = [[spread for c in columns if (spread := one.spreads[number][c])] for one in (first, second)]
    return estimate(value, intervals.difference(*of_both))
