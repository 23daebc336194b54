from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from processes import gone, until
from run_files import disagreements, files_of, rules, run_in

from xbench.cli import main
from xbench.commands import rescore
from xbench.metrics import PointingGame, ThresholdSweep
from xbench.runs.finished import FinishedRun
from xbench.runs.images import ScoredPairs
from xbench.runtime.errors import UserError

# Images of several sizes, one that cannot be read and one with something odd; a last batch of another size.
TOYS = ("--data.widths", "[64, 90, 48]", "--data.unreadable", "[5]", "--data.on_error", "skip", "--data.odd", "[3, 4]")


@pytest.mark.parametrize(
    ("view", "grid", "by"),
    [
        ("whole", "native", (101, "share", 0.5)),
        ("whole", "[56, 50]", (1001, "any", 0.05)),
        ("crop", "[56, 50]", (11, "first", 1.0)),
        ("crop", "native", (11, "any", 0.05)),
    ],
    ids=str,
)
def test_other_rules_give_what_a_run_by_them_gives(command, toy_config, tmp_path, view, grid, by):
    thresholds, ties, gamma = by
    options = (*TOYS, "--data.grid", grid, "--model.crop", str(view == "crop").lower())
    run = command("test", "--config", toy_config, *options)
    again = command("rescore", run.folder, "--thresholds", thresholds, "--ties", ties, "--gamma", gamma, status=0)
    expected = command(
        *("test", "--config", toy_config, "--config", rules(tmp_path / "rules.yaml", thresholds, ties)),
        *(*options, "--data.gamma", str(gamma)),
    )
    assert files_of(again.folder) == files_of(expected.folder)
    if gamma != 0.5 and grid != "native":
        assert files_of(run.folder)["results.json"] != files_of(again.folder)["results.json"]
    assert disagreements(again.folder) == []
    provenance, fresh = again.results["provenance"], expected.results["provenance"]
    for key in ("evaluation", "data", "model", "prompts", "checkpoint_sha256", "preprocessing"):
        assert provenance[key] == fresh[key]
    assert provenance["rescored"]["from"] == str(run.folder)


def test_a_rescored_run_can_be_scored_again_and_reproduced(command, toy_config, tmp_path):
    run = command("test", "--config", toy_config, *TOYS)
    other = command("rescore", run.folder, "--ties", "any", "--thresholds", "51", "--gamma", "0.2")
    back = command("rescore", other.folder, "--ties", "share", "--thresholds", "101", "--gamma", "0.5")
    assert files_of(run.folder) == files_of(back.folder)
    fresh = command("test", "--config", other.folder / "config.yaml")
    assert files_of(fresh.folder) == files_of(other.folder)


def test_chosen_images_give_what_a_run_on_them_gives(command, toy_config, tmp_path):
    run = command("test", "--config", toy_config)
    (tmp_path / "first.txt").write_text("\n".join(f"square-{index:03d}" for index in reversed(range(7))) + "\n\n")
    again = command(
        "rescore", run.folder, "--images", tmp_path / "first.txt", "--out", tmp_path / "runs" / "x" / "y", status=0
    )
    expected = command("test", "--config", toy_config, "--data.limit", "7")
    assert again.results["split"] == "first"
    refused = command("reproduce", again.folder)
    assert refused.status == 2 and f"reproduce its source, {run.folder}" in refused.errors
    (parts, of_expected) = (files_of(run.folder) for run in (again, expected))
    results = json.loads(str(of_expected.pop("results.json"))) | {"split": "first"}
    assert json.loads(str(parts.pop("results.json"))) == results and parts == of_expected


def test_a_metric_of_ones_own_gets_what_the_run_had(command, toy_config):
    run = command("test", "--config", toy_config, *TOYS)
    stored = FinishedRun.open(run.folder)
    pointing_game, sweep = PointingGame(3), ThresholdSweep(3)
    logits = []
    for prediction, truth in (stored.batch(images, stored.rules.gamma) for images in stored.saved_batches()):
        logits.append(prediction.logits)
        empty = torch.zeros(224, 224, dtype=torch.bool)
        regions = torch.stack([empty if region is None else region for region in truth.regions])
        maps, every, valid = prediction.shown.values, regions.unflatten(0, (-1, 3)), torch.from_numpy(truth.scored)
        for metric in (pointing_game, sweep):
            metric.update(maps.unflatten(0, (-1, 3)), every, valid.unflatten(0, (-1, 3)))
    grounding = run.results["grounding"]["per_class"]
    for column, finding in enumerate(("Square", "Hole")):
        assert pointing_game.compute()["pointing_game"][column] == grounding[finding]["pointing_game"]
        assert sweep.compute()["dice"][column].tolist() == grounding[finding]["dice_curve"]
    assert torch.cat(logits).flatten().tolist() == [row["logit"] for row in run.rows]


