"""Python commands in processes of their own that import nothing again, which takes longer than a small run.

`Python` starts a process as `subprocess.Popen` does, but for `python -m MODULE ...` and `python SCRIPT ...` by a fork
of this one, made to look as if it had just been started: its environment, folder, words, output, signal handlers, exit
handlers and open files are its own. So are those of the Python processes that it starts in its turn: Lightning's
launcher and torchrun work as they always do.

What this cannot show is what belongs to a new interpreter: that imports suffice, and another seed of hashes.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import logging
import multiprocessing.process
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler as torchrun_handler
from lightning.fabric.utilities.rank_zero import _get_rank, rank_zero_only

# Once for all forks, what runs import only when they come to it.


def environment(**more: str) -> dict[str, str]:
    """Environment of a command that finds the tests' plug-ins, and is told of no cluster, threads or service of W&B."""
    left_out = ("SLURM", "MASTER_", "OMP_NUM_THREADS", "WANDB_SERVICE")
    usual = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return usual | {"PYTHONPATH": str(Path(__file__).parent), "CUDA_VISIBLE_DEVICES": ""} | more


@dataclass(frozen=True)
class Ended:
    """Outcome of a command.

    Attributes:
        returncode: Its exit status, negative for the signal that killed it.
        session: The session that it and what it started belonged to.
    """

    returncode: int
    stdout: str
    stderr: str
    session: int


def run(*words: object, folder: Path, **more: str) -> Ended:
    """Run `python WORDS` in a folder, with more variables in the environment."""
    command = [sys.executable, *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Python(command, cwd=folder, env=environment(**more), text=True, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=300)
        except BaseException:
            # A process that hangs in a collective ignores gentler signals.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Ended(process.returncode, output, errors, process.pid)


class Python(subprocess.Popen):
    """A process as `subprocess.Popen` starts it, forked if its command is one of this interpreter."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others) -> None:
        words = [os.fspath(word) for word in args] if isinstance(args, (list, tuple)) else []
        ours = words[:1] == [sys.executable] and words[1:2] != ["-c"] and sys.platform == "linux"
        if not ours:
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others)
            return
        pipes, new_session = others[3:9], others[-2]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                if new_session:
                    os.setsid()
                _forget_the_parent((pipes[0], pipes[3], pipes[5]), pass_fds, cwd, env)
                status = _run(words)
            finally:
                os._exit(status)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _forget_the_parent(
    streams: Sequence[int], pass_fds: Sequence[int], cwd: Path | None, env: Mapping[str, str] | None
) -> None:
    """Make this process one that has just been started."""
    # What the parent has not collected yet is not ours to tear down.
    gc.freeze()
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    if cwd is not None:
        os.chdir(cwd)
    _open_files(streams, pass_fds)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.disable()
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__

    atexit._clear()
    multiprocessing.process._children.clear()
    multiprocessing.util._finalizer_registry.clear()
    atexit.register(multiprocessing.util._exit_function)

    logging.raiseExceptions = True
    logging.root.handlers.clear()
    for logger in logging.root.manager.loggerDict.values():
        for handler in getattr(logger, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                handler.setStream(sys.stderr)
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    warnings.showwarning = _show_warning

    subprocess.Popen = torchrun_handler.Popen = Python
    # Both are settled by the environment when a process imports them.
    rank_zero_only.rank = _get_rank() or 0
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))


def _open_files(streams: Sequence[int], pass_fds: Sequence[int]) -> None:
    # Copied first, for one of them may be another's place.
    for place, copy in [(place, os.dup(stream)) for place, stream in enumerate(streams) if stream != -1]:
        os.dup2(copy, place)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        # Not closed, for the parent's objects that go with it would close whatever came to have its number.
        if descriptor > 2 and descriptor not in (*pass_fds, null):
            with contextlib.suppress(OSError):
                os.fstat(descriptor)
                os.dup2(null, descriptor, inheritable=False)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False, buffering=1, errors="backslashreplace")


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def _run(words: Sequence[str]) -> int:
    """Do what the interpreter does with its words, and return its exit status."""
    sys.orig_argv = list(words)
    rest = list(words[2:] if words[1] == "-u" else words[1:])
    module = rest.pop(0) if rest[0] == "-m" else None
    sys.argv = rest
    # pytest rewrites what it imports.
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_pytest")]
    beside = os.getcwd() if module else os.path.dirname(os.path.abspath(rest[0]))
    sys.path[:0] = [beside, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    importlib.invalidate_caches()
    status = 0
    try:
        if module:
            sys.modules.pop(rest[0], None)
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(rest[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, (int, type(None))):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status
