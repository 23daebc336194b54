from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.report.cases import choose_cases
from xbench.report.schema import Quadrants

FINDINGS = ("Atelectasis", "Nodule", "Effusion")
HOLD = {
    "Recognized, elsewhere": lambda score: score.recognized and score.pointing_hit < 0.5 and score.peak_distance > 0.05,
    "Near miss": lambda score: score.recognized and score.look == "near miss",
    "Both wrong": lambda score: not score.recognized and not score.grounded,
    "Not recognized, on the lesion": lambda score: not score.recognized and score.grounded,
}


def a_run(label, dice, hits, probabilities, keeps=None, threshold=True):
    """A run of (N, 3) scores, NaN where not scored."""
    scored = ~np.isnan(dice)
    known = {
        "region_digests": np.where(scored, b"0123456789abcdef", b""),
        "image_ids": [f"image-{row}" for row in range(len(dice))],
        "labels": scored.astype(np.int8),
        "scored": scored,
        "dice": dice,
        "pointing_hit": np.where(scored, hits, np.nan),
        "peak_distance": np.where(scored, np.where(hits, 0, 0.03 + 0.05 * (np.arange(3) % 2)), np.nan),
        "probabilities": probabilities,
    }
    pairs = {(f"image-{row}", FINDINGS[column]) for row, column in np.argwhere(scored)}
    kept = pairs if keeps is None else keeps
    run = SimpleNamespace(
        images=SimpleNamespace(**known),
        label=label,
        dataset="d",
        results=SimpleNamespace(findings=FINDINGS),
        cases=lambda: kept,
    )
    quadrants = {finding: Quadrants(0.5, 0, 0, 0, 0, 1, 1) for finding in FINDINGS}
    return SimpleNamespace(run=run, quadrants=quadrants if threshold else {})


@st.composite
def some_runs(draw):
    rows, count = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    drawn = np.random.default_rng(draw(st.integers(0, 10_000)))
    absent = drawn.random((rows, 3)) < draw(st.sampled_from([0.0, 0.5, 0.9]))
    levels = draw(st.sampled_from([3, 100]))
    runs = []
    for number in range(count):
        dice, probabilities = drawn.integers(0, levels, (2, rows, 3)) / (levels - 1)
        dice[absent] = np.nan
        runs.append(a_run(f"run {number}", dice, drawn.integers(0, 2, (rows, 3)), probabilities))
    return runs


def scored(runs):
    images = runs[0].run.images
    return {(images.image_ids[row], FINDINGS[column]) for row, column in np.argwhere(images.scored)}


def mean_dice(case):
    return np.mean([score.dice for score in case.scores.values()])


@given(some_runs(), st.integers(0, 40))
@settings(max_examples=150)
def test_chosen_are_scored_pairs_shown_once_with_their_scores_and_reasons_that_hold(runs, count):
    chosen = choose_cases(runs, count)
    pairs = [(case.image_id, case.finding) for case in chosen]
    assert len(pairs) == len({*pairs}) <= count
    assert {*pairs} <= scored(runs)
    assert chosen == choose_cases(runs, count)
    assert not any(case.reasons[0] == "Best Dice" and failed(case.scores[runs[0].run.label]) for case in chosen)
    if scored(runs) and count:
        assert chosen
    for case in chosen:
        assert case.reasons and len({*case.reasons}) == len(case.reasons)
        for run in runs:
            place = run.run.images.image_ids.index(case.image_id), FINDINGS.index(case.finding)
            score = case.scores[run.run.label]
            assert score.dice == run.run.images.dice[place]
            assert score.pointing_hit == run.run.images.pointing_hit[place]
            assert score.recognized == (run.run.images.probabilities[place] >= 0.5)
        values = case.scores.values()
        for reason, holds in HOLD.items():
            assert reason not in case.reasons or any(map(holds, values))
        assert "Largest disagreement" not in case.reasons or len({score.dice for score in values}) > 1
        # One run alone has no reasons of its own.
        assert len(runs) > 1 or not any("run 0" in reason for reason in case.reasons)


def failed(score):
    """Whether a model recognized without looking, looked without recognizing, or neither."""
    return not (score.grounded and score.recognized)


