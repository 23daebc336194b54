"""One answer for any number of processes: the same command, run for real with gloo on the CPU.

The processes are forks, but for those of one test with each launcher, which are started as users start them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forked import environment, run

from xbench.geometry.preprocessing import INPUT_NOTE

TOY = (
    "model: {class_path: toys.Brightness}\n"
    "data: {class_path: toys.Squares, init_args: {num_workers: 0, images: 19, batch_size: 2}}\n"
)
# Mean and standard deviation that nobody gave are noted once, of the images of the first batch.
TOY_OPTIONS = ("--model.fault", "unnormalised")
# Ten batches: one holds a single image, one none that can be read.
TOY_OPTIONS += ("--data.unreadable", "[4, 5, 8]", "--data.on_error", "skip", "--data.odd", "[1, 3, 4, 6, 9, 15]")
NATIVE_OPTIONS = ("--data.grid", "native", "--data.widths", "[64, 48, 90]")
# Convolutions and matrix products, which round differently when threads share them differently.
DEMO_OPTIONS = ("--data.images", "19", "--data.batch_size", "4", "--data.num_workers", "0")
COMMON = ("--trainer.logger", "false", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false")
MANY = ("--oversubscribe", "true")  # for the machine may have fewer cores than a test has processes
TABLES = ("per_image.parquet", "curves.parquet", "maps.parquet", "regions.parquet", "pictures.parquet", "per_class.csv")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def words(folder: Path, config: str, *options: str) -> list[str]:
    if config == "toy":
        (folder / "toy.yaml").write_text(TOY)
        config = str(folder / "toy.yaml")
    place = ("--trainer.default_root_dir", str(folder / "runs"))
    return ["-m", "xbench.cli", "test", "--config", config, *place, *COMMON, *MANY, *options]


def read(folder: Path) -> dict[str, bytes | str]:
    """Files of the one run in a folder, the provenance taken out."""
    (run,) = folder.glob("runs/*/*/results.json")
    results = json.loads(run.read_text())
    del results["provenance"]
    return {"results.json": json.dumps(results)} | {name: (run.parent / name).read_bytes() for name in TABLES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, tuple[str, ...]], dict[str, bytes | str]]:
    """What one process writes."""
    files = {}
    for config, options in (("toy", TOY_OPTIONS), ("toy", TOY_OPTIONS + NATIVE_OPTIONS), ("demo", DEMO_OPTIONS)):
        folder = tmp_path_factory.mktemp(config)
        done = run(*words(folder, config, *options), folder=folder)
        assert done.returncode == 0, done.stderr
        files[config, options] = read(folder)
    notes = {note["note"]: note for note in json.loads(files["toy", TOY_OPTIONS]["results.json"])["counts"]["notes"]}
    assert "a row without an image" in notes
    (of_input,) = (note for text, note in notes.items() if text.startswith(INPUT_NOTE))
    assert (of_input["count"], of_input["first"]) == (2, ["square-000", "square-001"])
    return files


@pytest.mark.parametrize(
    ("config", "options", "processes"),
    [
        ("toy", TOY_OPTIONS, 3),
        ("toy", TOY_OPTIONS + NATIVE_OPTIONS, 2),
        ("demo", DEMO_OPTIONS, 3),
    ],
    ids=["toy on 3", "native toy on 2", "demo on 3"],
)
def test_any_number_of_processes_gives_the_same_bytes(config, options, processes, alone, tmp_path):
    done = run(*words(tmp_path, config, *options, "--trainer.devices", str(processes)), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path) == alone[config, options]
    (results,) = tmp_path.glob("runs/*/*/results.json")
    assert json.loads(results.read_text())["provenance"]["devices"]["processes"] == processes


@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["Lightning's launcher", "torchrun"])
def test_new_interpreters_give_the_same_bytes(launcher, alone, tmp_path):
    command = [sys.executable, *launcher, *words(tmp_path, "demo", *DEMO_OPTIONS, "--trainer.devices", "2")]
    # run() kills at the timeout; a process that hangs in a collective would ignore a gentler signal.
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path) == alone["demo", DEMO_OPTIONS]
    (results,) = tmp_path.glob("runs/*/*/results.json")
    assert json.loads(results.read_text())["provenance"]["devices"]["processes"] == 2


def test_a_second_process_with_workers_gives_the_same_bytes(alone, tmp_path):
    options = ("--data.num_workers", "2", "--trainer.devices", "1")
    done = run(*words(tmp_path, "demo", *DEMO_OPTIONS, *options), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path) == alone["demo", DEMO_OPTIONS]


def test_fewer_batches_than_processes_is_refused(tmp_path):
    done = run(*words(tmp_path, "toy", "--data.images", "2", "--trainer.devices", "2"), folder=tmp_path)
    assert done.returncode != 0
    assert "1 batch, too few for 2 processes" in done.stderr


def test_an_error_in_one_process_ends_the_run(tmp_path):
    # Image 3 lies in the second batch, which the second process begins with.
    done = run(*words(tmp_path, "toy", "--data.unreadable", "[3]", "--trainer.devices", "2"), folder=tmp_path)
    assert done.returncode != 0
    assert "square-003" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*/*/results.json"))
