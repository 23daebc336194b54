"""Phrases, images without a query, and a condition go through run, resume, rescore, verify and report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from run_files import files_of

from xbench.cli import main
from xbench.commands.verify import disagreements
from xbench.findings.queries import PHRASES
from xbench.runs.finished import FinishedRun

DATA = ("--data", "phrases.Phrases", "--data.images", "22", "--data.batch_size", "4", "--data.num_workers", "0")
QUIET = ("--trainer.logger", "false", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false")
BRIGHTNESS, SHOWN, TOLD = ("toys.Brightness",), ("oracles.Shown", "maps"), ("oracles.Told", "boxes")


@pytest.mark.parametrize(("model", "mirrored"), [(BRIGHTNESS, True), (SHOWN, False), (TOLD, True)])
def test_phrases_go_all_the_way(model, mirrored, tmp_path, monkeypatch):
    changed = "phrases.Mirrored" if mirrored else "phrases.Tires"
    callbacks = ("evaluation.Evaluation", "case_keeper.CaseKeeper", changed, "results_writer.ResultsWriter")
    places = [{"class_path": name if "phrases" in name else f"xbench.callbacks.{name}"} for name in callbacks]
    config = tmp_path / "callbacks.yaml"
    config.write_text(json.dumps({"trainer": {"callbacks": places}}))
    kind = () if len(model) == 1 else ("--model.what", model[1])
    options = ("--model", model[0], *kind, *DATA, *QUIET, "--config", str(config))

    def run(name: str, *more: str, status: int = 0) -> Path:
        assert main(["test", *options, "--trainer.default_root_dir", str(tmp_path / name), *more]) == status
        return next((path.parent for path in tmp_path.glob(f"{name}/*/*/results.json")), tmp_path)

    whole = run("whole")
    monkeypatch.setenv("ORACLE_TIRES", "1")
    run("parts", status=1)
    monkeypatch.delenv("ORACLE_TIRES")
    assert files_of(run("parts", "--resume", "true")) == files_of(whole)
    assert main(["rescore", str(whole), "--out", str(tmp_path / "again"), "--workers", "0"]) == 0
    assert files_of(tmp_path / "again") == files_of(whole)
    assert disagreements(whole, deep=True) == []
    assert main(["report", str(tmp_path / "whole"), "--out", str(tmp_path / "report")]) == 0

    results, table = FinishedRun.open(whole).results, pq.read_table(whole / "pairs.parquet")
    rows = [row for row in table.to_pylist() if not row["condition"]]
    assert len(table) == len(rows) * (1 + mirrored)
    # Image 0 has two phrases, image 1 no query, image 2 an absent phrase, image 3 a finding and a phrase.
    of_images = [[(row["query"], row["label"]) for row in rows if row["index"] == index] for index in range(4)]
    assert of_images == [[("dark-1", 1), ("bright-1", 0)], [], [("dark-2", 0)], [("Square", 1), ("dark-1", 1)]]
    assert results.findings == ("Square", PHRASES)
    for finding, group in (("Square", "Square"), (PHRASES, None)):
        own = [row for row in rows if row["finding"] == group]
        scores, counts = results.grounding.per_class[finding], results.counts.per_finding[finding]
        assert scores.count == sum(row["scored"] for row in own) > 1
        hits = [row["pointing_hit"] for row in own if row["scored"]]
        assert scores.pointing_game == pytest.approx(np.mean(hits), abs=1e-12)
        assert (counts.positives, counts.negatives) == tuple(sum(row["label"] == x for row in own) for x in (1, 0))
    # A phrase says nothing about whether its finding is there.
    recognised = results.classification.per_class
    assert recognised["Square"].positives == sum(row["query"] == "Square" and row["label"] == 1 for row in rows)
    assert recognised[PHRASES].auroc is None and recognised[PHRASES].positives == 0
    assert results.counts.images == len({row["index"] for row in rows}) == 16
    assert len(pq.read_table(whole / "images.parquet")) == 22
    if model == SHOWN:
        assert results.grounding.macro["pointing_game"] == results.grounding.macro["dice_fixed"] == 1
    if model == BRIGHTNESS:
        maps = pq.read_table(whole / "predictions.parquet").to_pylist()
        first = {row["condition"]: np.reshape(row["map"], row["map_shape"]) for row in maps if row["query"] == "dark-1"}
        assert not np.array_equal(first[""], first["mirrored"])
        assert np.array_equal(first[""], first["mirrored"][:, ::-1])
