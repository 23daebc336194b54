"""AUROC significantly below one half is said at the end of a run and in its report, by one test."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from synthetic import write_run

from xbench.report.document import document
from xbench.report.runs import collect
from xbench.report.statistics.analyse import analyse
from xbench.report.statistics.below_half import auroc_warning, chances_below_half
from xbench.report.tables.contents import all_tables
from xbench.runs.finished import FinishedRun


def upside_down(folder, *findings):
    """Return results and scores of a run as they are with scores of the wrong sign for some findings."""
    run = FinishedRun.open(folder)
    images, results = run.image_scores, run.results
    turned = np.isin(results.findings, findings)
    images = replace(images, probabilities=np.where(turned, 1 - images.probabilities, images.probabilities))
    classes = {
        name: replace(scores, auroc=1 - scores.auroc) if name in findings else scores
        for name, scores in results.classification.per_class.items()
    }
    mean = float(np.mean([scores.auroc for scores in classes.values()]))
    return replace(
        results, classification=replace(results.classification, per_class=classes, macro={"auroc": mean})
    ), images


def test_the_findings_with_a_lost_sign_are_named(tmp_path):
    folder = write_run(tmp_path, "kad", recognition=2.0, images=120)
    assert auroc_warning(*upside_down(folder)) == ""
    said = auroc_warning(*upside_down(folder, "Nodule"))
    assert "for Nodule (" in said and "Cardiomegaly" not in said and "sign" in said and "column" in said
    said = auroc_warning(*upside_down(folder, "Nodule", "Cardiomegaly", "Pneumothorax"))
    assert "Cardiomegaly, Nodule, Pneumothorax, all findings together" in said


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
    warning = auroc_warning(stored.results, stored.image_scores)
    assert warning and " ".join(warning.split()) in " ".join(run.output.split())
    analysis = analyse(collect([tmp_path / "runs"]))
    assert warning in document(analysis, all_tables(analysis), [])