@given(some_runs(), st.integers(1, 40))
@settings(max_examples=150)
def test_successes_come_last_and_every_failure_that_there_is_room_for_is_there(runs, count):
    chosen = choose_cases(runs, count)
    last = runs[-1].run.label
    for first, of in (("", runs[0].run.label), (last, last)):
        chosen = choose_cases(runs, count, first)
        failures = [failed(case.scores[of]) for case in chosen]
        assert failures == sorted(failures, reverse=True), "those of the run that is shown first come first"
        images, run = runs[0].run.images, next(run for run in runs if run.run.label == of).run.images
        right = (run.pointing_hit >= 0.5) & (run.probabilities >= 0.5)
        assert sum(failures) == min(count, (images.scored & ~right).sum())
        some = [any(map(failed, case.scores.values())) for case in chosen]
        assert some == sorted(some, reverse=True), "then those of any run"


@given(some_runs(), st.integers(40, 80))
@settings(max_examples=150)
def test_first_of_a_reason_is_the_extreme(runs, count):
    chosen = choose_cases(runs, count)
    if not chosen:
        return
    stacked = np.stack([run.run.images.dice[runs[0].run.images.scored] for run in runs])
    means = stacked.mean(axis=0)
    of = {reason: [case for case in chosen if reason in case.reasons] for case in chosen for reason in case.reasons}
    dice = "Dice" if len(runs) == 1 else "mean Dice"
    assert np.isclose(max(map(mean_dice, of[f"Best {dice}"])), max(means))
    assert np.isclose(min(map(mean_dice, of[f"Worst {dice}"])), min(means))
    middle = sorted(means)[(len(means) - 1) // 2]
    assert np.isclose(min(abs(mean_dice(case) - middle) for case in of[f"Median {dice}"]), 0, atol=1e-12)
    spreads = [np.ptp([s.dice for s in case.scores.values()]) for case in of.get("Largest disagreement", [])]
    assert np.isclose(max(spreads, default=0), np.ptp(stacked, axis=0).max())


def test_every_finding_has_its_turn():
    # Nodules are hopeless, effusions easy: by Dice alone all the best would be effusions.
    draw = np.random.default_rng(0)
    dice = draw.random((40, 3)) * [0.2, 0.02, 0.1] + [0.5, 0, 0.8]
    for right in (np.ones((40, 3)), np.zeros((40, 3))):
        runs = [a_run("A", dice, right, right), a_run("B", dice * 0.9, right, right)]
        counts = Counter(case.finding for case in choose_cases(runs, 24))
        assert {*counts} == {*FINDINGS} and min(counts.values()) >= 5


def test_what_a_run_did_not_score_or_keep_is_not_chosen():
    draw = np.random.default_rng(1)
    full, less = draw.random((10, 3)), draw.random((10, 3))
    less[:5] = np.nan
    kept = {(f"image-{row}", FINDINGS[1]) for row in range(10)}
    runs = [a_run("A", full, full, full), a_run("B", less, less, less), a_run("C", full, full, full, keeps=kept)]
    chosen = choose_cases(runs, 50)
    assert {case.finding for case in chosen} == {FINDINGS[1]}
    assert {int(case.image_id[6:]) for case in chosen} <= {*range(5, 10)}
    runs[2].run.cases = lambda: None
    chosen = choose_cases(runs, 50)
    assert {case.finding for case in chosen} == {*FINDINGS}
    assert all({*case.scores} == {"A", "B"} for case in chosen)
    assert choose_cases([], 5) == choose_cases(runs[2:], 5) == ()


def test_a_run_that_shares_no_pair_takes_no_case_from_the_others():
    dice = np.random.default_rng(3).random((10, 3))
    alone = choose_cases([a_run("A", dice, dice > 0.5, dice)], 50, "A")
    table = a_run("table", np.full((10, 3), np.nan), dice, dice)
    elsewhere = a_run("other regions", dice, dice, dice)
    elsewhere.run.images.region_digests[:] = b"fedcba9876543210"
    for first in ("A", ""):
        assert choose_cases([a_run("A", dice, dice > 0.5, dice), table, elsewhere], 50, first) == alone
    halves = [np.where(np.arange(10)[:, None] // 5 == half, dice, np.nan) for half in range(2)]
    runs = [
        a_run("A", dice, dice, dice),
        *(a_run(f"half {place}", half, half, half) for place, half in enumerate(halves)),
    ]
    assert all({*case.scores} == {"A", "half 0"} for case in choose_cases(runs, 50, "A"))


def test_without_a_threshold_nothing_counts_as_recognised_or_missed():
    dice = np.random.default_rng(2).random((20, 3))
    chosen = choose_cases([a_run("A", dice, dice > 0.5, dice, threshold=False)], 50)
    assert all(score.recognized is None for case in chosen for score in case.scores.values())
    assert not any("recogni" in reason.lower() for case in chosen for reason in case.reasons)
