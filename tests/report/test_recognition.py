from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import random_sample

from xbench.metrics import classification_scores
from xbench.report.statistics.recognition import RECOGNITION, recognition


@given(seed=st.integers(0, 10_000), images=st.integers(1, 25), levels=st.integers(2, 12), per_patient=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_weights_do_what_repeated_rows_do(seed, images, levels, per_patient):
    sample = random_sample(seed, images=images, levels=levels, per_patient=per_patient)
    weights = np.random.default_rng(seed).integers(0, 4, (len(sample.clusters), 5)).astype(float)
    ours = recognition(sample, weights)
    for place in range(5):
        rows = np.repeat(np.arange(images), weights[sample.image_cluster, place].astype(int))
        labels = torch.from_numpy(sample.labels[rows].astype(np.int64))
        theirs = classification_scores(labels, torch.from_numpy(sample.probabilities[rows]))
        for column, score in enumerate(theirs):
            for name in RECOGNITION:
                value = getattr(score, name)
                expected = np.nan if value is None else value
                assert ours[name][place, column] == pytest.approx(expected, abs=1e-13, nan_ok=True), name


def test_auroc_by_hand():
    sample = random_sample(0, images=4, findings=1, per_patient=1)
    sample = replace(
        sample,
        labels=np.array([[1], [1], [0], [0]], np.int8),
        probabilities=np.array([[0.9], [0.4], [0.4], [0.1]]),
    )
    # Pairs: above, above, tied, above; with the tied negative drawn three times 1 + 1 of 4, and 3 halves + 3 of 6.
    weights = np.array([[1.0, 1, 0], [1, 1, 1], [1, 3, 1], [1, 1, 0]])
    auroc = recognition(sample, weights)["auroc"][:, 0]
    assert auroc == pytest.approx([3.5 / 4, (3 + 1 + 1.5 + 1) / 8, 0.5])
