from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import plain_numbers, random_sample, scored_by_another

from xbench.report.schema import NUMBERS
from xbench.report.statistics import intervals
from xbench.report.statistics.measures import macro, measure, pair_folds
from xbench.report.statistics.paired import macro_difference


@pytest.mark.parametrize("folds", [2, 5, 50])
def test_folds_are_balanced_and_keep_patients_together(folds):
    sample = random_sample(1)
    found = pair_folds(sample, folds)
    for column in range(3):
        mine = sample.pair_column == column
        of_cluster = {}
        for cluster, fold in zip(sample.pair_cluster[mine], found[mine], strict=True):
            assert of_cluster.setdefault(cluster, fold) == fold
        sizes = np.bincount([*of_cluster.values()])
        assert len(sizes) == min(folds, len(of_cluster)) and sizes.max() - sizes.min() <= 1


def test_folds_depend_on_names_alone():
    sample = random_sample(1)
    other = replace(random_sample(1), dice=1 - sample.dice, hit=1 - sample.hit, probabilities=sample.probabilities / 2)
    assert np.array_equal(pair_folds(sample, 5), pair_folds(other, 5))
    renamed = replace(sample, clusters=tuple(f"other {name}" for name in sample.clusters))
    assert not np.array_equal(pair_folds(sample, 5), pair_folds(renamed, 5))


def test_tied_thresholds_resolve_to_the_lowest_whatever_the_order_of_sums():
    sample = random_sample(5, images=300, findings=1, thresholds=101, per_patient=1)
    third = np.random.default_rng(1).random(len(sample.hit)) / 3
    flat = np.repeat(third[:, None], 101, axis=1)
    flat[:, :7] /= 2
    assert {*measure(replace(sample, dice=flat), 5).thresholds["dice"].ravel().tolist()} == {7}


def test_optimism_has_no_interval_and_every_other_number_one():
    measures = measure(random_sample(0), 5)
    for numbers in (measures.macro(), *measures.findings().values()):
        assert [key for key, estimate in numbers.items() if estimate.low is None] == ["dice_optimism"]
    measures = measure(random_sample(0, findings=1), 5)
    assert measures.macro() == measures.findings()["finding 0"]


@pytest.mark.parametrize("seed", range(3))
def test_every_number_by_plain_loops(seed):
    sample = random_sample(seed, images=(9, 14, 24)[seed], per_patient=(1, 2, 3)[seed])
    measures = measure(sample, (2, 3, 50)[seed])
    assert {*measures.point} == {*measures.spreads} == {*NUMBERS}
    for column in range(3):
        for key, value in plain_numbers(sample, measures.folds, column).items():
            assert measures.point[key][column] == pytest.approx(value, abs=1e-11, nan_ok=True), (column, key)
            spread = measures.spreads[key][column]
            if spread is not None:
                assert spread.value == pytest.approx(value, abs=1e-9), key


def test_macro_leaves_out_what_does_not_exist():
    nan = np.nan
    numbers = {"pointing_game": [0.2, nan, 0.6], "auroc": [0.5, nan, 0.7], "accuracy": [0.1, 0.9, 0.3]}
    numbers = {key: np.array(values) for key, values in numbers.items()} | {"dice_best": np.array([nan])}
    # The same findings for all recognition scores: those with both labels.
    means = [macro(numbers, key) for key in ("pointing_game", "accuracy", "dice_best")]
    assert means == pytest.approx([0.4, 0.2, nan], nan_ok=True)


def test_a_finding_of_one_patient_has_no_fold_and_no_interval_but_its_macro_has():
    sample = random_sample(2, images=12)
    rare = np.flatnonzero(sample.pair_column == 0)[1:]
    measures = measure(sample.with_pairs(np.setdiff1d(np.arange(len(sample.hit)), rare)), 5)
    assert measures.folds[measures.sample.pair_column == 0].tolist() == [-1]
    one = measures.findings()["finding 0"]
    assert one["pointing_game"].value is not None and one["pointing_game"].low is None
    assert one["dice_cross_fitted"].value is None and one["dice_optimism"].value is None
    assert measures.macro()["pointing_game"].low is not None


def test_groups_are_means_of_their_pairs():
    sample = random_sample(4)
    folds = pair_folds(sample, 5)
    pairs, measures = np.arange(0, len(sample.hit), 3), measure(sample, 5)
    means = measures.means(pairs, ("pointing_game", "dice_fixed", "dice_cross_fitted"))
    at = [measures.thresholds["dice"][int(sample.pair_column[pair]), int(folds[pair])] for pair in pairs]
    fitted = np.array([sample.dice[pair, place] for pair, place in zip(pairs, at, strict=True)])
    clusters = sample.pair_cluster[pairs], len(sample.clusters)
    expected = {
        "pointing_game": intervals.share(sample.hit[pairs], *clusters),
        "dice_fixed": intervals.mean(sample.dice[pairs, 5], *clusters),
        "dice_cross_fitted": intervals.mean(fitted, *clusters),
    }
    for name, spread in expected.items():
        assert means[name].value == pytest.approx(spread.value)
        assert (means[name].low, means[name].high) == pytest.approx(spread.interval())


def test_shares_of_area_have_the_intervals_of_dice():
    sample = random_sample(6)
    runs = [replace(of, hit=of.dice[:, 5], boxes=True) for of in (sample, scored_by_another(sample, 7))]
    one, other = (measure(run, 5) for run in runs)
    keys = "pointing_game", "dice_fixed"
    differences = {key: macro_difference(one, other, key) for key in keys}
    for of in (one.macro(), *one.findings().values(), one.means(np.arange(9), keys), differences):
        assert of["pointing_game"] == of["dice_fixed"]
    assert measure(replace(runs[0], boxes=False), 5).macro()["pointing_game"] != one.macro()["pointing_game"]
