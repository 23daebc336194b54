"""One answer for any number of processes: the same command, run for real with gloo on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Ten batches: 2 processes get 5 each, 3 get 4, 3 and 3. One holds a single image, one none that can be read.
OPTIONS = ["--data.images", "19", "--data.batch_size", "2", "--data.unreadable", "[4, 5, 8]", "--data.on_error", "skip"]


def launch(
    folder: Path, config: Path, *options: str, launcher: tuple[str, ...] = ("-m",)
) -> subprocess.CompletedProcess:
    environment = dict(os.environ, PYTHONPATH=str(TESTS), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    words = ["xbench.cli", "test", "--config", str(config), "--trainer.default_root_dir", str(folder), *options]
    # KILL, since a process that hangs in a collective ignores gentler signals.
    return subprocess.run(
        [sys.executable, *launcher, *words],
        env=environment,
        cwd=config.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


def read(folder: Path) -> dict[str, bytes]:
    (run,) = folder.glob("*/*/results.json")
    results = json.loads(run.read_text())
    processes = results.pop("provenance")["devices"]["processes"]
    files = {name: (run.parent / name).read_bytes() for name in ("per_image.parquet", "per_class.csv")}
    return {"processes": processes, "results.json": json.dumps(results), **files}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "toy.yaml"
    path.write_text(
        "model: {class_path: toys.Brightness}\n"
        "data: {class_path: toys.Squares, init_args: {num_workers: 0}}\n"
        "trainer: {logger: false, accelerator: cpu, enable_progress_bar: false}\n"
    )
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, config: Path) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("alone")
    run = launch(folder, config, *OPTIONS)
    assert run.returncode == 0, run.stderr
    return read(folder)


@pytest.mark.parametrize("processes", [2, 3])
def test_any_number_of_processes_gives_the_same_bytes(processes, alone, config, tmp_path):
    run = launch(tmp_path, config, *OPTIONS, "--trainer.devices", str(processes))
    assert run.returncode == 0, run.stderr
    together = read(tmp_path)
    assert together.pop("processes") == processes
    assert together == {name: content for name, content in alone.items() if name != "processes"}
    assert run.stdout.count("results.json") >= 1


def test_torchrun_gives_the_same_bytes(alone, config, tmp_path):
    launcher = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29631", "-m")
    run = launch(tmp_path, config, *OPTIONS, "--trainer.devices", "2", launcher=launcher)
    assert run.returncode == 0, run.stderr
    assert read(tmp_path) | {"processes": 1} == alone


def test_fewer_batches_than_processes_is_refused(config, tmp_path):
    run = launch(tmp_path, config, "--data.images", "3", "--data.batch_size", "4", "--trainer.devices", "2")
    assert run.returncode != 0
    assert "1 batches, too few for 2 processes" in run.stderr


def test_an_error_in_one_process_ends_the_run(config, tmp_path):
    # Image 3 lies in the second batch, which the second process gets.
    run = launch(tmp_path, config, "--data.unreadable", "[3]", "--data.batch_size", "2", "--trainer.devices", "2")
    assert run.returncode != 0
    assert "square-003" in run.stderr
    assert not list(tmp_path.glob("*/*/results.json"))
