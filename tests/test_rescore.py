"""A run scored again from what it kept is the run that the new rules would have given, to the byte."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from xbench import rescore
from xbench.cases import read_kept
from xbench.metrics import PointingGame, ThresholdSweep
from xbench.stored_run import StoredRun
from xbench.verify import disagreements

TABLES = ("per_image.parquet", "curves.parquet", "maps.parquet", "regions.parquet", "pictures.parquet", "per_class.csv")
# Images of several sizes, one that cannot be read and one with something odd; a last batch of another size.
TOYS = ("--data.widths", "[64, 90, 48]", "--data.unreadable", "[5]", "--data.on_error", "skip", "--data.odd", "[3, 4]")


def but_provenance(folder: Path) -> dict:
    results = json.loads((folder / "results.json").read_text())
    del results["provenance"]
    return results


def assert_same(one: Path, other: Path) -> None:
    assert but_provenance(one) == but_provenance(other)
    for name in TABLES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def evaluation(tmp_path: Path, thresholds: int, ties: str) -> tuple[str, str]:
    """Options that make `test` score by other rules."""
    path = tmp_path / "rules.yaml"
    callbacks = "".join(
        f"    - {{class_path: xbench.callbacks.{name}}}\n"
        for name in ("case_keeper.CaseKeeper", "results_writer.ResultsWriter")
    )
    path.write_text(
        "trainer:\n  callbacks:\n"
        "    - class_path: xbench.callbacks.evaluation.Evaluation\n"
        f"      init_args: {{thresholds: {thresholds}, ties: {ties}}}\n{callbacks}"
    )
    return "--config", str(path)


@pytest.mark.parametrize("view", ["whole", "crop"])
@pytest.mark.parametrize("grid", ["[56, 50]", "native"])
@pytest.mark.parametrize("rules", [(101, "share", 0.5), (1001, "any", 0.05), (11, "first", 1.0)], ids=str)
def test_other_rules_give_what_a_run_by_them_gives(command, toy_config, tmp_path, view, grid, rules):
    thresholds, ties, gamma = rules
    options = (*TOYS, "--data.grid", grid, "--model.crop", str(view == "crop").lower())
    run = command("test", "--config", toy_config, *options)
    again = command("rescore", run.folder, "--thresholds", thresholds, "--ties", ties, "--gamma", gamma)
    assert again.status == 0, again.errors
    expected = command(
        *("test", "--config", toy_config, *evaluation(tmp_path, thresholds, ties)),
        *(*options, "--data.gamma", str(gamma)),
    )
    assert_same(again.folder, expected.folder)
    if gamma != 0.5 and grid != "native":
        assert but_provenance(run.folder) != but_provenance(again.folder)
    assert disagreements(again.folder) == []
    provenance, fresh = again.results["provenance"], expected.results["provenance"]
    for key in ("evaluation", "data", "model", "prompts", "checkpoint_sha256", "preprocessing"):
        assert provenance[key] == fresh[key]
    assert provenance["rescored"]["from"] == str(run.folder)


def test_without_new_rules_nothing_changes(command, toy_config):
    run = command("test", "--config", toy_config, *TOYS)
    again = command("rescore", run.folder)
    assert_same(run.folder, again.folder)
    assert "+0.0000" in again.output and "as stored" in again.output.lower()


def test_a_rescored_run_can_be_scored_again_and_reproduced(command, toy_config, tmp_path):
    run = command("test", "--config", toy_config, *TOYS)
    other = command("rescore", run.folder, "--ties", "any", "--thresholds", "51", "--gamma", "0.2")
    back = command("rescore", other.folder, "--ties", "share", "--thresholds", "101", "--gamma", "0.5")
    assert_same(run.folder, back.folder)
    fresh = command("test", "--config", other.folder / "config.yaml")
    assert_same(fresh.folder, other.folder)


def test_chosen_images_give_what_a_run_on_them_gives(command, toy_config, tmp_path):
    run = command("test", "--config", toy_config)
    (tmp_path / "first.txt").write_text("\n".join(f"square-{index:03d}" for index in reversed(range(7))) + "\n\n")
    again = command("rescore", run.folder, "--images", tmp_path / "first.txt", "--out", tmp_path / "runs" / "x" / "y")
    assert again.status == 0, again.errors
    expected = command("test", "--config", toy_config, "--data.limit", "7")
    assert again.results["split"] == "first"
    refused = command("reproduce", again.folder)
    assert refused.status == 2 and f"reproduce the run that it comes from, {run.folder}" in refused.errors
    assert but_provenance(again.folder) == but_provenance(expected.folder) | {"split": "first"}
    for name in TABLES:
        assert (again.folder / name).read_bytes() == (expected.folder / name).read_bytes(), name


def test_a_metric_of_ones_own_gets_what_the_run_had(command, toy_config):
    run = command("test", "--config", toy_config, *TOYS)
    stored = StoredRun.open(run.folder)
    pointing_game, sweep = PointingGame(3), ThresholdSweep(3)
    logits = []
    for output, batch in stored.batches():
        logits.append(output.logits)
        for row, regions in enumerate(batch.regions):
            every = torch.zeros(1, 3, 224, 224, dtype=torch.bool)
            every[0, batch.has_region[row]] = regions
            valid = batch.has_region[row] & (batch.labels[row] == 1)
            pointing_game.update(output.saliency[row : row + 1], every, valid[None])
            sweep.update(output.saliency[row : row + 1], every, valid[None])
    grounding = run.results["grounding"]["per_class"]
    for column, finding in enumerate(("Square", "Hole")):
        assert pointing_game.compute()["pointing_game"][column] == grounding[finding]["pointing_game"]
        assert sweep.compute()["dice"][column].tolist() == grounding[finding]["dice_curve"]
    assert torch.cat(logits).flatten().tolist() == [row["logit"] for row in run.rows]


def test_what_the_maps_depend_on_is_kept_with_them(command, toy_config):
    run = command("test", "--config", toy_config, "--data.limit", "4")
    twice = command("test", "--config", toy_config, "--data.limit", "4", "--model.crop", "true")
    one, other = ([image.image_sha256 for image in read_kept(folder)] for folder in (run.folder, twice.folder))
    assert len({*one, *other}) == 8, "an image's digest is that of the model input"
    assert [image.image_sha256 for image in read_kept(run.folder)] == one
    stored = [json.loads(pq.read_schema(run.folder / "maps.parquet").metadata[b"depends_on"]) for run in (run, twice)]
    provenance = run.results["provenance"]
    assert stored[0] == {
        key: provenance[key] for key in ("model", "checkpoint_sha256", "prompts", "preprocessing", "precision")
    }
    assert stored[0]["preprocessing"] != stored[1]["preprocessing"]


def test_the_number_of_processes_changes_nothing(command, toy_config):
    run = command("test", "--config", toy_config, *TOYS)
    for workers in (0, 1, 3):
        again = command("rescore", run.folder, "--workers", str(workers))
        assert again.status == 0, again.errors
        assert_same(run.folder, again.folder)


def kill_oneself(kept):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed(run, command, monkeypatch):
    monkeypatch.setattr(rescore, "_score_in_worker", kill_oneself)
    again = command("rescore", run.folder, "--workers", "2")
    assert again.status == 1 and "Run the command again with fewer --workers than 2" in " ".join(again.errors.split())
    assert list(run.folder.parent.iterdir()) == [run.folder]


def say_and_wait(kept):
    Path("workers", str(os.getpid())).touch()
    time.sleep(300)


def test_nobody_goes_on_scoring_for_a_command_that_was_killed(run, command, monkeypatch, tmp_path):
    monkeypatch.setattr(rescore, "_score_in_worker", say_and_wait)
    (tmp_path / "workers").mkdir()
    scoring = multiprocessing.get_context("fork").Process(
        target=rescore.rescore, args=([str(run.folder), "--workers", "2"],)
    )
    scoring.start()
    until(lambda: len(list((tmp_path / "workers").iterdir())) == 2)
    scoring.kill()
    scoring.join()
    until(lambda: not any(Path("/proc", pid.name).exists() for pid in (tmp_path / "workers").iterdir()))


def until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def run(command, toy_config):
    return command("test", "--config", toy_config, "--data.limit", "6")


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--ties", "most"), 2, "invalid choice: 'most'"),
        (("--thresholds", "100"), 2, "--thresholds 100 leaves out the fixed threshold 0.5"),
        (("--thresholds", "1"), 2, "odd number from 3"),
        (("--workers", "-1"), 2, "--workers -1: give a number of processes from 0"),
        (("--gamma", "0"), 2, "--gamma 0.0 must lie in (0, 1]"),
        (("--gamma", "nan"), 2, "--gamma nan must lie in (0, 1]"),
        (("--grid", "448"), 2, "unrecognized arguments"),
        (("--images", "nothing.txt"), 2, "nothing.txt cannot be read"),
        (("--images", "empty.txt"), 2, "empty.txt is empty"),
        (("--images", "others.txt"), 2, "names 1 images that the run did not score (first: square-099)"),
        (("--out", "."), 2, "exists already"),
    ],
    ids=str,
)
def test_wrong_options(run, command, tmp_path, options, status, message):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "others.txt").write_text("square-001\nsquare-099\n")
    before = {*tmp_path.rglob("*")}
    again = command("rescore", run.folder, *options)
    assert again.status == status and message in " ".join(again.errors.split())
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.parametrize("name", ["maps.parquet", "regions.parquet", "pictures.parquet", "per_image.parquet"])
def test_damaged_files(run, command, tmp_path, name):
    content = bytearray((run.folder / name).read_bytes())
    draw = np.random.default_rng(0)
    for trial in range(12):
        folder = tmp_path / "damaged" / str(trial) / "run"
        shutil.copytree(run.folder, folder)
        damaged = bytearray(content)
        for place in draw.integers(0, len(content), 6):
            damaged[place] ^= int(draw.integers(1, 256))
        (folder / name).write_bytes(damaged[: int(draw.integers(len(content))) if trial % 3 == 0 else None])
        again = command("rescore", folder)
        assert again.status == 0 or again.errors.startswith(f"error: {folder}: a file of the run cannot be read"), trial
    shutil.rmtree(folder)
    shutil.copytree(run.folder, folder)
    (folder / name).unlink()
    assert f"it has no {name}" in command("rescore", folder).errors


def test_files_of_another_run(run, command, toy_config, tmp_path):
    other = command("test", "--config", toy_config, "--data.limit", "5")
    for name in ("maps.parquet", "regions.parquet", "pictures.parquet"):
        (run.folder / name).write_bytes((other.folder / name).read_bytes())
    assert "maps.parquet has fewer images than per_image.parquet" in command("rescore", run.folder).errors
