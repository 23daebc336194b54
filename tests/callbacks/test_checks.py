"""What no run may score is refused before it becomes a number."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from xbench.callbacks.checks import check_values
from xbench.runtime.errors import UserError
from xbench.types import Query

QUERIES = [Query("Mass", "Mass"), Query("Nodule", "Nodule")]
TRUTH = SimpleNamespace(image_ids=["a", "b"], image=[0, 0, 1, 1], queries=QUERIES * 2)
FINE = np.ones(4, np.bool_)
UNASKED = np.full(4, np.nan)


@pytest.mark.parametrize(
    ("logit", "probability", "given", "says"),
    [
        (np.nan, 0.5, (True, True), "among the logits for image b, finding Mass"),
        (np.inf, 0.5, (True, False), "among the logits for image b, finding Mass"),
        (0.0, np.nan, (False, True), "among the probabilities for image b, finding Mass"),
        (0.0, 7.0, (True, True), "outside [0, 1] for image b, finding Mass"),
    ],
)
def test_a_score_that_is_none_names_its_image(logit, probability, given, says):
    logits, probabilities = np.zeros(4), np.full(4, 0.5)
    logits[2], probabilities[2] = logit, probability
    scores = [score if there else UNASKED for score, there in zip((logits, probabilities), given, strict=True)]
    with pytest.raises(UserError) as error:
        check_values(*scores, FINE, TRUTH, "toy", given)
    assert says in str(error.value)


def test_scores_that_a_model_does_not_give_are_not_missed():
    check_values(UNASKED, np.full(4, 0.5), FINE, TRUTH, "toy", (False, True))
    check_values(UNASKED, UNASKED, FINE, TRUTH, "toy", (False, False))


def test_a_batch_of_nothing_but_nan_is_refused():
    with pytest.raises(UserError, match="among the logits for image a, finding Mass"):
        check_values(UNASKED, UNASKED, FINE, TRUTH, "toy", (True, True))
