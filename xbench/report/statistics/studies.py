"""Test what other prompts or another input size change, all else equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import comb
from typing import TypeVar

from xbench.report.names import model_title
from xbench.report.schema import Rewording, RunAnalysis, StudyRow
from xbench.report.statistics.correlation import own_settings
from xbench.report.statistics.paired import PairedTest, Pairing, exchange_tests, paired_test
from xbench.scoring.numbers import holm

STUDIES = {"prompts": {"prompts", "prompt_texts"}, "image_size": {"image_size"}}
"""Studied settings, each with its names in a run."""
_NUMBERS = ("pointing_game", "dice_cross_fitted")
_Row = TypeVar("_Row", StudyRow, Rewording)


def studies(runs: Sequence[RunAnalysis], on_common: Pairing, seed: int, ground: str) -> tuple[StudyRow, ...]:
    """Return a row per study, model, number and finding, the mean over findings first.

    A model's own run has official prompts and the smallest size; a study takes the runs that differ from it in one
    setting alone. The paired test is between the two extremes, so its p-value is multiplied by the number of ways to
    pick two (Bonferroni), then corrected with Holm's method for the rows of the study, model and number. The runs are
    of one dataset and split, named by `ground`; `seed` is that of the exchanges.
    """
    found: list[StudyRow] = []
    for own in own_settings(runs):
        for study, names in STUDIES.items():
            same = [run for run in runs if run.run.but(names) == own.run.but(names)]
            by_value = {run.run.settings.get(study, "none"): run for run in same}
            for number in _NUMBERS if len(by_value) > 1 else ():
                words = f"{ground} {study} {own.run.model} {number}"
                rows, tests = _rows(study, number, own, by_value, on_common)
                found += with_p(rows, tests, seed, words, comb(len(by_value), 2))
    return tuple(found)


def with_p(rows: Sequence[_Row], tests: Mapping[int, PairedTest], seed: int, words: str, ways: int = 1) -> list[_Row]:
    """Return rows with p-values of `tests` by index, times `ways` (Bonferroni), then corrected with Holm's method."""
    p_values = exchange_tests([*tests.values()], ways * len(tests), seed, words)
    corrected = dict(zip(tests, holm([min(1.0, ways * p) for p in p_values]), strict=True))
    return [replace(row, p_adjusted=corrected.get(place)) for place, row in enumerate(rows)]


def _rows(
    study: str, number: str, own: RunAnalysis, by_value: Mapping[str, RunAnalysis], on_common: Pairing
) -> tuple[list[StudyRow], dict[int, PairedTest]]:
    own_value = own.run.settings.get(study, "none")
    order = sorted(by_value, key=lambda value: (value != own_value, int(value) if value.isdigit() else 0, value))
    rows: list[StudyRow] = []
    tests: dict[int, PairedTest] = {}
    for finding in (None, *own.findings):
        values = {value: by_value[value].number(number, finding) for value in order}
        existing = {value: estimate.value for value, estimate in values.items() if estimate.value is not None}
        if len(existing) < 2:
            continue
        low, high = (choose(existing, key=lambda value: existing[value]) for choose in (min, max))
        both = on_common(by_value[high].run.label, by_value[low].run.label)
        # A test needs two clusters.
        if both is not None and len(both[0].sample.clusters) > 1 and (test := paired_test(*both, number, finding)):
            tests[len(rows)] = test
        spread = existing[high] - existing[low]
        relative = spread / base if (base := existing.get(own_value)) else None
        model, dataset = model_title(own.run.model), own.run.dataset
        rows.append(StudyRow(study, model, dataset, finding or "macro", number, values, spread, relative, None))
    return rows, tests
