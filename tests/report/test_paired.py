from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from samples import random_sample
from scipy.stats import norm, permutation_test, rankdata, ttest_1samp, wilcoxon
from synthetic import recognised

from xbench.report.analysis import Comparison, Estimate
from xbench.report.statistics.comparing import common_measures, compare, tied_with_best
from xbench.report.statistics.measures import macro, measure
from xbench.report.statistics.paired import TESTED, contributions, holm, macro_contributions, sign_flip_tests
from xbench.report.statistics.resampling import draw
from xbench.report.statistics.sample import common_samples


def scored_by_another(sample, seed):
    other = random_sample(seed, images=len(sample.image_ids), per_patient=2)
    random = np.random.default_rng(seed)
    dice = random.integers(0, 9, sample.dice.shape) / 8
    return replace(
        sample,
        probabilities=other.probabilities,
        hit=random.choice([0.0, 1.0], size=len(sample.hit)),
        dice=dice,
        iou=dice / (2 - dice),
    )


def measured(sample, resamples=100, folds=5):
    return measure(sample, draw(sample.clusters, resamples, 0, "x"), folds)


def two(seed=0, images=40):
    sample = random_sample(seed, images=images)
    return measured(sample), measured(scored_by_another(sample, seed + 100))


@pytest.mark.parametrize("number", TESTED)
def test_contributions_sum_to_the_difference(number):
    first, second = two()
    found = contributions(first, second, number)
    assert found.shape == (20, 3)
    assert found.sum(axis=0) == pytest.approx(first.point[number][0] - second.point[number][0], abs=1e-12)
    difference = macro(first.point, number) - macro(second.point, number)
    assert macro_contributions(first, second, number).sum() == pytest.approx(difference[0], abs=1e-12)
    assert contributions(second, first, number) == pytest.approx(-found)


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
            expected = recognised(present[known], one).auroc - recognised(present[known], other).auroc
            assert np.dot(signs, found[:, column]) == pytest.approx(expected, abs=1e-12)
            checked += 1
    assert checked


def test_few_clusters_are_enumerated():
    values = np.random.default_rng(1).normal(0.4, 1, 9)
    sums = [np.dot(signs, values) for signs in product([1, -1], repeat=9)]
    share = np.mean([total >= values.sum() - 1e-12 for total in sums])
    assert sign_flip_tests([values], 1, 0, "x") == pytest.approx([min(1, 2 * share)])
    scipy = permutation_test((values,), np.sum, permutation_type="samples", vectorized=True, n_resamples=np.inf)
    assert sign_flip_tests([values], 1, 0, "x") == pytest.approx([scipy.pvalue])


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.5])
def test_p_values_are_those_of_known_tests(shift):
    values = np.random.default_rng(7).normal(shift, 1, 70)
    found = sign_flip_tests([values / 70], 1, 0, "x")[0]
    # For normal differences the t test is right; three standard errors of a p-value from 9,999 exchanges.
    expected = ttest_1samp(values, 0).pvalue
    assert found == pytest.approx(expected, abs=3 * 2 * np.sqrt(expected / 2 / 9_999) + 1e-4)
    assert 1 / 3 < found / max(wilcoxon(values).pvalue, 2e-4) < 3


def test_tests_side_by_side_are_the_tests_alone(monkeypatch):
    random = np.random.default_rng(2)
    parts = [random.normal(0.2, 1, length) for length in (30, 40, 30, 30)]
    together = sign_flip_tests(parts, 1, 0, "x")
    assert together == [sign_flip_tests([part], 1, 0, "x")[0] for part in parts]
    monkeypatch.setattr("xbench.report.statistics.paired._ELEMENTS_OF_A_NULL_DISTRIBUTION", 9_999)
    assert together == sign_flip_tests(parts, 1, 0, "x")
    assert together != sign_flip_tests(parts, 1, 1, "x")


def test_no_difference_has_p_one():
    assert sign_flip_tests([np.zeros(8), np.zeros(5)], 1, 0, "x") == [1.0, 1.0]
    assert sign_flip_tests([], 1, 0, "x") == []


def test_many_comparisons_get_enough_exchanges_to_matter():
    part = np.full(40, 0.01)
    p = sign_flip_tests([part], 400, 0, "x")[0]
    assert 400 * p <= 0.021


def delong(present, first, second):
    """Two-sided p-value of DeLong, DeLong and Clarke-Pearson (1988) for two correlated AUROCs."""
    placements = []
    for score in (first, second):
        above = (score[present][:, None] > score[~present]) + 0.5 * (score[present][:, None] == score[~present])
        placements.append((above.mean(1), above.mean(0)))
    differences = [one - other for one, other in zip(*placements, strict=True)]
    variance = sum(difference.var(ddof=1) / len(difference) for difference in differences)
    return 2 * norm.sf(abs(differences[0].mean()) / np.sqrt(variance))


def recognition_sample(present, scores):
    base = random_sample(0, images=len(present), findings=1, per_patient=1)
    return replace(base, labels=present[:, None].astype(np.int8), probabilities=scores[:, None])


@pytest.mark.parametrize("gain", [0.0, 0.5, 1.0])
def test_auroc_test_agrees_with_delong(gain):
    random = np.random.default_rng(4)
    present = random.random(200) < 0.3
    common = random.normal(size=200)
    scores = [1 / (1 + np.exp(-(common + random.normal(size=200) + g * present))) for g in (1 + gain, 1.0)]
    first, second = (measured(recognition_sample(present, score)) for score in scores)
    p = sign_flip_tests([macro_contributions(first, second, "auroc")], 1, 0, "x")[0]
    assert p == pytest.approx(delong(present, *scores), rel=0.5, abs=2e-3)


