from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from synthetic import write_run

from xbench.report.document import document
from xbench.report.runs import collect
from xbench.report.statistics.analyze import analyze
from xbench.report.statistics.below_half import auroc_warning, chances_below_half
from xbench.report.tables.contents import all_tables
from xbench.runs.finished import FinishedRun
from xbench.runs.results import SIGN_LEVEL


def test_the_findings_with_a_lost_sign_are_named(tmp_path):
    run = FinishedRun.open(write_run(tmp_path, "kad", recognition=2.0, images=120))

    def warning_of(*findings):
        turned, p = np.isin(run.results.findings, findings)[run.rows.finding], run.rows["probability"]
        rows = replace(run.rows, columns={**run.rows.columns, "probability": np.where(turned, 1 - p, p)})
        classes = {
            name: replace(scores, auroc=1 - scores.auroc) if name in findings else scores
            for name, scores in run.results.classification.per_class.items()
        }
        macro = {"auroc": float(np.mean([scores.auroc for scores in classes.values()]))}
        scores = replace(run.results.classification, per_class=classes, macro=macro)
        return auroc_warning(replace(run.results, classification=scores), rows)

    assert warning_of() == ""
    assert "for Nodule (" in warning_of("Nodule") and "Cardiomegaly" not in warning_of("Nodule")
    everything = "Cardiomegaly, Nodule, Pneumothorax"
    assert f"{everything}, all findings together" in warning_of(*everything.split(", "))


def test_chances_are_those_of_all_exchanges():
    """Of a small table every exchange can be tried."""
    labels = np.array([[1, 1, 1, 0, 0, 0, 0, 0]]).T.astype(np.int8)
    scores = np.array([[0.1, 0.3, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8]]).T

    def auroc(present):
        above = [
            (scores[i, 0] > scores[j, 0]) + (scores[i, 0] == scores[j, 0]) / 2
            for i in present
            for j in set(range(8)) - {*present}
        ]
        return np.mean(above)

    exact = np.mean([auroc(chosen) <= auroc((0, 1, 2)) + 1e-9 for chosen in combinations(range(8), 3)])
    assert chances_below_half(labels, scores, [*range(8)])[0] == pytest.approx(exact, abs=0.02)


def test_exchanges_end_early_only_where_nothing_can_be_significant():
    draw, early = np.random.default_rng(1), []
    for wrong in np.linspace(0, 1.5, 24):
        labels = draw.integers(0, 2, (60, 2)).astype(np.int8)
        scores = draw.normal(size=(60, 2)) - [wrong, 0] * labels
        complete = chances_below_half(labels, scores, [*range(60)])
        for wanted in ([0], [0, 2]):
            found = chances_below_half(labels, scores, [*range(60)], wanted)
            early.append(found != complete)
            if early[-1]:
                assert found == [1.0] * 3 and min(complete[place] for place in wanted) > SIGN_LEVEL
    assert 8 < sum(early) < 40


def test_useless_scores_are_rarely_suspected():
    """Even with few positives, scores that are mostly tied, and several films of a patient with the same score."""
    draw, suspected = np.random.default_rng(0), 0
    for _ in range(100):
        patients = draw.integers(0, 60, 150)
        labels = (draw.random((60, 3)) < 0.1)[patients].astype(np.int8)
        scores = (draw.random((60, 3)) < 0.9)[patients] * draw.choice([1.0, 0.5], (60, 3))[patients]
        suspected += min(chances_below_half(labels, scores, patients.tolist())) <= 0.01
    assert suspected <= 4


def test_a_run_and_its_report_say_it(command, tmp_path):
    config = {
        "model": {"class_path": "toys.Brightness"},
        "data": {"class_path": "toys.Squares", "init_args": {"num_workers": 0, "images": 60}},
        "trainer": {"logger": False, "accelerator": "cpu", "enable_progress_bar": False},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    run = command("test", "--config", tmp_path / "run.yaml", "--model.gain", "-8")
    stored = FinishedRun.open(run.folder)
    warning = auroc_warning(stored.results, stored.rows)
    assert warning and " ".join(warning.split()) in " ".join(run.output.split())
    analysis = analyze(collect([tmp_path / "runs"]))
    assert warning in document(analysis, all_tables(analysis), [])
