from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_files import disagreements, rows_of

from xbench.scoring.numbers import sign_tests


def signs_of(hits, minima, patients):
    labels = np.where(np.isnan(hits), 0, 1).astype(np.int8)
    names = [None if isinstance(patient, int) else patient for patient in patients]
    findings = [f"finding {column}" for column in range(hits.shape[1])]
    rows = rows_of(labels, findings, pointing_hit=hits, minimum_hit=minima, patient_ids=names)
    return sign_tests(rows)


HITS = st.sampled_from([0.0, 0.25, 0.5, 1.0, None])


@given(st.lists(st.tuples(HITS, HITS, HITS, HITS, st.sampled_from(["p", "q", "r", None])), min_size=1, max_size=9))
def test_the_p_value_counts_every_way_the_coins_can_fall(drawn):
    given_ = (
        np.array([[np.nan if None in (a, b) else a, np.nan if None in (c, d) else c] for a, b, c, d, _ in drawn]),
        np.array([[np.nan if None in (a, b) else b, np.nan if None in (c, d) else d] for a, b, c, d, _ in drawn]),
        [patient or image for image, (*_, patient) in enumerate(drawn)],
    )
    votes = [Counter(), Counter(), Counter()]
    for image, (a, b, c, d, patient) in enumerate(drawn):
        for column, (hit, low) in enumerate(((a, b), (c, d))):
            if None not in (hit, low):
                vote = (low >= 0.5) - (hit >= 0.5)
                votes[column][patient or image] += vote
                votes[2][patient or image] += vote
    plain = {}
    for place, counter in enumerate(votes):
        cast = [vote > 0 for vote in counter.values() if vote]
        ways = [sum(coins) >= sum(cast) for coins in product((False, True), repeat=len(cast))]
        if counter:
            plain[place] = Fraction(sum(ways), len(ways))
    expected, least = [None] * 3, Fraction(0)
    for rank, place in enumerate(sorted(plain, key=plain.__getitem__)):
        least = max(least, min(Fraction(1), plain[place] * (len(plain) - rank)))
        expected[place] = float(least)
    by_finding, together = signs_of(*given_)
    assert [*by_finding, together] == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("share", [0.25, 0.05])
def test_maps_that_know_nothing_are_seldom_called_upside_down(share):
    """At most once in a hundred runs, however many findings; here with regions of this share of the film."""
    draw = np.random.default_rng(0)
    called = 0
    for _ in range(400):
        by_finding, together = signs_of(*(draw.random((2, 60, 8)) < share) * 1.0, range(60))
        called += min(*by_finding, together) <= 0.01
    # Of 400 runs that err once in a hundred, more than 11 do in 0.1 % of cases.
    assert called <= 11


def test_minima_of_rectified_maps_do_not_count():
    """A map that is 0 nearly everywhere has a share of its minima in every region: no sign of anything."""
    hits = np.random.default_rng(0).random((200, 1)) < 0.2
    by_finding, together = signs_of(hits * 1.0, np.full((200, 1), 0.3), range(200))
    assert by_finding == [1.0] and together == 1.0


def test_a_negated_model_is_found_on_phantoms(command):
    options = ("--data.limit", "32", "--data.size", "128", "--data.grid", "56", "--trainer.logger", "false")
    run = command("test", "--model", "wrong_models.NegatedDemo", "--data", "xbench.data.PhantomCXR", *options, status=0)
    grounding = run.results["grounding"]
    together = grounding["sign_test"]
    assert together["pointing_game_of_minimum"] > 0.3 > 0.05 > grounding["macro"]["pointing_game"]
    assert together["sign_p"] < 1e-6 and "macro" in together["may_be_wrong"]
    assert "sign of the saliency maps may be wrong" in " ".join(run.output.split())
    assert disagreements(run.folder) == []
