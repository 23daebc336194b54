from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import auroc
from samples import of_images, random_sample, scored_by_another
from scipy.stats import permutation_test, rankdata, ttest_1samp, wilcoxon

from xbench.report.schema import Comparison, Estimate
from xbench.report.statistics.measures import macro, measure
from xbench.report.statistics.paired import (
    TESTED,
    common_measures,
    compare,
    contributions,
    exchange_tests,
    paired_test,
    tied_with_best,
    weighed,
)
from xbench.report.statistics.sample import common_samples
from xbench.scoring.numbers import holm


def two(seed=0, images=40):
    sample = random_sample(seed, images=images)
    return measure(sample, 5), measure(scored_by_another(sample, seed + 100), 5)


def of_parts(*parts):
    return [*map(weighed, parts)]


@pytest.mark.parametrize("number", TESTED)
def test_without_an_exchange_the_difference_is_the_one_found_and_after_all_it_is_turned(number):
    first, second = two()
    signs = np.ones((2, 20))
    signs[1] = -1
    expected = macro(first.point, number) - macro(second.point, number)
    found = paired_test(first, second, number).difference(signs)
    assert found == pytest.approx([expected, -expected], abs=1e-12)
    for column, finding in enumerate(first.sample.findings):
        expected = (first.point[number] - second.point[number])[column]
        found = paired_test(first, second, number, finding).difference(signs)
        assert found == pytest.approx([expected, -expected], abs=1e-12)
    assert paired_test(first, second, number, "another") is None


def test_sweeps_of_different_lengths_are_compared_where_no_threshold_is_chosen():
    sample = random_sample(0, images=40)
    longer = replace(sample, **{name: np.repeat(getattr(sample, name), 2, axis=1)[:, :-1] for name in ("dice", "iou")})
    short, long = measure(sample, 5), measure(longer, 5)
    for pair in ((short, long), (long, short)):
        for found in compare(["one", "other"], lambda *_, pair=pair: pair, 0, "toy", lambda _: None):
            refitted = found.number.endswith("_cross_fitted")
            assert found.difference.value == 0 or refitted
            assert found.p == (None if refitted else 1) and ("numbers of thresholds" in found.untested) == refitted


def plainly_refitted(first, second, name, signs):
    """The difference of means after each exchange, all thresholds tried, in the whole numbers that sums are of."""
    sample, found = first.sample, []
    for column in np.unique(sample.pair_column):
        mine = np.flatnonzero(sample.pair_column == column)
        scale = 2.0 ** min(40, 52 - np.ceil(np.log2(len(mine))))
        a, b = (np.rint(getattr(measures.sample, name)[mine] * scale) for measures in (first, second))
        folds, of_column = first.folds[mine], np.zeros(len(signs))
        for place, row in enumerate(signs):
            stays = (row[sample.pair_cluster[mine]] > 0)[:, None]
            for sign, curves in ((1, np.where(stays, a, b)), (-1, np.where(stays, b, a))):
                for fold in np.unique(folds):
                    best = curves[folds != fold].sum(axis=0).argmax()
                    of_column[place] += sign * curves[folds == fold, best].sum()
        found.append(of_column / (scale * len(mine)))
    return np.mean(found, axis=0)


@given(seed=st.integers(0, 2**16), images=st.integers(6, 90), ties=st.booleans(), name=st.sampled_from(["dice", "iou"]))
@settings(max_examples=25, deadline=None)
def test_thresholds_that_are_never_best_and_patterns_that_come_again_change_no_bit(seed, images, ties, name):
    sample = random_sample(seed, images=images)
    other = scored_by_another(sample, seed + 1)
    if ties:
        sample, other = (replace(one, **{name: np.round(getattr(one, name), 1)}) for one in (sample, other))
    first, second = measure(sample, 5), measure(other, 5)
    if (test := paired_test(first, second, f"{name}_cross_fitted")) is None or (first.folds < 0).any():
        return
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (9, len(sample.clusters)))
    assert test.difference(signs).tolist() == plainly_refitted(first, second, name, signs).tolist()


def test_auroc_after_every_exchange_is_the_sum_with_signs():
    """Exchange the midranks of whole patients in all 2^6 ways and compute both AUROCs anew."""
    first, second = two(seed=3, images=12)
    found = contributions(first, second, "auroc")
    sample = first.sample
    checked = 0
    for column in range(3):
        label = sample.labels[:, column]
        present, known = label == 1, label >= 0
        if not present.any() or not (label == 0).any():
            assert np.isnan(found[:, column]).all()
            continue
        x, y = (rankdata(m.sample.probabilities[known, column]) for m in (first, second))
        for signs in product([1, -1], repeat=len(sample.clusters)):
            stays = np.array(signs)[sample.image_cluster[known]] == 1
            one, other = np.where(stays, x, y), np.where(stays, y, x)
            expected = auroc(present[known], one) - auroc(present[known], other)
            assert np.dot(signs, found[:, column]) == pytest.approx(expected, abs=1e-12)
            checked += 1
    assert checked


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.5])
def test_p_values_are_those_of_known_tests(shift):
    # Few clusters are enumerated.
    values = np.random.default_rng(1).normal(shift, 1, 9)
    scipy = permutation_test((values,), np.sum, permutation_type="samples", vectorized=True, n_resamples=np.inf)
    assert exchange_tests(of_parts(values), 1, 0, "x") == pytest.approx([scipy.pvalue])
    values = np.random.default_rng(7).normal(shift, 1, 70)
    found = exchange_tests(of_parts(values / 70), 1, 0, "x")[0]
    # For normal differences the t test is right; three standard errors of a p-value from 9,999 exchanges.
    expected = ttest_1samp(values, 0).pvalue
    assert found == pytest.approx(expected, abs=3 * 2 * np.sqrt(expected / 2 / 9_999) + 1e-4)
    assert 1 / 3 < found / max(wilcoxon(values).pvalue, 2e-4) < 3


