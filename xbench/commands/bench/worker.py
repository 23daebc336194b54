"""Runs one after another, each in a fresh process with its output in a file, and what the screen shows of them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.status import Status
from rich.table import Table

from xbench.commands.bench.config import Job
from xbench.commands.bench.preflight import Finished, FinishedRuns, Planned
from xbench.runs.results import Results
from xbench.runtime.locks import Busy, try_lock

_TIME_TO_END = 30
"""Seconds that a run has to end once it is told to; one that goes on in the end is killed."""

_OVERHEAD = 15.0
"""Seconds that a run takes to start and to end, about, until one has shown it."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_STYLES = {
    "finished": "green",
    "skipped": "cyan",
    "failed": "bold red",
    "changed": "bold red",
    "left out": "yellow",
    "busy": "yellow",
    "stopped": "yellow",
    "not begun": "yellow",
}


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        status: In a word: it `finished` now, was `skipped` as finished and unchanged, `failed`, finished but had what
            it depends on `changed` meanwhile, was `left out` because data or weights are missing, is `busy` in another
            process, was `stopped` by the user, or `not begun` by then.
        reason: Why, in words.
        seconds: How long it took now.
    """

    job: Job
    status: str
    reason: str = ""
    seconds: float | None = None
    results: Results | None = None


def _work(results: Results) -> tuple[float, int]:
    """Seconds that a run spent on its images, which are decoded meanwhile, and their number."""
    spent = results.provenance.get("seconds") or {}
    seconds = sum(value for stage, value in spent.items() if stage not in ("setup", "text", "decode"))
    return seconds, results.counts.images


def skipped(job: Job, finished: Finished) -> Outcome:
    """Return the outcome of a run that need not be done again."""
    return Outcome(job, "skipped", str(finished.folder), None, finished.results)


class Worker:
    """Does the runs of a benchmark, and shows what comes of each.

    Args:
        out: The folder of runs, of which `runs` tells what is in it.
        planned: The runs that can be started or are done.
        total: Number of all runs, also of those that cannot be started.
        alone: Whether no other benchmark is at work there.
        status: A line on the console, below what is printed.

    Attributes:
        begun: Name of the run that was begun last.
    """

    def __init__(
        self, out: Path, runs: FinishedRuns, planned: Iterable[Planned], total: int, alone: bool, status: Status
    ) -> None:
        self._out, self._runs, self._alone, self._status = out, runs, alone, status
        self._done, self._total = 0, total
        # Model, variant (of earlier runs unknown), seconds spent on images, and their number.
        self._known = [(results.model, "?", *_work(results)) for results in runs.all()]
        self._waiting = {plan.job.name: plan for plan in planned if not plan.done}
        self._overheads: list[float] = []  # seconds in which each run of this benchmark started and ended
        self.begun = ""

    def do(self, plan: Planned) -> Outcome:
        """Do a run unless it is done or another process is at it."""
        if plan.finished is not None and plan.finished.done:
            return skipped(plan.job, plan.finished)
        try:
            lock = self._lock(plan.job)
        except Busy as error:
            outcome = Outcome(plan.job, "busy", f"another benchmark is at it: {error}")
        else:
            try:
                # Meanwhile another process may have done it.
                found = self._runs.newest(plan.config, plan.state)
                done = found is not None and found.done
                outcome = skipped(plan.job, found) if found is not None and done else self._run(plan, lock)
            finally:
                os.close(lock)
        self._waiting.pop(plan.job.name)
        return outcome

    def show(self, outcome: Outcome) -> None:
        """Print what came of a run."""
        self._done += 1
        left = self._left()
        took = "" if outcome.seconds is None else f" in {duration(outcome.seconds)}"
        rest = "" if left is None or self._done == self._total else f"; about {duration(left)} left"
        why = f": {outcome.reason}" if outcome.reason else ""
        line = f"{self._done}/{self._total} {outcome.job.name} {outcome.status}{took}{why}{rest}"
        self._say(line, _STYLES[outcome.status])

    def _say(self, text: str, style: str = "") -> None:
        self._status.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def _left(self) -> float | None:
        """Return in seconds how long everything that waits will take; None if that cannot be told."""
        each = [self._seconds(plan) for plan in self._waiting.values()]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) if len(known) == len(each) else None

    def _seconds(self, plan: Planned) -> float | None:
        """Return how long a run will take, after those of the same variant, of the model, or all; None if unknown."""
        same = [known for known in self._known if known[0] == plan.job.model]
        alike = [known for known in same if known[1] == plan.job.variant] or same or self._known
        if not alike:
            return None
        seconds_an_image = sum(known[2] for known in alike) / max(sum(known[3] for known in alike), 1)
        overhead = mean(self._overheads) if self._overheads else _OVERHEAD
        return overhead + len(plan.state.data.records) * seconds_an_image

    def _lock(self, job: Job) -> int:
        """Take the run's lock. A run whose benchmark was killed may go on; it is waited for."""
        said = False
        while True:
            try:
                return try_lock(self._out / "bench" / "locks" / job.name)
            except Busy as error:
                if not self._alone:
                    raise
                if not said:
                    text = f"{job.name} is still going on since an earlier benchmark ({error}); waiting for it."
                    self._say(text, "yellow")
                    said = True
                time.sleep(1)

    def _run(self, plan: Planned, lock: int) -> Outcome:
        """Run a command in a fresh process, going on with what was begun."""
        job, log = plan.job, self._out / "bench" / "logs" / f"{plan.job.name}.log"
        command = [sys.executable, "-m", "xbench.cli", "test", *job.options]
        changed = "" if plan.finished is None else plan.finished.changed
        self.begun = job.name
        if not self._status.console.is_terminal:
            self._say(f"{self._done + 1}/{self._total} {job.name} begins; log: {log}")
        began = time.monotonic()

        def tick() -> None:
            spent, left, own = time.monotonic() - began, self._left(), self._seconds(plan)
            rest = "" if left is None or own is None else f", about {duration(left - min(own, spent))} left"
            self._status.update(f"{self._done + 1}/{self._total} {job.name} {duration(spent)} running{rest}")

        resume = ["--resume", "true"] if self._runs.unfinished(plan.config) else []
        status, words = run_logged([*command, *resume], log, lock, tick)
        if status and resume and words.startswith("--resume"):
            # What was begun is of other weights, data or code than today's.
            status, words = run_logged(command, log, lock, tick)
        seconds = time.monotonic() - began
        found = self._runs.newest(plan.config, plan.state)
        if status or found is None:
            results = None if found is None or found.changed else found.results
            return Outcome(job, "failed", f"{words if status else 'it left no results'} (log: {log})", seconds, results)
        if found.changed:
            return Outcome(job, "changed", f"while the benchmark was going on: {found.changed}", seconds, found.results)
        self._known.append((job.model, job.variant, *_work(found.results)))
        self._overheads.append(max(0.0, seconds - _work(found.results)[0]))
        return Outcome(job, "finished", changed and f"anew, for this has changed: {changed}", seconds, found.results)


