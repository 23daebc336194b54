"""Runs in fresh processes, several at once, each with its output in a file, and what the screen shows of them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.status import Status
from rich.table import Table

from xbench.commands.bench.config import Job
from xbench.commands.bench.preflight import Planned
from xbench.runs.results import Results
from xbench.runtime.locks import Busy, try_lock

_TIME_TO_END = 30
"""Seconds that runs have to end once they are told to; one that goes on in the end is killed."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_STYLES = {"finished": "green", "skipped": "cyan", "failed": "bold red", "changed": "bold red"}
_STYLES |= dict.fromkeys(("left out", "busy", "stopped", "not begun"), "yellow")


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


@dataclass(frozen=True)
class Share:
    """What one of several runs at once may use: GPUs as in CUDA_VISIBLE_DEVICES, and cores; None for all."""

    gpus: str | None = None
    cores: frozenset[int] | None = None


def shares(jobs: int, gpus: Sequence[str], cores: Sequence[int]) -> list[Share]:
    """Deal GPUs and cores to so many runs at once, or to as many as there are cores.

    >>> [share.gpus for share in shares(2, ["0", "1", "2"], range(8))]
    ['0,2', '1']
    >>> [share.gpus for share in shares(3, ["0", "1"], range(8))]
    ['0', '1', '0']
    >>> [sorted(share.cores) for share in shares(9, [], range(2))]
    [[0], [1]]
    """
    jobs = min(jobs, len(cores))
    if jobs == 1:
        return [Share()]
    dealt = [gpus[place::jobs] or [gpus[place % len(gpus)]] if gpus else [] for place in range(jobs)]
    return [Share(",".join(own) if own else None, frozenset(cores[place::jobs])) for place, own in enumerate(dealt)]


