"""Start of a benchmark's run: forked from a process with all imports, else a new interpreter."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection

from xbench.runtime.processes import end_with_parent


@cache
def forks() -> bool:
    """Start the process that forks runs; return False on macOS, or if imports fail or touch CUDA."""
    if sys.platform != "linux":
        return False
    names = ["xbench.commands.bench.preload", "xbench.scoring.host", "xbench.scoring.kernel", "pandas"]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(names + [name for name in sys.modules if name.startswith("xbench.")])
    # A run that waited for imports would start even if interrupted.
    probe = context.Process(target=_refuse_cuda)
    with suppress(EOFError, OSError):
        probe.start()
        probe.join()
    return probe.exitcode == 0


def _refuse_cuda() -> None:
    import torch

    sys.exit(int(torch.cuda._is_in_bad_fork()))


def run(command: Sequence[str], log: str, lock: Connection, variables: dict[str, str], cores: Iterable[int]) -> None:
    """Run `python -m MODULE ...` in a new session, append output to a log, and hold a lock."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if (parent := multiprocessing.parent_process()) is not None and os.getppid() != parent.pid:
        # Forked: its exit status is lost if the parent ends.
        end_with_parent()
        sys.modules["numpy"].random.seed()
    os.environ.update(variables)
    # Child processes inherit the cores; by default all are allowed.
    with suppress(OSError, AttributeError):
        os.sched_setaffinity(0, cores)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), number)
        setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
    gc.freeze()
    multiprocessing.set_start_method(None, force=True)
    sys.orig_argv, sys.argv = [*command], [*command[2:]]
    sys.modules.pop(command[2], None)
    try:
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # `multiprocessing` skips these