def test_tests_side_by_side_are_the_tests_alone(monkeypatch):
    random = np.random.default_rng(2)
    parts = [random.normal(0.2, 1, length) for length in (30, 40, 30, 30)]
    tests = of_parts(*parts)
    together = exchange_tests(tests, 1, 0, "x")
    assert together == [exchange_tests([test], 1, 0, "x")[0] for test in tests]
    assert together != exchange_tests(tests, 1, 1, "x")
    monkeypatch.setattr("xbench.report.statistics.paired._SIGNS_AT_A_TIME", 4_000)
    assert together == exchange_tests(tests, 1, 0, "x")


def test_no_difference_and_one_in_a_single_cluster_have_p_one():
    one = np.zeros(60)
    one[7] = 0.3
    assert exchange_tests(of_parts(np.zeros(8), np.zeros(5), one), 1, 0, "x") == [1.0, 1.0, 1.0]
    assert exchange_tests([], 1, 0, "x") == []
    # Many comparisons get enough exchanges to matter.
    assert 400 * exchange_tests(of_parts(np.full(40, 0.01)), 400, 0, "x")[0] <= 0.021


def test_holm_by_hand():
    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1, none smaller than the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_comparisons_are_corrected_number_by_number():
    measures = dict(zip("AB", two(), strict=True))
    measures["C"] = measure(scored_by_another(measures["A"].sample, 7), 5)
    asked = []
    found = compare("ABC", lambda one, other: (measures[one], measures[other]), 0, "x", asked.append)
    assert asked == ["A against B", "A against C", "B against C"]
    assert len(found) == 3 * len(TESTED)
    for number in TESTED:
        mine = [comparison for comparison in found if comparison.number == number]
        assert [c.p_adjusted for c in mine] == pytest.approx(holm([c.p for c in mine]))
        for comparison in mine:
            one, other = measures[comparison.first], measures[comparison.second]
            difference = macro(one.point, number) - macro(other.point, number)
            assert comparison.difference.value == pytest.approx(difference, abs=1e-12)
            assert comparison.difference.low < comparison.difference.value < comparison.difference.high
            assert comparison.images == (40 if number == "auroc" else 32)
    only = replace(measures["A"].sample, labels=(measures["A"].sample.labels * [1, 0, 0]).astype(np.int8))
    one_auroc = compare("AB", lambda *_: (measure(only, 5), measure(only, 5)), 0, "x", asked.append)
    assert [one.images for one in one_auroc if one.number == "auroc"] == [(only.labels[:, 0] >= 0).sum()] != [40]


def test_ties_with_the_best():
    values = {"A": 0.5, "B": 0.6, "C": 0.1, "D": None}
    macros = {label: dict.fromkeys(TESTED, Estimate(value)) for label, value in values.items()}
    comparisons = [
        Comparison("auroc", "A", "B", 9, Estimate(-0.1), 0.03, 0.06),
        Comparison("auroc", "A", "C", 9, Estimate(0.4), 0.5, 0.5),
        Comparison("auroc", "B", "C", 9, Estimate(0.5), 0.01, 0.03),
    ]
    tied = tied_with_best(macros, comparisons)
    assert tied["auroc"] == {"A", "B"}
    assert tied["pointing_game"] == {"B"}
    boxes = {key: {"iou_cross_fitted": Estimate(None), "iou_fixed": Estimate(value)} for key, value in values.items()}
    assert tied_with_best(boxes, [replace(comparisons[0], number="iou_cross_fitted")])["iou_cross_fitted"] == {"A", "B"}


def test_runs_on_different_images_are_compared_on_the_common_ones():
    whole = random_sample(0)
    other = scored_by_another(whole, 5)
    less, more = of_images(whole, range(0, 34)), of_images(other, range(6, 40))
    first, second = common_samples(less, more)
    assert common_samples(first, second)[0] is first and first.image_ids == whole.image_ids[6:34]
    assert first.clusters == whole.clusters[3:17]
    both = common_measures(measure(less, 5), measure(more, 5), 5)
    expected = measure(of_images(whole, range(6, 34)), 5), measure(of_images(other, range(6, 34)), 5)
    for found, plain in zip(both, expected, strict=True):
        for number in TESTED:
            assert found.point[number] == pytest.approx(plain.point[number], nan_ok=True)
        assert found.macro() == plain.macro()
    assert common_samples(of_images(whole, range(4)), of_images(whole, range(8, 12))) is None


def test_only_labels_and_pairs_that_agree_are_common():
    sample = random_sample(0)
    labels = sample.labels.copy()
    image = int(sample.pair_image[0])
    labels[image, sample.pair_column[0]] = 0
    other = sample.with_pairs(np.arange(1, len(sample.hit)))
    other = replace(other, labels=labels, findings=("finding 0", "finding 1", "another"))
    for found in common_samples(sample, other):
        assert found.findings == ("finding 0", "finding 1")
        assert found.labels[image, sample.pair_column[0]] == -1
        assert len(found.hit) == int((sample.pair_column[1:] < 2).sum())
