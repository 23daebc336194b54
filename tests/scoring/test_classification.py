from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from plain import auroc, average_precision
from scipy.stats import mannwhitneyu
from torchmetrics.functional.classification import binary_average_precision

from xbench.metrics import recognition_macro, recognition_numbers

NAMES = ("auroc", "average_precision", "f1", "accuracy")


def scores_of(labels: ArrayLike, probabilities: ArrayLike) -> SimpleNamespace:
    return SimpleNamespace(**recognition_numbers(np.array(labels, np.int8), np.array(probabilities, np.float64)))


def decisions_by_loop(labels: list[int], probabilities: list[float]) -> tuple[float | None, float | None]:
    tp = fp = tn = fn = 0
    for label, probability in zip(labels, probabilities, strict=True):
        if label == -1:
            continue
        decided = 1 if probability >= 0.5 else 0
        tp += decided == 1 and label == 1
        fp += decided == 1 and label == 0
        tn += decided == 0 and label == 0
        fn += decided == 0 and label == 1
    f1 = 2 * tp / (2 * tp + fp + fn) if tp + fn else None
    return f1, (tp + tn) / (tp + fp + tn + fn) if tp + fp + tn + fn else None


NEAR = [0.5, math.nextafter(0.5, 0), math.nextafter(0.5, 1), 0.0, -0.0, 1.0, math.nextafter(1, 0), 5e-324, 1e-30]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([-1, 0, 1]), st.sampled_from(NEAR) | st.floats(0, 1)), max_size=14))
@example([])
@example([(-1, 0.8)])
@example([(1, 0.8), (1, 0.2)])
@example([(0, 0.8), (0, 0.2)])
@example([(1, 0.5), (0, 0.0)])
def test_scores_equal_loops(rows: list[tuple[int, float]]) -> None:
    labels, probabilities = [label for label, _ in rows], [probability for _, probability in rows]
    scores = scores_of(labels, probabilities)
    assert scores.positives == labels.count(1)
    assert scores.negatives == labels.count(0)
    assert (scores.f1, scores.accuracy) == decisions_by_loop(labels, probabilities)
    if 1 in labels and 0 in labels:
        assert scores.auroc == auroc(labels, probabilities)
        assert scores.average_precision == pytest.approx(average_precision(labels, probabilities), abs=1e-14)
    else:
        assert scores.auroc is None
        assert scores.average_precision is None


def test_large_set_equals_scipy_and_torchmetrics() -> None:
    generator = np.random.default_rng(0)
    labels = (generator.random(20_000) < 0.03).astype(np.int8)
    probabilities = np.round(1 / (1 + np.exp(-(generator.normal(size=20_000) + labels))), 3)
    scores = scores_of(labels, probabilities)
    rank_sum = mannwhitneyu(probabilities[labels == 1], probabilities[labels == 0]).statistic
    assert scores.auroc == pytest.approx(rank_sum / (labels.sum() * (labels == 0).sum()), abs=1e-15)
    target = torch.from_numpy(labels).long()
    precision = binary_average_precision(torch.from_numpy(probabilities), target).item()
    assert scores.average_precision == pytest.approx(precision, abs=1e-5)


def test_saturated_scores_do_not_tie() -> None:
    # 1 - k * 2**-53 are all 1.0 in float32.
    probabilities = [1 - k * 2.0**-53 for k in range(8)]
    assert len(set(np.array(probabilities, dtype=np.float32).tolist())) == 1
    assert scores_of([1, 1, 1, 1, 0, 0, 0, 0], probabilities).auroc == 1.0
    assert scores_of([0, 0, 0, 0, 1, 1, 1, 1], probabilities).auroc == 0.0
    tiny = [k * 5e-324 for k in range(4)]
    assert scores_of([0, 0, 1, 1], tiny).auroc == 1.0


def test_unknown_labels_are_left_out() -> None:
    generator = np.random.default_rng(1)
    labels, probabilities = generator.integers(-1, 2, 40), generator.random(40)
    known = labels >= 0
    assert scores_of(labels, np.where(known, probabilities, np.nan)) == scores_of(labels[known], probabilities[known])


def test_order_of_images_changes_no_bit() -> None:
    generator = np.random.default_rng(2)
    labels, probabilities = generator.integers(0, 2, 500), generator.random(500).round(2)
    order = generator.permutation(500)
    assert scores_of(labels, probabilities) == scores_of(labels[order], probabilities[order])


def test_macro_takes_classes_with_both_labels() -> None:
    counts = {"both": (3, 2), "other": (1, 1), "one label": (4, 0)}
    values = {"both": (0.5, 0.25, 0.75, 1.0), "other": (1.0, 0.75, 0.25, 0.5), "one label": (None, None, 1.0, 1.0)}
    both, other, one_label = (
        dict(zip((*NAMES, "positives", "negatives"), (*values[name], *counts[name]), strict=True)) for name in counts
    )
    assert recognition_macro([both, one_label, other]) == dict(zip(NAMES, (0.75, 0.5, 0.5, 0.75), strict=True))
    for nothing in ([], [one_label]):
        assert recognition_macro(nothing) == dict.fromkeys(NAMES)