class Process(subprocess.Popen[bytes]):
    """A command in a process and a session of its own, whose output is appended to a file.

    A W&B run that the process begins is called like the file unless WANDB_NAME says otherwise. The process inherits
    the descriptor `keep_open`, of a lock that must live as long as it does. Raise an OSError if there is no log to
    write.
    """

    def __init__(self, command: Sequence[str], log: Path, keep_open: int, share: Share) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {"WANDB_NAME": log.stem, **os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
        if share.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = share.gpus
        with log.open("ab") as stream:
            stream.write(f"\n{datetime.now():%Y-%m-%d %H:%M:%S} $ {shlex.join(command)}\n".encode())
            stream.flush()
            self._begin = stream.tell()
            super().__init__(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                # Apart from the terminal's group: Ctrl-C reaches the benchmark alone, which passes it on in order.
                start_new_session=True,
                pass_fds=(keep_open,),
                env=environment,
            )
        if share.cores is not None and hasattr(os, "sched_setaffinity"):
            # All that it starts, such as processes that load images, share them.
            with suppress(OSError):
                os.sched_setaffinity(self.pid, share.cores)

    def tell(self, number: int) -> None:
        """Send a signal to the process and its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def last_words(self) -> str:
        """Return, once it has ended, what it said last, an error first of all."""
        with self._log.open("rb") as stream:
            stream.seek(max(self._begin, os.fstat(stream.fileno()).st_size - 100_000))
            lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
        if (status := self.returncode) < 0:
            memory = " (as the system does when memory runs out)" if -status == signal.SIGKILL else ""
            return f"killed by {signal.Signals(-status).name}{memory}"
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return [*(lines or ["it said nothing"])[-1:], *errors][-1]


def end_all(processes: Collection[Process], number: int) -> None:
    """Tell processes and their groups to end, give them time, and kill what is left."""
    for process in processes:
        # A terminal that is gone means no more to them than an order to end.
        process.tell(signal.SIGTERM if number == signal.SIGHUP else number)
    deadline = time.monotonic() + _TIME_TO_END
    # A second signal ends the waiting.
    with suppress(subprocess.TimeoutExpired, Interrupted):
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.tell(signal.SIGKILL)
        process.wait()


@dataclass
class _Running:
    plan: Planned
    process: Process
    lock: int
    began: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class Worker:
    """Does the runs of a benchmark, and shows what comes of each.

    Args:
        out: The folder of runs.
        total: Number of all runs, also of those that cannot be started.
        shares: What each of the runs at once may use.
        status: A line on the console, below what is printed.

    Attributes:
        outcomes: By name of the run.
    """

    def __init__(self, out: Path, total: int, shares: Sequence[Share], status: Status) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._folder, self._out, self._total, self._shares, self._status = out / "bench", out, total, shares, status

    def do(self, plans: Sequence[Planned]) -> None:
        """Do all runs that are not done; `Interrupted` once those that were told to stop have ended."""
        waiting, running = deque(plans), dict[int, _Running]()
        try:
            while waiting or running:
                for place in range(len(self._shares)):
                    while waiting and place not in running:
                        if (run := self._begin(waiting.popleft(), self._shares[place])) is not None:
                            running[place] = run
                names = (f"{run.plan.job.name} {_duration(run.seconds)}" for run in running.values())
                self._status.update(f"{len(self.outcomes)}/{self._total} {', '.join(names)}")
                for place, run in [*running.items()]:
                    if (status := run.process.poll()) is not None:
                        self.note(self._ended(run, status))
                        os.close(running.pop(place).lock)
                if running:
                    time.sleep(0.2)
        except BaseException as error:
            number = error.signal_number if isinstance(error, Interrupted) else signal.SIGTERM
            end_all([run.process for run in running.values()], number)
            for run in running.values():
                self.outcomes[run.plan.job.name] = Outcome(run.plan.job, "stopped")
                os.close(run.lock)
            raise

    def note(self, outcome: Outcome) -> None:
        """Keep what came of a run, and print it."""
        self.outcomes[outcome.job.name] = outcome
        took = "" if outcome.seconds is None else f" in {_duration(outcome.seconds)}"
        why = f": {outcome.reason}" if outcome.reason else ""
        line = f"{len(self.outcomes)}/{self._total} {outcome.job.name} {outcome.status}{took}{why}"
        _say(self._status.console, line, _STYLES[outcome.status])

    def _begin(self, plan: Planned, share: Share) -> _Running | None:
        """Start a run, going on with what was begun; None if it is done or another process is at it."""
        name = plan.job.name
        try:
            lock = None if plan.done else try_lock(self._folder / "locks" / name)
        except Busy as error:
            self.note(Outcome(plan.job, "busy", f"another benchmark, or what it left running, is at it: {error}"))
            return None
        # Meanwhile another process may have done it.
        if lock is None or (plan.look(self._out) and plan.done):
            assert plan.finished is not None, "it is done"
            self.note(Outcome(plan.job, "skipped", str(plan.finished.folder), None, plan.finished.results))
            if lock is not None:
                os.close(lock)
            return None
        log = self._folder / "logs" / f"{name}.log"
        resume = ["--resume", "true"] if plan.begun(self._out) else []
        command = [sys.executable, "-m", "xbench.cli", "test", *plan.job.options, *resume]
        if not self._status.console.is_terminal:
            _say(self._status.console, f"{name} begins; log: {log}")
        return _Running(plan, Process(command, log, lock, share), lock, time.monotonic())

    def _ended(self, run: _Running, status: int) -> Outcome:
        plan, job, before = run.plan, run.plan.job, run.plan.finished
        found = plan.look(self._out)
        if status or found is None:
            why = run.process.last_words() if status else "it left no results"
            results = None if found is None or found.changed else found.results
            log = self._folder / "logs" / f"{job.name}.log"
            return Outcome(job, "failed", f"{why} (log: {log})", run.seconds, results)
        if found.changed:
            reason = f"while the benchmark was going on: {found.changed}"
            return Outcome(job, "changed", reason, run.seconds, found.results)
        anew = f"anew, for this has changed: {before.changed}" if before and before.changed else ""
        return Outcome(job, "finished", anew, run.seconds, found.results)


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
        macro: Mapping[str, float | None] = {} if outcome.results is None else outcome.results.macro
        numbers = (macro.get(name) for name in ("pointing_game", "dice_fixed", "auroc", "dice_best"))
        table.add_row(
            outcome.job.name,
            f"[{_STYLES[outcome.status]}]{outcome.status}[/]",
            "" if outcome.seconds is None else _duration(outcome.seconds),
            *("-" if number is None else f"{number:.3f}" for number in numbers),
        )
    console.print("", table)
    for outcome in outcomes:
        if outcome.reason and outcome.status not in ("finished", "skipped"):
            _say(console, f"{outcome.job.name} {outcome.status}: {outcome.reason}", _STYLES[outcome.status])
    console.print()


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


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
