from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import random_sample

from xbench.report.statistics.measures import measure, pair_folds


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


def test_a_finding_of_one_patient_has_no_fold():
    sample = random_sample(1, images=2, per_patient=2, findings=6)
    assert len(sample.hit) and {*pair_folds(sample, 5)} == {-1}
    numbers = measure(sample, 5).point
    assert np.isnan(numbers["dice_cross_fitted"]).all() and not np.isnan(numbers["dice_best"]).all()


def test_tied_thresholds_resolve_to_the_lowest_whatever_the_order_of_sums():
    sample = random_sample(5, images=300, findings=1, thresholds=101, per_patient=1)
    third = np.random.default_rng(1).random(len(sample.hit)) / 3
    flat = np.repeat(third[:, None], 101, axis=1)
    flat[:, :7] /= 2
    assert {*measure(replace(sample, dice=flat), 5).thresholds["dice"].ravel().tolist()} == {7}