def print_summary(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print a table with a row per run, and below why some were not done."""
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _STYLES}
    table = Table(
        title="Runs: " + ", ".join(f"{count} {status}" for status, count in counts.items() if count),
        title_justify="left",
        caption="Means over findings. Point.: pointing game. Best: at the threshold with the largest mean, chosen on "
        "these same images.",
        caption_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    table.add_column("run", style="bold", overflow="fold")
    table.add_column("", no_wrap=True)
    for heading in ("time", "Point.", "Dice\n@0.5", "AUROC", "Dice\nbest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for outcome in outcomes:
        macro = {} if outcome.results is None else outcome.results.macro
        numbers = (macro.get(name) for name in ("pointing_game", "dice_fixed", "auroc", "dice_best"))
        table.add_row(
            outcome.job.name,
            f"[{_STYLES[outcome.status]}]{outcome.status}[/]",
            "" if outcome.seconds is None else duration(outcome.seconds),
            *("-" if number is None else f"{number:.3f}" for number in numbers),
        )
    console.print("", table)
    for outcome in outcomes:
        if outcome.reason and outcome.status not in ("finished", "skipped"):
            text = f"{outcome.job.name} {outcome.status}: {outcome.reason}"
            console.print(text, style=_STYLES[outcome.status], highlight=False, markup=False, soft_wrap=True)
    console.print()


def duration(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds.

    >>> duration(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class Interrupted(BaseException):
    """The benchmark was told to stop, by a signal."""

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
    """Run a command and append its output to a file; return its exit status and what it said last.

    A W&B run that the process begins is called like the file unless WANDB_NAME says otherwise. The process inherits
    the descriptor `keep_open`, such as of a lock that must live as long as it does. `tick` is called several times a
    second. Raise `Interrupted` once a process that was told to stop has ended, an OSError if there is no log to write.
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
            env={"WANDB_NAME": log.stem, **os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"},
        )
        try:
            while (status := process.poll()) is None:
                time.sleep(0.2)
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
