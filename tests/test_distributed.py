"""One answer for any number of processes: the same command, run for real with gloo on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TOY = (
    "model: {class_path: toys.Brightness}\n"
    "data: {class_path: toys.Squares, init_args: {num_workers: 0, images: 19, batch_size: 2}}\n"
)
# Ten batches: one holds a single image, one none that can be read.
TOY_OPTIONS = ("--data.unreadable", "[4, 5, 8]", "--data.on_error", "skip", "--data.odd", "[1, 3, 4, 6, 9, 15]")
NATIVE_OPTIONS = ("--data.grid", "native", "--data.widths", "[64, 48, 90]")
# Convolutions and matrix products, which round differently when threads share them differently.
DEMO_OPTIONS = ("--data.images", "19", "--data.batch_size", "4", "--data.num_workers", "0")
COMMON = ("--trainer.logger", "false", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false")
TABLES = ("per_image.parquet", "curves.parquet", "maps.parquet", "regions.parquet", "pictures.parquet", "per_class.csv")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m")


def launch(
    folder: Path, config: str, *options: str, launcher: tuple[str, ...] = ("-m",)
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(TESTS), CUDA_VISIBLE_DEVICES="")
    environment.pop("OMP_NUM_THREADS", None)
    if config == "toy":
        (folder / "toy.yaml").write_text(TOY)
        config = str(folder / "toy.yaml")
    words = ["xbench.cli", "test", "--config", config, "--trainer.default_root_dir", str(folder / "runs")]
    # run() kills at the timeout; a process that hangs in a collective would ignore a gentler signal.
    return subprocess.run(
        [sys.executable, *launcher, *words, *COMMON, *options],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


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
        run = launch(folder, config, *options)
        assert run.returncode == 0, run.stderr
        files[config, options] = read(folder)
    assert '"a row without an image"' in files["toy", TOY_OPTIONS]["results.json"]
    return files


@pytest.mark.parametrize(
    ("config", "options", "processes"),
    [
        ("toy", TOY_OPTIONS, 3),
        ("toy", TOY_OPTIONS + NATIVE_OPTIONS, 2),
        ("demo", DEMO_OPTIONS, 2),
        ("demo", DEMO_OPTIONS, 3),
    ],
    ids=["toy on 3", "native toy on 2", "demo on 2", "demo on 3"],
)
def test_any_number_of_processes_gives_the_same_bytes(config, options, processes, alone, tmp_path):
    run = launch(tmp_path, config, *options, "--trainer.devices", str(processes))
    assert run.returncode == 0, run.stderr
    assert read(tmp_path) == alone[config, options]
    (results,) = tmp_path.glob("runs/*/*/results.json")
    assert json.loads(results.read_text())["provenance"]["devices"]["processes"] == processes


def test_torchrun_gives_the_same_bytes(alone, tmp_path):
    run = launch(tmp_path, "demo", *DEMO_OPTIONS, "--trainer.devices", "2", launcher=TORCHRUN)
    assert run.returncode == 0, run.stderr
    assert read(tmp_path) == alone["demo", DEMO_OPTIONS]


def test_a_second_process_with_workers_gives_the_same_bytes(alone, tmp_path):
    run = launch(tmp_path, "demo", *DEMO_OPTIONS, "--data.num_workers", "2", "--trainer.devices", "1")
    assert run.returncode == 0, run.stderr
    assert read(tmp_path) == alone["demo", DEMO_OPTIONS]


def test_fewer_batches_than_processes_is_refused(tmp_path):
    run = launch(tmp_path, "toy", "--data.images", "2", "--trainer.devices", "2")
    assert run.returncode != 0
    assert "1 batches, too few for 2 processes" in run.stderr


def test_an_error_in_one_process_ends_the_run(tmp_path):
    # Image 3 lies in the second batch, which the second process begins with.
    run = launch(tmp_path, "toy", "--data.unreadable", "[3]", "--trainer.devices", "2")
    assert run.returncode != 0
    assert "square-003" in run.stderr
    assert "Traceback" not in run.stderr
    assert not list(tmp_path.glob("runs/*/*/results.json"))
