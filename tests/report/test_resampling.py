from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import plain_numbers, random_sample
from scipy.stats import bootstrap

from xbench.report.analysis import NUMBERS
from xbench.report.statistics.cross_fitting import pair_folds
from xbench.report.statistics.measures import Group, macro, measure
from xbench.report.statistics.resampling import chunks, draw, estimate


def sample_of_hits(hits, per_patient=1):
    base = random_sample(0, images=len(hits), findings=1, thresholds=2, per_patient=per_patient)
    pairs = np.arange(len(hits))
    curve = np.zeros((len(hits), 2))
    return replace(
        base,
        labels=np.ones((len(hits), 1), np.int8),
        pair_image=pairs,
        pair_column=0 * pairs,
        hit=np.asarray(hits, float),
        dice=curve,
        iou=curve,
        area=np.full(len(hits), 0.1),
    )


def test_draws_depend_on_seed_ground_and_names_and_on_nothing_else():
    names = tuple("abcdefgh")
    first = draw(names, 50, 0, "vindr/test")
    draw.cache_clear()
    assert np.array_equal(first, draw(names, 50, 0, "vindr/test"))
    for other in (
        draw(names, 50, 1, "vindr/test"),
        draw(names, 50, 0, "vindr/train"),
        draw((*names[1:], "x"), 50, 0, "vindr/test"),
    ):
        assert not np.array_equal(first, other)


def test_draws_are_as_frequent_as_draws_with_replacement():
    draws = draw(tuple(f"{place:02d}" for place in range(20)), 20_000, 0, "x").astype(float)
    # Binomial(20, 1/20): mean 1, variance 0.95, covariance -1/20; 0.05 is over five standard errors of each.
    assert draws.mean(axis=1) == pytest.approx(np.ones(20), abs=0.05)
    covariance = np.cov(draws)
    assert np.diag(covariance) == pytest.approx(np.full(20, 0.95), abs=0.05)
    assert covariance[~np.eye(20, dtype=bool)] == pytest.approx(np.full(380, -0.05), abs=0.05)


def test_chunks_are_the_draws_some_at_a_time(monkeypatch):
    monkeypatch.setattr("xbench.report.statistics.resampling._ELEMENTS_AT_A_TIME", 70)
    draws = draw(tuple("abc"), 25, 0, "x")
    parts = list(chunks(draws, width=10))
    assert [part.shape[1] for part in parts] == [7, 7, 7, 4]
    assert np.array_equal(np.concatenate(parts, axis=1), draws)