def test_auroc_test_rejects_equal_models_one_time_in_twenty(monkeypatch):
    monkeypatch.setattr("xbench.report.statistics.paired._EXCHANGES", 199)
    monkeypatch.setattr("xbench.report.statistics.paired._SMALLEST_P", 1.0)
    random = np.random.default_rng(9)
    rejected = 0
    for trial in range(150):
        present = random.random(60) < 0.3
        common = random.normal(size=60) + present
        # One scale is a power of the other: ranks alone must count.
        scores = [1 / (1 + np.exp(-(common + random.normal(size=60)))) ** power for power in (1, 5)]
        first, second = (replace_probabilities(present, score) for score in scores)
        rejected += sign_flip_tests([macro_contributions(first, second, "auroc")], 1, trial, "x")[0] <= 0.05
    assert rejected / 150 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)
    assert rejected


def replace_probabilities(present, score):
    return measure(recognition_sample(present, score), np.ones((len(present), 1), np.int16), 2)


def test_holm_by_hand():
    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1, none smaller than the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_comparisons_are_corrected_number_by_number():
    measures = dict(zip("AB", two(), strict=True))
    measures["C"] = measured(scored_by_another(measures["A"].sample, 7))
    asked = []
    found = compare("ABC", lambda one, other: (measures[one], measures[other]), 0, "x", asked.append)
    assert asked == ["A against B", "A against C", "B against C"]
    assert len(found) == 3 * len(TESTED)
    for number in TESTED:
        mine = [comparison for comparison in found if comparison.number == number]
        assert [c.p_adjusted for c in mine] == pytest.approx(holm([c.p for c in mine]))
        for comparison in mine:
            one, other = measures[comparison.first], measures[comparison.second]
            difference = macro(one.point, number)[0] - macro(other.point, number)[0]
            assert comparison.difference.value == pytest.approx(difference, abs=1e-12)
            resampled = macro(one.resampled, number) - macro(other.resampled, number)
            ends = np.nanpercentile(resampled, [2.5, 97.5])
            assert (comparison.difference.low, comparison.difference.high) == pytest.approx(tuple(ends), abs=1e-12)
            assert comparison.images == 40


def test_ties_with_the_best():
    macros = {
        label: {number: Estimate(value) for number in TESTED} for label, value in (("A", 0.5), ("B", 0.6), ("C", 0.1))
    }
    macros["D"] = {number: Estimate(None) for number in TESTED}
    comparisons = [
        Comparison("auroc", "A", "B", 9, Estimate(-0.1), 0.03, 0.06),
        Comparison("auroc", "A", "C", 9, Estimate(0.4), 0.5, 0.5),
        Comparison("auroc", "B", "C", 9, Estimate(0.5), 0.01, 0.03),
    ]
    tied = tied_with_best(macros, comparisons)
    assert tied["auroc"] == {"A", "B"}
    assert tied["pointing_game"] == {"B"}


def test_runs_on_different_images_are_compared_on_the_common_ones():
    whole = random_sample(0)
    other = scored_by_another(whole, 5)
    less, more = restricted(whole, range(0, 34)), restricted(other, range(6, 40))
    first, second = common_samples(less, more)
    assert first.same_ground(second) and first.image_ids == whole.image_ids[6:34]
    assert first.clusters == whole.clusters[3:17]
    both = common_measures(measured(less), measured(more), 100, 5, 0, "x")
    expected = measured(restricted(whole, range(6, 34))), measured(restricted(other, range(6, 34)))
    for found, plain in zip(both, expected, strict=True):
        for number in TESTED:
            assert found.point[number] == pytest.approx(plain.point[number], nan_ok=True)
            assert np.array_equal(found.resampled[number], plain.resampled[number], equal_nan=True)
    assert common_samples(restricted(whole, range(4)), restricted(whole, range(8, 12))) is None


def test_only_labels_and_pairs_that_agree_are_common():
    sample = random_sample(0)
    labels = sample.labels.copy()
    image = int(sample.pair_image[0])
    labels[image, sample.pair_column[0]] = 0
    kept = np.arange(1, len(sample.hit))
    names = ("pair_image", "pair_column", "hit", "dice", "iou", "area")
    other = replace(sample, labels=labels, **{name: getattr(sample, name)[kept] for name in names})
    other = replace(other, findings=("finding 0", "finding 1", "another"))
    for found in common_samples(sample, other):
        assert found.findings == ("finding 0", "finding 1")
        assert found.labels[image, sample.pair_column[0]] == -1
        assert len(found.hit) == int((sample.pair_column[1:] < 2).sum())


def restricted(sample, images):
    images = np.array([*images])
    new = np.full(len(sample.image_ids), -1)
    new[images] = np.arange(len(images))
    kept = new[sample.pair_image] >= 0
    clusters = np.unique(sample.image_cluster[images])
    return replace(
        sample,
        clusters=tuple(sample.clusters[place] for place in clusters),
        image_ids=tuple(sample.image_ids[place] for place in images),
        image_cluster=np.searchsorted(clusters, sample.image_cluster[images]),
        labels=sample.labels[images],
        probabilities=sample.probabilities[images],
        pair_image=new[sample.pair_image[kept]],
        **{name: getattr(sample, name)[kept] for name in ("pair_column", "hit", "dice", "iou", "area")},
    )
