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
@settings(max_examples=60, deadline=None)
def test_values_are_those_of_runs(seed, images, levels, per_patient):
    sample = random_sample(seed, images=images, levels=levels, per_patient=per_patient)
    ours = recognition(sample)
    labels = torch.from_numpy(sample.labels.astype(np.int64))
    theirs = classification_scores(labels, torch.from_numpy(sample.probabilities))
    for column, score in enumerate(theirs):
        for name in RECOGNITION:
            expected, found = getattr(score, name), ours[name][column]
            assert (expected is None) == (found is None), name
            if found is not None:
                assert found.value == pytest.approx(expected, abs=1e-13), name


def test_auroc_by_hand():
    sample = random_sample(0, images=4, findings=1, per_patient=1)
    sample = replace(
        sample,
        labels=np.array([[1], [1], [0], [0]], np.int8),
        probabilities=np.array([[0.9], [0.4], [0.4], [0.1]]),
    )
    # Pairs: above, above, tied, above.
    assert recognition(sample)["auroc"][0].value == 3.5 / 4
