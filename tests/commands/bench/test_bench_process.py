from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from places import ROOT
from processes import gone, until

from xbench.commands.bench import warm
from xbench.commands.bench.worker import Interrupted, Process, Share, end_all, interruptible
from xbench.runtime.locks import Busy, try_lock


@pytest.fixture(autouse=True)
def in_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("WANDB_NAME", raising=False)


# Lets a test do something else first.
_WAIT = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"


def begin(code: str, log: Path, share: Share | None = None) -> Process:
    module = f"code_of_{log.stem.partition('+')[0]}"
    Path(f"{module}.py").write_text(code)
    return Process([sys.executable, "-m", module, "word"], log, try_lock(log.with_suffix(".lock")), share or Share())


def run(code: str, log: Path, share: Share | None = None) -> tuple[int | None, str]:
    process = begin(code, log, share)
    try:
        Path("begun").touch()
        process.wait()
    except Interrupted as error:
        end_all([process], signal.Signals[str(error)])
        raise
    return process.poll(), process.last_words()


@pytest.mark.parametrize("forked", [True, False])
@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("print('Results: x')", 0, "Results: x"),
        ("import sys; print('error: disk is full', file=sys.stderr); print('bye'); sys.exit(1)", 1, "disk is full"),
        ("print(); raise ValueError('broken')", 1, "ValueError: broken"),
        ("", 0, "no output"),
        ("import os; os.kill(os.getpid(), 9)", -9, "killed by SIGKILL (as the system does when memory runs out)"),
        ("import os; print('x'); os.kill(os.getpid(), 11)", -11, "killed by SIGSEGV"),
        ("import os; print('x'); os._exit(7)", 7, "x"),
        ("print('x' * 300_000); print('last')", 0, "last"),
    ],
)
def test_what_was_said_last(tmp_path, monkeypatch, code, status, words, forked):
    monkeypatch.setattr(warm, "forks", warm.forks if forked else lambda: False)
    other = begin(f"{_WAIT}print('done')", Path("other"))
    assert run(code, tmp_path / "logs" / "a.log") == (status, words)
    Path("go").touch()  # a run that crashes takes nothing with it
    other.wait()
    assert (other.poll(), other.last_words()) == (0, "done")


_STATE = """
import __main__, atexit, json, os, multiprocessing, random, signal, sys, threading
modules = len(sys.modules)
import numpy, torch
apart = os.getpgrp() == os.getsid(0) == os.getpid() and not sys.stdin.read() + open(0).read()
cuda = torch.cuda._is_in_bad_fork() or torch.cuda.is_initialized()
known = os.environ["KEPT"], multiprocessing.get_start_method(), str([signal.getsignal(k) for k in (1, 2, 15)])
print(json.dumps([sys.argv[1:], sys.orig_argv, __main__.__spec__.name, len(threading.enumerate()), apart, cuda, known]))
print(random.random(), numpy.random.random(), modules)
os.environ["KEPT"] = "no"
atexit.register(print, "at exit")
"""


def test_a_fork_is_like_a_new_interpreter(tmp_path, monkeypatch):
    monkeypatch.setenv("KEPT", "yes")
    seen, drawn = [], set()
    for place in range(3):
        monkeypatch.setattr(warm, "forks", warm.forks if place < 2 else lambda: False)
        log = tmp_path / str(place) / "run.log"
        assert run(_STATE, log) == (0, "at exit")
        _, _, state, numbers, _ = log.read_text().splitlines()
        seen.append(json.loads(state))
        drawn |= {*numbers.split()[:2]}
        assert (int(numbers.split()[2]) > 1000) == (place < 2)
    assert seen[0] == seen[1] == seen[2]
    assert len(drawn) == 6, "random numbers are not those of another run"
    assert seen[0][:6] == [["word"], [sys.executable, "-m", "code_of_run", "word"], "code_of_run", 1, True, False]


