"""Two nodes, as far as one machine can be two: two launchers of torchrun, and the tasks that srun would start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import mortal
from places import ROOT
from processes import environment, free_port, start
from run_files import read
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from xbench.cli import main

SCRIPT = ROOT / "configs" / "slurm" / "test.sbatch"
# Hands its words and its environment over to the test, which does what srun does, and waits for the exit status.
SRUN = """#!{python} -IS
import json, os, sys
with open("asked.part", "w") as file:
    json.dump([sys.argv[1:], dict(os.environ)], file)
os.rename("asked.part", "asked")
with open("status") as status:
    sys.exit(int(status.read()))
"""


def torchrun(words: Sequence[str]) -> int:
    """Do on one of two nodes what torchrun does, the run itself in a fork."""
    port, *words = words
    rendezvous = {"run_id": "tests", "rdzv_backend": "c10d", "rdzv_endpoint": f"127.0.0.1:{port}"}
    config = LaunchConfig(2, 2, 1, **rendezvous, start_method="fork")
    return max(elastic_launch(config, main)(words).values())


def test_torchrun_on_two_nodes(tmp_path, unbroken):
    words = [free_port(), *mortal.words(tmp_path, "--trainer.num_nodes", "2")]
    nodes = [start(words, tmp_path, f"said-{node}", torchrun) for node in range(2)]
    assert [node.wait() for node in nodes] == [0, 0], [node.said for node in nodes]
    assert read(tmp_path) == unbroken
    assert sum("Results:" in node.said for node in nodes) == 1, "only the first process writes"


def srun(words: Sequence[str], variables: dict[str, str], folder: Path, preempt_at: int | None) -> tuple[int, str]:
    """Do what srun --kill-on-bad-exit does on two nodes; SIGTERM pre-empts both once so many images are scored."""
    options = words[: words.index("python")]
    assert words[len(options) :][:3] == ["python", "-m", "xbench.cli"]
    tasks = []
    for task, node in enumerate(variables["SLURM_JOB_NODELIST"].split(",")):
        about = {"SLURM_PROCID": task, "SLURM_NODEID": task, "SLURM_LOCALID": 0, "SLURMD_NODENAME": node}
        about |= {"SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": 2}
        tasks.append(start(words[len(options) + 3 :], folder, f"said-{task}", **variables | about))
    log, preempted, deadline = folder / "log", False, time.monotonic() + 120
    while None in (statuses := [task.process.exitcode for task in tasks]):
        if preempt_at is not None and not preempted and len(mortal.logged(log)) >= preempt_at:
            preempted = True
            for task in tasks:
                task.kill(signal.SIGTERM)
        failed = "--kill-on-bad-exit=1" in options and not preempted and any(statuses)
        if failed or time.monotonic() > deadline:
            for task in tasks:
                task.kill(signal.SIGKILL)
        time.sleep(0.01)
    return max(abs(status) for status in statuses), "".join(task.said for task in tasks)


def submit(folder: Path, preempt_at: int | None = None, **more: str) -> tuple[int, str]:
    """Run the body of the shipped script as SLURM would, with a stand-in for srun; return status and output."""
    (folder / "mortal.yaml").write_text(mortal.CONFIG)
    for name in ("asked", "status"):
        (folder / name).unlink(missing_ok=True)
    (folder / "srun").write_text(SRUN.format(python=sys.executable))
    (folder / "srun").chmod(0o755)
    os.mkfifo(folder / "status")
    # Lightning takes the port from the last four digits of the job's number, and the first node for the address.
    job = free_port(range(15_000 + os.getpid() % 4_000, 25_000)) - 15_000
    slurm = {"SLURM_JOB_ID": f"77{job:04d}", "SLURM_JOB_NAME": "xbench", "SLURM_NTASKS_PER_NODE": "1"}
    slurm |= dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NPROCS"), "2")
    slurm |= dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "localhost,node2")
    slurm |= {"MORTAL_LOG": str(folder / "log"), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(SCRIPT), "--config", "mortal.yaml"]
    with subprocess.Popen(command, cwd=folder, env=environment(**slurm, **more)) as script:
        try:
            while not (folder / "asked").exists():
                assert script.poll() is None
                time.sleep(0.01)
            status, said = srun(*json.loads((folder / "asked").read_text()), folder, preempt_at)
            (folder / "status").write_text(str(status))
            return script.wait(60), said
        finally:
            script.kill()


def test_the_shipped_script_is_preempted_and_goes_on(tmp_path, unbroken):
    status, said = submit(tmp_path, preempt_at=5, MORTAL_WAITS="0.3")
    assert status != 0
    assert "SIGTERM" in said and "--resume true" in said, said
    assert not [*tmp_path.glob("runs/*/*/results.json")]
    scored = mortal.IMAGES - len(mortal.UNREADABLE)
    assert 5 <= len(mortal.logged(tmp_path / "log")) < scored

    status, said = submit(tmp_path)
    assert status == 0, said
    assert read(tmp_path) == unbroken
    both = mortal.logged(tmp_path / "log")
    assert len(both) == len({*both}) == scored, "nothing is done twice"
    # Of Lightning's own way of resuming there is no trace.
    assert not [*tmp_path.rglob("*.ckpt")]


def test_the_script_asks_for_what_its_words_say():
    text = SCRIPT.read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.M))
    assert "requeue" in options and options["open-mode"] == "append"
    assert "signal" not in options