def test_the_number_of_processes_changes_nothing(command, toy_config):
    run = command("test", "--config", toy_config, *TOYS)
    for workers in (0, 1, 3):
        again = command("rescore", run.folder, "--workers", str(workers), status=0)
        assert files_of(run.folder) == files_of(again.folder)
        assert "+0.0000" in again.output and "rescored" in again.output.lower()


def kill_oneself(kept):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed(run, command, monkeypatch):
    monkeypatch.setattr(rescore, "_score_in_worker", kill_oneself)
    again = command("rescore", run.folder, "--workers", "2")
    assert again.status == 1 and "Use fewer --workers than 2" in " ".join(again.errors.split())
    assert list(run.folder.parent.iterdir()) == [run.folder]


def say_and_wait(kept):
    Path("workers", str(os.getpid())).touch()
    time.sleep(300)


def test_nobody_goes_on_scoring_for_a_command_that_was_killed(run, command, monkeypatch, tmp_path):
    monkeypatch.setattr(rescore, "_score_in_worker", say_and_wait)
    (tmp_path / "workers").mkdir()
    scoring = multiprocessing.get_context("fork").Process(
        target=main, args=(["rescore", str(run.folder), "--workers", "2"],)
    )
    scoring.start()
    until(lambda: len(list((tmp_path / "workers").iterdir())) == 2)
    scoring.kill()
    scoring.join()
    until(lambda: all(gone(int(worker.name)) for worker in (tmp_path / "workers").iterdir()))


@pytest.fixture
def run(strangers):
    return SimpleNamespace(folder=strangers)


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--ties", "most"), 2, "invalid choice: 'most'"),
        (("--thresholds", "100"), 2, "--thresholds 100 omits the fixed threshold 0.5"),
        (("--thresholds", "1"), 2, "odd number from 3"),
        (("--workers", "-1"), 2, "'-1' is not a whole number"),
        (("--gamma", "0"), 2, "--gamma 0.0 must lie in (0, 1]"),
        (("--gamma", "nan"), 2, "--gamma nan must lie in (0, 1]"),
        (("--grid", "448"), 2, "unrecognized arguments"),
        (("--images", "nothing.txt"), 2, "nothing.txt cannot be read"),
        (("--images", "empty.txt"), 2, "empty.txt is empty"),
        (("--images", "=ids.txt"), 2, "must be printable"),
        (("--images", "others.txt"), 2, "names 1 images that the run did not score (first: square-099)"),
        (("--out", "."), 2, "exists already"),
    ],
    ids=str,
)
def test_wrong_options(run, command, tmp_path, options, status, message):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "others.txt").write_text("square-001\nsquare-099\n")
    (tmp_path / "=ids.txt").write_text("square-001\n")
    before = {*tmp_path.rglob("*")}
    again = command("rescore", run.folder, *options)
    assert again.status == status and message in " ".join(again.errors.split())
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.parametrize("name", ["predictions.parquet", "truth.parquet", "pictures.parquet", "pairs.parquet"])
def test_damaged_files(run, command, tmp_path, name):
    """Whatever bit has turned is found, or is one that says nothing."""
    content = bytearray((run.folder / name).read_bytes())
    draw = np.random.default_rng(0)
    for trial in range(12):
        folder = tmp_path / "damaged" / str(trial) / "run"
        shutil.copytree(run.folder, folder)
        damaged = bytearray(content)
        damaged[int(draw.integers(len(content)))] ^= 1 << int(draw.integers(8))
        (folder / name).write_bytes(damaged[: int(draw.integers(len(content))) if trial % 3 == 0 else None])
        again = command("rescore", folder, "--workers", "0")
        if again.status == 0:
            assert files_of(run.folder) == files_of(next(path for path in folder.parent.iterdir() if path != folder))
        else:
            assert again.errors.startswith(f"error: {folder}: a file of the run cannot be read"), trial
            assert list(folder.parent.iterdir()) == [folder]
    shutil.rmtree(folder)
    shutil.copytree(run.folder, folder)
    (folder / name).unlink()
    again = command("rescore", folder, "--workers", "0")
    if name == "pictures.parquet":  # which may be deleted before a run is shared
        (other,) = (path for path in folder.parent.iterdir() if path != folder)
        assert (other / "pairs.parquet").read_bytes() == (folder / "pairs.parquet").read_bytes()
    else:
        assert f"it has no {name}" in again.errors


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(("data.batch_size", value) for value in (0, -1, "x", 1.5, True, None, KeyError)),
        *(("data.grid", value) for value in ("x", None, [224], [0, 5], ["a", "b"], [10**9, 10**9], KeyError)),
        *(("data.gamma", value) for value in ("nan", 0, 1.5, None, KeyError)),
        *(("model.saliency_upsample", value) for value in ("cubic", None, ["bilinear"], KeyError)),
        *(("evaluation.thresholds", value) for value in (10**9 + 1, 1, "101", None, KeyError)),
        *(("evaluation.ties", value) for value in ("most", ["any"], None, KeyError)),
        *((place, KeyError) for place in ("model", "data", "evaluation", "preprocessing", "checkpoint_sha256")),
        *((place, value) for place in ("model", "data", "evaluation") for value in (None, [], "x")),
        *((place, [1]) for place in ("seconds", "versions")),
    ],
    ids=str,
)
def test_a_strangers_results(strangers, command, place, value):
    *parts, last = place.split(".")
    content = json.loads((strangers / "results.json").read_text())
    part = reduce(dict.__getitem__, parts, content["provenance"])
    part[last] = value
    if value is KeyError:
        del part[last]
    (strangers / "results.json").write_text(json.dumps(content))
    again = command("rescore", strangers, "--workers", "0")
    assert again.status == 1, again.output
    assert again.errors.startswith(f"error: {strangers}: a file of the run cannot be read: ")
    assert list(strangers.parent.iterdir()) == [strangers]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("finished")
    pair = '{"model": {"class_path": "toys.Brightness"}, "data": {"class_path": "toys.Squares"}}'
    few = "--data.num_workers=0 --data.limit=6 --data.batch_size=4 --trainer.logger=false --trainer.accelerator=cpu"
    assert main(["test", "--config", pair, *few.split(), "--trainer.default_root_dir", str(root)]) == 0
    return run_in(root)