@pytest.mark.parametrize("distribution", ["hits", "skewed"])
def test_interval_of_a_mean_is_that_of_scipy(distribution):
    random = np.random.default_rng(3)
    values = (random.random(80) < 0.3).astype(float) if distribution == "hits" else random.beta(0.4, 2, 80)
    sample = sample_of_hits(values)
    ours = measure(sample, draw(sample.clusters, 10_000, 0, "x"), folds=2).macro()["pointing_game"]
    theirs = bootstrap(
        (values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    # The ends of an interval from 10,000 resamples themselves have a standard error of about 0.03 of the mean's.
    tolerance = 0.15 * values.std() / np.sqrt(len(values))
    assert ours.value == pytest.approx(values.mean(), abs=1e-12)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=tolerance)


def test_interval_of_clustered_images_is_wider_and_that_of_scipy_on_patients():
    random = np.random.default_rng(5)
    patients = random.random(40)
    sample = sample_of_hits(np.repeat(patients, 4), per_patient=4)
    ours = measure(sample, draw(sample.clusters, 10_000, 0, "x"), folds=2).macro()["pointing_game"]
    theirs = bootstrap(
        (patients,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.15 * patients.std() / np.sqrt(40))


@pytest.mark.parametrize("seed", range(3))
def test_every_number_of_every_resample_by_plain_loops(seed, monkeypatch):
    # Few images, so that findings often lose their regions or one of their labels.
    monkeypatch.setattr("xbench.report.statistics.resampling._ELEMENTS_AT_A_TIME", 400)
    sample = random_sample(seed, images=(9, 14, 24)[seed], per_patient=(1, 2, 3)[seed])
    folds = pair_folds(sample, 3)
    draws = draw(sample.clusters, 30, seed, "x")
    measures = measure(sample, draws, folds=3)
    assert list(measures.resampled) == list(measures.point) and {*measures.point} == {*NUMBERS}
    existing = 0
    for place in range(-1, 30):
        weights = np.ones(len(sample.clusters)) if place < 0 else draws[:, place]
        ours = {
            key: (measures.point[key][0] if place < 0 else measures.resampled[key][place]) for key in measures.point
        }
        for column in range(3):
            plain = plain_numbers(sample, folds, weights, column)
            for key, value in plain.items():
                assert ours[key][column] == pytest.approx(value, abs=1e-11, nan_ok=True), (place, column, key)
                existing += not np.isnan(value)
    assert 0 < existing < 31 * 3 * len(NUMBERS)  # some do not exist, else the test says less than it seems to


def test_macro_leaves_out_what_does_not_exist():
    nan = np.nan
    numbers = {
        "pointing_game": np.array([[0.2, nan, 0.6], [nan, nan, nan]]),
        "auroc": np.array([[0.5, nan, 0.7], [nan, 0.9, nan]]),
        "accuracy": np.array([[0.1, 0.9, 0.3], [0.4, 0.5, 0.9]]),
    }
    assert macro(numbers, "pointing_game") == pytest.approx([0.4, nan], nan_ok=True)
    # The same findings for all recognition scores: those with both labels.
    assert macro(numbers, "accuracy") == pytest.approx([0.2, 0.5])


def test_an_interval_leaves_out_resamples_without_a_value_and_needs_two_clusters():
    assert estimate(np.nan, np.array([0.5, 0.5]), 9).value is None
    found = estimate(0.5, np.array([0.0, np.nan, 1.0]), 2)
    assert (found.low, found.high) == pytest.approx((0.025, 0.975))
    assert estimate(0.5, np.array([0.0, 1.0]), 1).low is None
    assert estimate(0.5, np.array([np.nan]), 5).high is None


def test_a_finding_of_one_patient_has_no_interval_but_its_macro_has():
    sample = random_sample(2, images=12)
    rare = np.flatnonzero(sample.pair_column == 0)[1:]
    kept = np.setdiff1d(np.arange(len(sample.hit)), rare)
    names = ("pair_image", "pair_column", "hit", "dice", "iou", "area")
    sample = replace(sample, **{name: getattr(sample, name)[kept] for name in names})
    measures = measure(sample, draw(sample.clusters, 100, 0, "x"), 5)
    one = measures.findings()["finding 0"]
    assert one["pointing_game"].value is not None and one["pointing_game"].low is None
    assert one["dice_cross_fitted"].value is None and one["dice_optimism"].value is None
    assert measures.macro()["pointing_game"].low is not None


def test_groups_are_weighted_means_of_their_pairs():
    sample = random_sample(4)
    folds = pair_folds(sample, 5)
    draws = draw(sample.clusters, 40, 0, "x")
    group = Group(np.arange(0, len(sample.hit), 3), ("pointing_game", "dice_fixed", "dice_cross_fitted"))
    measures = measure(sample, draws, 5, (group,))
    for name, scores in (("pointing_game", sample.hit), ("dice_fixed", sample.dice[:, 5])):
        drawn = []
        for weights in draws.T:
            values = [scores[pair] for pair in group.pairs for _ in range(weights[sample.pair_cluster[pair]])]
            drawn.append(np.mean(values))
        expected = estimate(scores[group.pairs].mean(), np.array(drawn), 9)
        found = measures.groups[0][name]
        assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))
    at = [measures.fitted.dice_thresholds[int(sample.pair_column[pair]), int(folds[pair])][0] for pair in group.pairs]
    expected = np.mean([sample.dice[pair, place] for pair, place in zip(group.pairs, at, strict=True)])
    assert measures.groups[0]["dice_cross_fitted"].value == pytest.approx(expected)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    random = np.random.default_rng(11)
    covered = 0
    for trial in range(200):
        patients = random.beta(2, 3, 40)
        sample = sample_of_hits(np.repeat(patients, 2), per_patient=2)
        found = measure(sample, draw(sample.clusters, 300, trial, "x"), 2).macro()["pointing_game"]
        covered += found.low <= 0.4 <= found.high
    # 95 % of 200 with a standard error of 1.5 %; the percentile interval of 40 patients is a little narrow.
    assert 0.90 <= covered / 200 <= 0.985
