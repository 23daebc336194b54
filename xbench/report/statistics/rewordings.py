"""Test whether maps follow the words: phrases in other words against the original ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from xbench.report.runs import Run
from xbench.report.schema import Rewording, RunAnalysis
from xbench.report.statistics.measures import Measures, measure
from xbench.report.statistics.paired import PairedTest, common_measures, macro_difference, paired_test
from xbench.report.statistics.sample import Sample
from xbench.report.statistics.studies import with_p
from xbench.scoring.interventions import keys_of

_NUMBERS = ("pointing_game", "dice_fixed")
_CONDITION = "wording: "


def rewordings(runs: Sequence[RunAnalysis], folds: int, seed: int, ground: str) -> tuple[Rewording, ...]:
    """Return a row per run, wording and number, each with the paired test against the original phrases.

    p-values are corrected with Holm's method for the wordings and numbers of a run. `ground` names the dataset and
    split.
    """
    found: list[Rewording] = []
    for entry in runs:
        rows: list[Rewording] = []
        tests: dict[int, PairedTest] = {}
        for wording, own, other in _pairs(entry.run, folds) if entry.run.rows.texts else ():
            pairs, clusters = len(own.sample.row), len(np.unique(own.sample.pair_cluster))
            for key in _NUMBERS:
                if (test := paired_test(own, other, key)) is None:
                    continue
                if len(own.sample.clusters) > 1:
                    tests[len(rows)] = test
                values = own.macro()[key], other.macro()[key], macro_difference(other, own, key)
                rows.append(Rewording(entry.run.label, wording, key, pairs, clusters, *values, None))
        found += with_p(rows, tests, seed, f"{ground} wordings {entry.run.label}")
    return tuple(found)


def _pairs(run: Run, folds: int) -> Iterator[tuple[str, Measures, Measures]]:
    whole = Sample.of(run)
    keys = keys_of(run.rows)
    for view in run.stored.under_conditions:
        if view.condition.startswith(_CONDITION):
            other = Sample.of(replace(run, rows=view.rows, images=view.image_scores))
            there = {*keys_of(view.rows)}
            own = whole.with_pairs(np.array([keys[row] in there for row in whole.row], np.bool_))
            if both := common_measures(measure(own, folds), measure(other, folds), folds):
                yield view.condition.removeprefix(_CONDITION), *both
