"""Two nodes, as far as one machine can be two: two launchers of torchrun, and the tasks that srun would start."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "configs" / "slurm" / "test.sbatch"
IMAGES = 19
CONFIG = (
    "model: {class_path: mortal.Mortal}\n"
    f"data: {{class_path: toys.Squares, init_args: {{num_workers: 0, images: {IMAGES}, batch_size: 2, "
    "unreadable: [4, 5, 8], on_error: skip, odd: [1, 3, 4, 6]}}\n"
    "trainer: {logger: false, accelerator: cpu, enable_progress_bar: false, default_root_dir: runs}\n"
)
TABLES = ("per_image.parquet", "curves.parquet", "maps.parquet", "regions.parquet", "pictures.parquet", "per_class.csv")

# What srun does for a step of one task on each of two nodes: it sets these variables, and with --kill-on-bad-exit it
# ends all tasks when one fails. Pre-emption sends SIGTERM to every task, which PREEMPTED, a file, asks for.
SRUN = """#!/usr/bin/env python
import os, signal, subprocess, sys, time
command = sys.argv[1:]
options = []
while command[0].startswith("-"):
    options.append(command.pop(0))
tasks = int(os.environ["SLURM_NTASKS"])
nodes = os.environ["SLURM_JOB_NODELIST"].split(",")
started = []
for task in range(tasks):
    about = {"SLURM_PROCID": task, "SLURM_NODEID": task, "SLURM_LOCALID": 0, "SLURMD_NODENAME": nodes[task],
             "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": tasks}
    environment = {**os.environ, **{name: str(value) for name, value in about.items()}}
    started.append(subprocess.Popen(command, env=environment))
log, preempted = os.environ["MORTAL_LOG"], False
while any(task.poll() is None for task in started):
    scored = sum(1 for _ in open(log)) if os.path.exists(log) else 0
    if "PREEMPT_AT" in os.environ and not preempted and scored >= int(os.environ["PREEMPT_AT"]):
        preempted = True
        for task in started:
            task.send_signal(signal.SIGTERM)
    if "--kill-on-bad-exit=1" in options and any(task.poll() for task in started) and not preempted:
        for task in started:
            task.kill()
    time.sleep(0.01)
sys.exit(max(abs(task.returncode) for task in started))
"""


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    (folder / "mortal.yaml").write_text(CONFIG)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER_", "OMP_"))}
    return plain | {"PYTHONPATH": str(TESTS), "CUDA_VISIBLE_DEVICES": "", "MORTAL_LOG": str(folder / "log")} | more


def free_port(low: int = 0, high: int = 65_536) -> int:
    for port in [0] if not low else range(low, high):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise OSError("no port is free")


def read(folder: Path) -> dict[str, bytes | str]:
    """Files of the one finished run in a folder, the provenance taken out."""
    (run,) = folder.glob("runs/*/*/results.json")
    results = json.loads(run.read_text())
    assert results.pop("provenance")["devices"]["processes"] in (1, 2)
    return {"results.json": json.dumps(results)} | {name: (run.parent / name).read_bytes() for name in TABLES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | str]:
    """What one process writes."""
    folder = tmp_path_factory.mktemp("alone")
    command = [sys.executable, "-m", "xbench.cli", "test", "--config", "mortal.yaml", "--trainer.devices", "1"]
    done = subprocess.run(command, cwd=folder, env=environment_of(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return read(folder)


def test_torchrun_on_two_nodes(tmp_path, alone):
    rendezvous = ("--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}")
    launcher = ("-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1", *rendezvous, "-m")
    options = ("--config", "mortal.yaml", "--trainer.num_nodes", "2", "--trainer.devices", "1")
    command = [sys.executable, *launcher, "xbench.cli", "test", *options]
    nodes = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment_of(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(2)
    ]
    try:
        said = [node.communicate(timeout=300)[0].decode() for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    assert read(tmp_path) == alone
    assert sum("Results:" in text for text in said) == 1, "only the first process writes"


def submit(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the body of the shipped script as SLURM would, with a stand-in for srun."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "srun").write_text(SRUN.replace("/usr/bin/env python", sys.executable))
    (tools / "srun").chmod(0o755)
    (tools / "python").unlink(missing_ok=True)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o755)
    # Lightning takes the port from the last four digits of the job's number, and the first node for the address.
    job = free_port(15_000 + os.getpid() % 4_000, 25_000) - 15_000
    slurm = {
        "SLURM_JOB_ID": f"77{job:04d}",
        "SLURM_JOB_NAME": "xbench",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "2",
        "SLURM_NPROCS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_JOB_NODELIST": "localhost,node2",
        "SLURM_NODELIST": "localhost,node2",
    }
    environment = environment_of(folder, **slurm, **more)
    environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
    command = ["bash", str(SCRIPT), "--config", "mortal.yaml"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_the_shipped_script_is_preempted_and_goes_on(tmp_path, alone):
    first = submit(tmp_path, PREEMPT_AT="5", MORTAL_WAITS="0.3")
    assert first.returncode != 0
    assert "SIGTERM" in first.stderr and "--resume true" in first.stderr, first.stderr
    assert not [*tmp_path.glob("runs/*/*/results.json")]
    before = (tmp_path / "log").read_text().split()
    assert 5 <= len(before) < IMAGES - 3

    again = submit(tmp_path)
    assert again.returncode == 0, again.stderr
    assert read(tmp_path) == alone
    both = (tmp_path / "log").read_text().split()
    assert sorted(both) == [f"square-{k:03d}" for k in range(IMAGES) if k not in (4, 5, 8)], "nothing is done twice"
    # Of Lightning's own way of resuming there is no trace.
    assert not [*tmp_path.rglob("*.ckpt")]


def test_the_script_asks_for_what_its_words_say():
    text = SCRIPT.read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.M))
    assert "requeue" in options and options["open-mode"] == "append"
    assert "signal" not in options
