"""One answer for any number of processes: the same command, run with gloo on the CPU, mostly in forks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import run, run_ranks
from run_files import read

from xbench.cli import main
from xbench.runtime.notes import INPUT_NOTE

TOY = (
    "model: {class_path: toys.Brightness}\n"
    "data: {class_path: toys.Squares, init_args: {num_workers: 0, images: 19, batch_size: 2}}\n"
)
# Mean and standard deviation that nobody gave are noted once, of the images of the first batch.
TOY_OPTIONS = ("--model.fault", "unnormalized")
# Ten batches: one holds a single image, one none that can be read.
TOY_OPTIONS += ("--data.unreadable", "[4, 5, 8]", "--data.on_error", "skip", "--data.odd", "[1, 3, 4, 6, 9, 15]")
NATIVE_OPTIONS = ("--data.grid", "native", "--data.widths", "[64, 48, 90]")
# Convolutions and matrix products, which round differently when threads share them differently.
DEMO_OPTIONS = ("--data.images", "19", "--data.batch_size", "4", "--data.num_workers", "0")
COMMON = ("--trainer.logger", "false", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false")
MANY = ("--oversubscribe", "true")  # for the machine may have fewer cores than a test has processes


def words(folder: Path, config: str, *options: str) -> list[str]:
    if config == "toy":
        (folder / "toy.yaml").write_text(TOY)
        config = str(folder / "toy.yaml")
    place = ("--trainer.default_root_dir", str(folder / "runs"))
    return ["test", "--config", config, *place, *COMMON, *MANY, *options]


def processes_of(folder: Path) -> int:
    (path,) = folder.glob("runs/*/*/results.json")
    return json.loads(path.read_text())["provenance"]["devices"]["processes"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, tuple[str, ...]], dict[str, bytes | str]]:
    files = {}
    for config, options in (("toy", TOY_OPTIONS), ("toy", TOY_OPTIONS + NATIVE_OPTIONS), ("demo", DEMO_OPTIONS)):
        folder = tmp_path_factory.mktemp(config)
        assert main(words(folder, config, *options)) == 0
        files[config, options] = read(folder)
    results = json.loads(files["toy", TOY_OPTIONS]["results.json"])
    assert results["own_scale"]["scale"] == "logit" and results["own_scale"]["macro"]["dice_fixed"] > 0
    notes = {note["note"]: note for note in results["counts"]["notes"]}
    assert "a row without an image" in notes
    (of_input,) = (note for text, note in notes.items() if text.startswith(INPUT_NOTE))
    assert (of_input["count"], of_input["first"]) == (2, ["square-000", "square-001"])
    return files


@pytest.mark.parametrize(
    ("options", "processes"), [(TOY_OPTIONS, 3), (TOY_OPTIONS + NATIVE_OPTIONS, 2)], ids=["3", "2 on the native grid"]
)
def test_any_number_of_processes_gives_the_same_bytes(options, processes, alone, tmp_path):
    options_of_all = (*options, "--trainer.devices", str(processes))
    statuses, said = run_ranks(processes, words(tmp_path, "toy", *options_of_all), tmp_path)
    assert statuses == [0] * processes, said
    assert read(tmp_path) == alone["toy", options]
    assert processes_of(tmp_path) == processes


def test_phrases_give_the_same_bytes_in_any_number_of_processes(tmp_path):
    """Some batches have no query at all, some no image with a phrase."""
    files = []
    for processes in (1, 2, 3):
        (folder := tmp_path / str(processes)).mkdir()
        options = [
            "--data",
            "phrases.Phrases",
            "--data.images",
            "22",
            "--data.batch_size",
            "1",
            "--data.num_workers",
            "0",
        ]
        place = ("--trainer.default_root_dir", str(folder / "runs"), "--trainer.devices", str(processes))
        command = ["test", "--model", "toys.Brightness", *options, *place, *COMMON, *MANY]
        statuses, said = run_ranks(processes, command, folder)
        assert statuses == [0] * processes, said
        files.append(read(folder))
    assert files[0] == files[1] == files[2]


def test_new_interpreters_give_the_same_bytes(alone, tmp_path):
    done = run(*words(tmp_path, "demo", *DEMO_OPTIONS, "--trainer.devices", "2"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path) == alone["demo", DEMO_OPTIONS]
    assert processes_of(tmp_path) == 2


def test_data_workers_give_the_same_bytes(alone, tmp_path):
    assert main(words(tmp_path, "demo", *DEMO_OPTIONS, "--data.num_workers", "2")) == 0
    assert read(tmp_path) == alone["demo", DEMO_OPTIONS]


def test_an_error_in_one_process_ends_the_run(tmp_path):
    # Image 3 lies in the second batch, which the second process begins with.
    refused = words(tmp_path, "toy", "--data.unreadable", "[3]", "--trainer.devices", "2")
    statuses, said = run_ranks(2, refused, tmp_path)
    assert 0 not in statuses
    assert "square-003" in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("runs/*/*/results.json"))