@pytest.fixture
def strangers(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "strangers" / "run"))


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        *(("images.parquet", "index", value) for value in (-1, 0, None)),
        *(
            ("images.parquet", "crop", value)
            for value in ([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, np.nan, 1.0], [0.0, 1.0], None)
        ),
        *(("images.parquet", "height", value) for value in (0, -5)),
        *(("predictions.parquet", "map", value) for value in ([np.nan] * 49, [0.0], [])),
        *(("predictions.parquet", "map_shape", value) for value in ([10**9, 10**9], [-7, -7], [7], [], [1, 49], None)),
        *(("predictions.parquet", "query", value) for value in ("Unheard-of", None)),
        *(("truth.parquet", "present", value) for value in (False, None)),
        *(("truth.parquet", "query", value) for value in ("Unheard-of", None)),
        *(("truth.parquet", "shape", value) for value in ([10**9, 10**9], [112, 448], [])),
        ("truth.parquet", "whole", b""),
        ("truth.parquet", "partial", [2**31]),
    ],
    ids=str,
)
def test_a_strangers_maps(strangers, command, name, column, value):
    table = pq.read_table(strangers / name)
    rows = table.to_pylist()
    rows[1][column] = value
    pq.write_table(pa.Table.from_pylist(rows, table.schema), strangers / name)
    again = command("rescore", strangers, "--workers", "0")
    assert again.status == 1, again.output
    assert again.errors.startswith(f"error: {strangers}: a file of the run cannot be read: ")
    try:
        cases = ScoredPairs(strangers)
        for pair in cases:
            cases.read(*pair)
    except UserError as error:
        assert str(error).startswith(f"{strangers}: a file of the run cannot be read: ")


LAUGHS = b"a0: &a0 {x: 1}\n" + b"".join(
    b"a%d: &a%d {<<: [%s]}\n" % (k, k, b", ".join([b"*a%d" % (k - 1)] * 10)) for k in range(1, 10)
)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"[" * 5000, b"data: 3", b"&a [*a]", LAUGHS],
    ids=["bytes", "deep", "number", "itself", "laughs"],
)
def test_a_strangers_configuration(strangers, command, content):
    (strangers / "config.yaml").write_bytes(content)
    assert command("rescore", strangers, "--workers", "0").status == 0


def test_files_of_another_run(run, command, toy_config, tmp_path):
    other = command("test", "--config", toy_config, "--data.limit", "5")
    for name in ("predictions.parquet", "truth.parquet", "pictures.parquet"):
        (run.folder / name).write_bytes((other.folder / name).read_bytes())
    assert "are not those of pairs.parquet" in command("rescore", run.folder).errors
