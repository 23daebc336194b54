"""How time and memory are measured here."""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")


def take_turns(
    methods: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, np.ndarray]:
    """Seconds of each method in interleaved rounds, a warm-up left out."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds + 1):
        for name, method in methods.items():
            start = clock()
            method()
            seconds[name].append(clock() - start)
    return {name: np.array(taken[1:]) for name, taken in seconds.items()}


def alone(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a new process, which is silent about random weights."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_as_if_started_by_hand) as executor:
        return executor.submit(function, *arguments).result()


def _as_if_started_by_hand() -> None:
    logging.disable(logging.WARNING)
    # A spawned process would spawn its own as well, and each data worker would import everything anew.
    multiprocessing.set_start_method(None, force=True)


def peak() -> int:
    """Most bytes of this process in memory so far."""
    # Not from getrusage, which for a spawned process starts at what the parent had.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@contextmanager
def watched_memory(every: float = 0.05) -> Iterator[SimpleNamespace]:
    """Watch how many bytes this process and its children use together, shared ones counted once.

    Yields:
        What holds the largest sum so far in `peak`.
    """
    seen, done = SimpleNamespace(peak=0), threading.Event()

    def watch() -> None:
        while not done.wait(every):
            seen.peak = max(seen.peak, sum(map(_proportional, _family(os.getpid()))))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def _family(process: int) -> list[int]:
    """A process and all that descend from it."""
    family = [process]
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                family += _family(int(child))
    except OSError:
        pass
    return family


def _proportional(process: int) -> int:
    """Proportional set size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    return names[0].split(":")[1].strip() if names else platform.processor()
