"""Runs one after another, each in a fresh process with its output in a file."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

from xbench.commands.bench.finished import FinishedRuns
from xbench.commands.bench.jobs import Job
from xbench.commands.bench.preflight import Planned
from xbench.commands.bench.screen import Estimate, Outcome, Screen
from xbench.runtime.locks import Busy, try_lock

_TIME_TO_END = 30
"""Seconds that a run has to end once it is told to; one that goes on in the end is killed."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Worker:
    """Does the runs of a benchmark.

    Args:
        out: The folder of runs.
        planned: The runs that can be started or are done, in order.
        runs: What is in the folder.
        alone: Whether no other benchmark is at work there.

    Attributes:
        begun: Names of the runs that were begun.
    """

    def __init__(self, out: Path, planned: Sequence[Planned], runs: FinishedRuns, alone: bool) -> None:
        self._out = out
        self._runs = runs
        self._alone = alone
        self._estimate = Estimate(runs.all())
        self._waiting = {plan.job.name: plan for plan in planned if not plan.done}
        self.begun: set[str] = set()

    def left(self) -> float | None:
        """Return in seconds how long everything that waits will take; None if that cannot be told."""
        each = [self._estimate.seconds(plan.job, plan.state.images) for plan in self._waiting.values()]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) if len(known) == len(each) else None

    def do(self, plan: Planned, screen: Screen) -> Outcome:
        """Do a run unless it is done or another process is at it."""
        if plan.done and plan.finished is not None:
            return Outcome(plan.job, "skipped", str(plan.finished.folder), None, plan.finished.results)
        outcome = self._do(plan, screen)
        self._waiting.pop(plan.job.name)
        if outcome.status == "finished" and outcome.results is not None and outcome.seconds is not None:
            self._estimate.add(plan.job, outcome.results, outcome.seconds)
        return outcome

    def _do(self, plan: Planned, screen: Screen) -> Outcome:
        lock = self._lock(plan.job, screen)
        if isinstance(lock, str):
            return Outcome(plan.job, "busy", f"another benchmark is at it: {lock}")
        try:
            # Meanwhile another process may have done it.
            self._runs.refresh()
            found = self._runs.newest(plan.resolved, plan.state)
            if found is not None and found.done:
                return Outcome(plan.job, "skipped", str(found.folder), None, found.results)
            return self._run(plan, lock, screen)
        finally:
            os.close(lock)

    def _lock(self, job: Job, screen: Screen) -> int | str:
        """Take the run's lock, or say who has it. A run whose benchmark was killed may go on; it is waited for."""
        said = False
        while True:
            try:
                return try_lock(self._out / "bench" / "locks" / job.name)
            except Busy as error:
                if not self._alone:
                    return str(error)
                if not said:
                    screen.say(f"{job.name} is still going on since an earlier benchmark ({error}); waiting for it.")
                    said = True
                time.sleep(1)

    def _run(self, plan: Planned, lock: int, screen: Screen) -> Outcome:
        """Run a command in a fresh process, going on with what was begun."""
        job, log = plan.job, self._out / "bench" / "logs" / f"{plan.job.name}.log"
        command = [sys.executable, "-m", "xbench.cli", "test", *job.options]
        changed = "" if plan.finished is None else plan.finished.changed
        self.begun.add(job.name)
        screen.start(job, log)
        began = time.monotonic()

        def tick() -> None:
            left, own = self.left(), self._estimate.seconds(job, plan.state.images)
            spent = time.monotonic() - began
            screen.tick(None if left is None or own is None else left - min(own, spent))

        resume = ["--resume", "true"] if self._runs.unfinished(plan.resolved) else []
        status, words = run_logged([*command, *resume], log, lock, tick)
        if status and resume and words.startswith("--resume"):
            # What was begun is of other weights, data or code than today's.
            status, words = run_logged(command, log, lock, tick)
        seconds = time.monotonic() - began
        self._runs.refresh()
        found = self._runs.newest(plan.resolved, plan.state)
        results = None if found is None or found.changed else found.results
        if status:
            return Outcome(job, "failed", f"{words} (log: {log})", seconds, results)
        if found is None:
            return Outcome(job, "failed", f"it left no results (log: {log})", seconds)
        if found.changed:
            return Outcome(job, "changed", f"while the benchmark was going on: {found.changed}", seconds, found.results)
        return Outcome(job, "finished", changed and f"anew, for this has changed: {changed}", seconds, found.results)


class Interrupted(BaseException):
    """The benchmark was told to stop.

    Args:
        signal_number: By which signal.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and the end of the terminal into `Interrupted`."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_logged(command: Sequence[str], log: Path, keep_open: int, tick: Callable[[], None]) -> tuple[int, str]:
    """Run a command and append its output to a file.

    Args:
        command: The words of the command.
        log: The file.
        keep_open: A descriptor that the process inherits, such as of a lock that must live as long as it does.
        tick: Called several times a second.

    Returns:
        The exit status, negative for the signal that killed it, and what it said last.

    Raises:
        Interrupted: The benchmark was told to stop; the process and all that it started have ended.
        OSError: The file cannot be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        stream.write(f"\n{datetime.now():%Y-%m-%d %H:%M:%S} $ {shlex.join(command)}\n".encode())
        stream.flush()
        begin = stream.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            # Apart from the terminal's group: Ctrl-C reaches the benchmark alone, which passes it on in order.
            start_new_session=True,
            pass_fds=(keep_open,),
            env={**os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"},
        )
        try:
            while True:
                try:
                    status = process.wait(0.2)
                    break
                except subprocess.TimeoutExpired:
                    tick()
        except BaseException as error:
            _end(process, error.signal_number if isinstance(error, Interrupted) else signal.SIGTERM)
            raise
    return status, _last_words(log, begin, status)


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    """Tell a process and its group to end, give them time, and kill what is left."""
    with suppress(ProcessLookupError):
        # A terminal that is gone means no more to it than an order to end.
        os.killpg(process.pid, signal.SIGTERM if number == signal.SIGHUP else number)
    # A second signal ends the waiting.
    with suppress(subprocess.TimeoutExpired, Interrupted):
        process.wait(_TIME_TO_END)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path, begin: int, status: int) -> str:
    with log.open("rb") as stream:
        stream.seek(max(begin, os.fstat(stream.fileno()).st_size - 100_000))
        lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    if status < 0:
        memory = " (as the system does when memory runs out)" if -status == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-status).name}{memory}"
    errors = [line for line in lines if line.startswith("error: ")]
    return errors[-1].removeprefix("error: ") if errors else (lines[-1] if lines else "it said nothing")