def test_what_forks_runs_may_be_killed(tmp_path):
    other = begin("import os, time; print(os.getpid(), flush=True); time.sleep(60)", Path("a"))
    with pytest.raises(Busy):
        try_lock(Path("a.lock"))
    killer = begin(f"{_WAIT}os.kill(os.getppid(), 9)\ntime.sleep(60)", tmp_path / "b.log")
    Path("go").touch()  # killed earlier, the parent could not pass on the number of the process
    for process in (killer, other):
        process.wait()
        assert process.poll() == 255 and "its parent process was killed" in process.last_words()
    until(lambda: gone(int(Path("a").read_text().split()[-1])))
    assert run("print('again')", tmp_path / "c.log") == (0, "again")


def test_runs_begin_anew_where_nothing_can_be_forked(tmp_path, monkeypatch):
    monkeypatch.setattr(warm, "_refuse_cuda", os.abort)
    for platform in ("darwin", "linux"):
        monkeypatch.setattr(sys, "platform", platform)
        warm.forks.cache_clear()
        assert run("import os; print(os.getppid())", tmp_path / "a.log") == (0, str(os.getpid()))
    warm.forks.cache_clear()


def test_no_import_touches_cuda_or_starts_a_thread():
    models = [f"xbench.models.{path.parent.name}.{path.stem}" for path in ROOT.glob("xbench/models/*/*.py")]
    script = (
        "import importlib, sys, threading, torch\n"
        "torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = lambda *_: sys.exit('touched')\n"
        f"[importlib.import_module(name) for name in ['xbench.commands.bench.worker', *{models}]]\n"
        "assert len(threading.enumerate()) == 1, threading.enumerate()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_the_log_is_kept_and_grows(tmp_path):
    log = tmp_path / "a.log"
    run("print('error: first'); exit(1)", log)
    assert run("exit(3)", log) == (3, "no output"), "what an earlier attempt said does not count"
    text = log.read_text()
    assert text.count(f" $ {sys.executable} -m ") == 2 and "error: first" in text


def test_runs_of_weights_and_biases_are_called_after_the_variant(tmp_path, monkeypatch):
    for name in ("demo_phantom+at_320", "mine"):
        assert run("import os; print(os.environ['WANDB_NAME'])", tmp_path / "demo_phantom+at_320.log") == (0, name)
        monkeypatch.setenv("WANDB_NAME", "mine")


def test_runs_at_once_have_gpus_and_cores_of_their_own(tmp_path):
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], *sorted(os.sched_getaffinity(0)))"
    core = min(os.sched_getaffinity(0))
    assert run(code, tmp_path / "a.log", Share("1,3", frozenset({core}))) == (0, f"1,3 {core}")


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
signal.signal(signal.{{signal}}, lambda *_: (open('parent', 'w').close(), helper.wait(), sys.exit(1)))
open('ready', 'w').close()
time.sleep(60)
"""


def tell_when_ready(name: str) -> threading.Thread:
    def tell() -> None:
        until(lambda: Path("ready").exists() and Path("begun").exists())
        os.kill(os.getpid(), getattr(signal, name))

    (thread := threading.Thread(target=tell)).start()
    return thread


@pytest.mark.parametrize(("told", "passed_on"), [("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGTERM")])
def test_a_signal_reaches_the_run_and_its_helpers(tmp_path, told, passed_on):
    before = signal.getsignal(signal.SIGINT)
    thread = tell_when_ready(told)
    with pytest.raises(Interrupted, match=told), interruptible():
        run(_FAMILY.replace("{signal}", passed_on), tmp_path / "a.log")
    thread.join()
    assert Path("parent").exists() and Path("child").exists(), (tmp_path / "a.log").read_text()
    assert time.time() - Path("ready").stat().st_mtime < 25 and signal.getsignal(signal.SIGINT) is before


def test_a_run_that_will_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("xbench.commands.bench.worker._TIME_TO_END", 0.3)
    code = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "open('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'ready')\ntime.sleep(60)"
    tell_when_ready("SIGTERM")
    with pytest.raises(Interrupted), interruptible():
        run(code, tmp_path / "a.log")
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("ready").read_text()), 0)
