"""Processes that are started, read, and ended with everything that they started."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from xbench.commands.bench.worker import Interrupted, Process, Share, end_all, interruptible


@pytest.fixture
def keep(tmp_path):
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def run(code: str, log: Path, keep: int, share: Share | None = None) -> tuple[int, str]:
    process = Process([sys.executable, "-c", code], log, keep, share or Share())
    try:
        process.wait()
    except Interrupted as error:
        end_all([process], error.signal_number)
        raise
    return process.poll(), process.last_words()


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("print('Results: x')", 0, "Results: x"),
        (
            "import sys; print('error: the disk is full', file=sys.stderr); print('bye'); sys.exit(1)",
            1,
            "the disk is full",
        ),
        ("print(); raise ValueError('broken')", 1, "ValueError: broken"),
        ("", 0, "it said nothing"),
        ("import os; os.kill(os.getpid(), 9)", -9, "killed by SIGKILL (as the system does when memory runs out)"),
        ("import os; print('x'); os.kill(os.getpid(), 11)", -11, "killed by SIGSEGV"),
        ("print('x' * 300_000); print('last')", 0, "last"),
    ],
)
def test_what_was_said_last(tmp_path, keep, code, status, words):
    assert run(code, tmp_path / "logs" / "a.log", keep) == (status, words)


def test_the_log_is_kept_and_grows(tmp_path, keep):
    log = tmp_path / "a.log"
    run("print('error: first'); exit(1)", log, keep)
    # What an earlier attempt said is not taken for what this one says.
    assert run("exit(3)", log, keep) == (3, "it said nothing")
    text = log.read_text()
    assert text.count(" $ ") == 2
    assert "error: first" in text
    assert sys.executable in text


def test_runs_of_weights_and_biases_are_called_after_the_variant(tmp_path, keep, monkeypatch):
    code, log = "import os; print(os.environ['WANDB_NAME'])", tmp_path / "demo_phantom+at_320.log"
    monkeypatch.delenv("WANDB_NAME", raising=False)
    assert run(code, log, keep) == (0, "demo_phantom+at_320")
    monkeypatch.setenv("WANDB_NAME", "mine")
    assert run(code, log, keep) == (0, "mine")


def test_runs_at_once_have_gpus_and_cores_of_their_own(tmp_path, keep):
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], *sorted(os.sched_getaffinity(0)))"
    core = min(os.sched_getaffinity(0))
    assert run(code, tmp_path / "a.log", keep, Share("1,3", frozenset({core}))) == (0, f"1,3 {core}")


# A run with a helper, each of which writes down how it ended.
_HELPER = """
import signal, time
signal.signal(signal.{signal}, lambda *_: (open('child', 'w').close(), exit()))
print(1, flush=True)
time.sleep(60)
"""
_FAMILY = f"""
import os, signal, subprocess, sys, time
helper = subprocess.Popen([sys.executable, '-c', {_HELPER!r}], stdout=subprocess.PIPE)
helper.stdout.readline()
def end(*_):
    open('parent', 'w').close()
    helper.wait()
    sys.exit(1)
signal.signal(signal.{{signal}}, end)
open('ready', 'w').close()
time.sleep(60)
"""


@pytest.mark.parametrize(("told", "passed_on"), [("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM")])
def test_a_signal_reaches_the_run_and_its_helpers(tmp_path, monkeypatch, keep, told, passed_on):
    monkeypatch.chdir(tmp_path)

    def tell() -> None:
        while not Path("ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), getattr(signal, told))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=tell)
    thread.start()
    started = time.monotonic()
    with pytest.raises(Interrupted, match=told), interruptible():
        run(_FAMILY.replace("{signal}", passed_on), tmp_path / "a.log", keep)
    thread.join()
    assert Path("parent").exists() and Path("child").exists(), (tmp_path / "a.log").read_text()
    assert time.monotonic() - started < 25
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_that_will_not_end_is_killed(tmp_path, monkeypatch, keep):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("xbench.commands.bench.worker._TIME_TO_END", 0.3)
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'ready')\ntime.sleep(60)"
    )

    def tell() -> None:
        while not Path("ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell).start()
    with pytest.raises(Interrupted), interruptible():
        run(code, tmp_path / "a.log", keep)
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("ready").read_text()), 0)
