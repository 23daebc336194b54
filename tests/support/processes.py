"""Commands in new interpreters, which import for six seconds, and in forks where only signals or ranks matter."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path

from places import SUPPORT

from xbench.cli import main
from xbench.runtime.locks import try_lock

_fork = multiprocessing.get_context("fork")
# What commands import when they need it: two seconds in each fork, unless the process that forks has done so.
_NEEDED = ("lightning.pytorch.cli", "pandas", "xbench.callbacks.wandb_logger", "xbench.scoring.host")


def environment(**more: object) -> dict[str, str]:
    """Environment of a command that finds the tests' plug-ins, and is told of no cluster, threads or service of W&B."""
    left_out = ("SLURM", "MASTER_", "OMP_NUM_THREADS", "WANDB_SERVICE")
    usual = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    plug_ins = {"PYTHONPATH": str(SUPPORT), "CUDA_VISIBLE_DEVICES": ""}
    return usual | plug_ins | {name: str(value) for name, value in more.items()}


def run(*words: object, folder: Path, **variables: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xbench.cli", *map(str, words)]
    env = environment(**variables)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


@dataclass(frozen=True)
class Fork:
    """A command in a fork of this process, which writes to files what it prints."""

    process: BaseProcess
    output: Path

    @property
    def said(self) -> str:
        return self.output.read_text()

    def kill(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def wait(self, seconds: float = 120) -> int:
        """Return its exit status, negative for the signal that ended it; it is killed once the time is over."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            # A process that hangs in a collective ignores gentler signals.
            self.process.kill()
            self.process.join()
            raise TimeoutError(self.said)
        return self.process.exitcode


def start(
    words: Sequence[object], folder: Path, name: str = "said", command: Callable = main, **variables: object
) -> Fork:
    """Start a command in a fork of this process, which prints to the file `name` of the folder."""
    for module in _NEEDED:
        import_module(module)
    # What is garbage here is not the fork's to tear down: workers of this process, say.
    gc.collect()
    arguments = (command, [str(word) for word in words], folder, name, environment(**variables))
    process = _fork.Process(target=_command, args=arguments)
    process.start()
    return Fork(process, folder / name)


def start_ranks(
    count: int, words: Sequence[object], folder: Path, command: Callable = main, **variables: object
) -> list[Fork]:
    """Start the command in several forks, told what torchrun tells its processes."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "TORCHELASTIC_RUN_ID": "tests", "GROUP_RANK": 0}
    shared |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, **variables}
    return [start(words, folder, f"said-{k}", command, **shared, RANK=k, LOCAL_RANK=k) for k in range(count)]


def run_ranks(
    count: int, words: Sequence[object], folder: Path, command: Callable = main, **variables: object
) -> tuple[list[int], str]:
    ranks = start_ranks(count, words, folder, command, **variables)
    return [rank.wait() for rank in ranks], "".join(rank.said for rank in ranks)


def _command(command: Callable, words: Sequence[str], folder: Path, name: str, variables: Mapping[str, str]) -> None:
    # A shell that starts the tests in the background lets them ignore Ctrl-C, which is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    # pytest collects warnings, which nobody would see.
    warnings.showwarning = lambda *about: print(warnings.formatwarning(*about[:4]), file=sys.stderr)
    sys.exit(command(words))


def free_port(candidates: Iterable[int] = (0,)) -> int:
    for port in candidates:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return probe.getsockname()[1]
    raise OSError("no port is free")


@contextlib.contextmanager
def held(lock: Path, inherited: bool = True) -> Iterator[int]:
    """Let another process, whose id comes back, hold a lock until it is killed."""
    locked = _fork.Event()

    def hold() -> None:
        try_lock(lock, inherited=inherited)
        locked.set()
        time.sleep(60)

    holder = _fork.Process(target=hold)
    holder.start()
    try:
        assert locked.wait(60)
        assert holder.pid is not None
        yield holder.pid
    finally:
        holder.kill()
        holder.join()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be so in time"
        time.sleep(0.02)
