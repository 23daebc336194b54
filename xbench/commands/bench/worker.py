"""Planning, checking and running a benchmark, with a log per run."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import torch
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from xbench.commands.bench import warm
from xbench.commands.bench.config import Job
from xbench.commands.check import check_dataset, check_versions
from xbench.commands.options import build, resolve_class, run_parser
from xbench.commands.run import silence_libraries
from xbench.data.datamodule import ChestXrayDataModule
from xbench.runs.files import RESULTS, RunFileError
from xbench.runs.fingerprint import changes, fingerprint, of_results
from xbench.runs.finished import FinishedRun
from xbench.runs.journal import read_about
from xbench.runs.results import Results
from xbench.runtime.errors import UserError
from xbench.runtime.locks import Busy, try_lock
from xbench.runtime.processes import usable_cores

_LOOKED_AT = 8  # images per dataset that `--check` decodes


@dataclass
class Planned:
    """A run that is possible or done: current fingerprint, newest finished run, and what `changed` since."""

    job: Job
    config: dict[str, Any]
    data: ChestXrayDataModule
    depends_on: dict[str, Any]
    finished: FinishedRun | None = None
    changed: str = ""

    @property
    def done(self) -> bool:
        """Whether the run is finished, unchanged and successful."""
        if self.finished is None or self.changed:
            return False
        # A run with constant maps only fails after writing its files.
        counts = self.finished.results.counts
        scored = sum(count.with_region for count in counts.per_finding.values())
        return not scored or counts.constant_maps.count < scored

    def look(self, out: Path) -> FinishedRun | None:
        """Find the newest finished run with its settings, as reports do."""
        now = of_results(self.depends_on)
        # Folder names begin with the time.
        for path in sorted(out.glob(f"*/*/{RESULTS}"), key=lambda path: path.parent.name, reverse=True):
            with suppress(RunFileError):
                run = FinishedRun.open(path.parent)
                before = run.results.provenance.get("fingerprint")
                if isinstance(before, dict) and before.get("settings") == now["settings"]:
                    self.finished, self.changed = run, ", ".join(changes(before, now))
                    return run
        return None

    def begun(self, out: Path) -> bool:
        """Return whether a run with its fingerprint can be resumed."""
        journals = [path for path in out.glob("*/*/journal") if not (path.parent / RESULTS).is_file()]
        return any(read_about(path) == self.depends_on for path in journals)


def look(jobs: Sequence[Job], out: Path) -> tuple[list[Planned], dict[str, list[Job]], bool]:
    """Return possible or finished runs, jobs by problem, and whether only data or weights are missing."""
    silence_libraries()
    parser = run_parser("test")
    problems: defaultdict[str, list[Job]] = defaultdict(list)
    # Built datasets or their errors, by options.
    datasets: dict[str, ChestXrayDataModule | UserError] = {}
    weights: dict[str, str] = {}
    planned, missing = [], True
    for job in jobs:
        for text in job.unset:
            problems[text].append(job)
        if job.unset:
            continue
        try:
            config = parser.resolve(job.options)
        except UserError as error:
            problems[str(error)].append(job)
            missing = False
            continue
        key = json.dumps(config["data"], sort_keys=True, default=str)
        data = datasets[key] if key in datasets else datasets.setdefault(key, build(config["data"], "test"))
        plan = None
        if isinstance(data, UserError):
            problems[str(data)].append(job)
        else:
            plan = Planned(job, config, data, fingerprint(config, resolve_class(config["model"]["class_path"]), data))
            plan.look(out)
        if not (plan and plan.done) and (problem := _weights_problem(config["model"], weights)):
            problems[problem].append(job)
        elif plan is not None:
            planned.append(plan)
    return planned, problems, missing


def check_all(planned: Iterable[Planned], console: Console) -> Iterator[str]:
    """Load every model and its prompts, and decode the first images of every dataset; yield problems."""
    yield from check_versions()
    seen: set[object] = set()
    for plan in planned:
        data = plan.data
        model_key = (json.dumps(plan.config["model"], default=str), *data.findings)
        if model_key not in seen:
            console.print(f"Loading the model of {plan.job.name}", style="dim")
            model = build(plan.config["model"])
            problems = [str(model)] if isinstance(model, UserError) else model.problems(data.findings)
            yield from (f"{plan.job.name}: {problem}" for problem in problems)
        if data not in seen:
            console.print(f"Reading {_LOOKED_AT} images of {plan.job.dataset}", style="dim")
            data.limit = min(data.limit or _LOOKED_AT, _LOOKED_AT)
            yield from check_dataset(data, None, progress=False).problems
        seen |= {model_key, data}


def _weights_problem(chosen: dict[str, Any], known: dict[str, str]) -> str:
    arguments = chosen.get("init_args") or {}
    if isinstance(given := arguments.get("checkpoint"), str):
        place = Path(given.removeprefix("local-dir:")).expanduser()
        name = chosen["class_path"].rpartition(".")[2]
        return "" if place.exists() else f"The weights of {name} are not there: {place} does not exist."
    # Without a file, building fails or downloads the weights now rather than during runs.
    key = json.dumps([chosen["class_path"], arguments.get("architecture"), arguments.get("pretrained")])
    if "checkpoint" in arguments and key not in known:
        model = build(chosen)
        known[key] = str(model) if isinstance(model, UserError) else ""
    return known.get(key, "")


_TIME_TO_END = 30  # seconds until a stopped run is killed
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STYLES = {"finished": "green", "skipped": "cyan", "failed": "bold red", "changed": "bold red"}
_STYLES |= dict.fromkeys(("left out", "busy", "stopped", "not begun"), "yellow")


class Outcome(NamedTuple):
    """Outcome of a run: status, reason and duration.

    Status is `finished`, `skipped` (finished and unchanged), `failed`, `changed` (during the run), `left out` (missing
    data or weights), `busy` (in another process), `stopped` or `not begun`.
    """

    job: Job
    status: str
    reason: str = ""
    seconds: float | None = None
    results: Results | None = None


class Share(NamedTuple):
    """GPUs, as in CUDA_VISIBLE_DEVICES, and cores of a concurrent run; None for all."""

    gpus: str | None = None
    cores: frozenset[int] | None = None


def shares_of_machine(jobs: int) -> list[Share]:
    """Divide the GPUs and cores of this machine among concurrent runs."""
    gpus = [str(number) for number in range(torch.cuda.device_count())]
    # Visible GPUs can have other names, such as parts of a GPU.
    if gpus and (visible := os.environ.get("CUDA_VISIBLE_DEVICES")):
        gpus = visible.split(",")[: len(gpus)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
    return shares(jobs, gpus, cores[: usable_cores()])


def shares(jobs: int, gpus: Sequence[str], cores: Sequence[int]) -> list[Share]:
    """Divide GPUs and cores among concurrent runs, at most one per core.

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


class Process:
    """`python -m MODULE ...` in its own process and session, with output appended to a file.

    W&B runs are named after the file unless WANDB_NAME is set. The process holds the lock until it ends. Raises an
    OSError if the log cannot be written.
    """

    def __init__(self, command: Sequence[str], log: Path, lock: int, share: Share) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {"WANDB_NAME": log.stem, **os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
        environment |= {} if share.gpus is None else {"CUDA_VISIBLE_DEVICES": share.gpus}
        with log.open("ab") as stream:
            stream.write(f"\n{datetime.now():%Y-%m-%d %H:%M:%S} $ {shlex.join(command)}\n".encode())
            self._begin = stream.tell()
        # A connection closes its descriptor here after passing it on.
        context: Any = multiprocessing.get_context("forkserver" if warm.forks() else "spawn")
        self._process: BaseProcess = context.Process(
            target=warm.run, name=log.stem, args=(command, str(log), Connection(lock), environment, share.cores or ())
        )
        self._process.start()
        self.wait, self._pid = self._process.join, self._process.pid or 0
        # Outside the terminal's group: the benchmark receives Ctrl-C and passes it on.
        with suppress(ProcessLookupError):
            while os.getpgid(self._pid) != self._pid and self.poll() is None:
                time.sleep(0.001)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while running."""
        return self._process.exitcode

    def tell(self, number: int) -> None:
        """Send a signal to the process and its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, number)

    def last_words(self) -> str:
        """Return the last line of a finished process, or its last error."""
        with self._log.open("rb") as stream:
            stream.seek(max(self._begin, os.fstat(stream.fileno()).st_size - 100_000))
            lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
        if (status := self.poll() or 0) < 0:
            memory = " (as the system does when memory runs out)" if -status == signal.SIGKILL else ""
            return f"killed by {signal.Signals(-status).name}{memory}"
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if status == 255 and not errors:
            warm.forks.cache_clear()
            return "ended with status 255, because its parent process was killed"
        return [*(lines or ["no output"])[-1:], *errors][-1]


def end_all(processes: Collection[Process], number: int) -> None:
    """Signal processes and their groups, wait, and kill the rest."""
    for process in processes:
        # Treat hangup like termination.
        process.tell(signal.SIGTERM if number == signal.SIGHUP else number)
    deadline = time.monotonic() + _TIME_TO_END
    with suppress(Interrupted):  # a second signal ends the wait
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.tell(signal.SIGKILL)
        process.wait()


_Running = tuple[Planned, Process, float]  # with its start time


class Worker:
    """Runs jobs concurrently, one per share, and prints and collects `outcomes` by name."""

    def __init__(self, out: Path, total: int, shares: Sequence[Share], status: Status) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._folder, self._out, self._total, self._shares, self._status = out / "bench", out, total, shares, status

    def do(self, plans: Sequence[Planned]) -> None:
        """Do all unfinished runs; raise `Interrupted` once stopped runs have ended."""
        waiting, running = deque(plans), dict[int, _Running]()
        try:
            while waiting or running:
                for place in range(len(self._shares)):
                    while waiting and place not in running:
                        if (run := self._begin(waiting.popleft(), self._shares[place])) is not None:
                            running[place] = run
                now = time.monotonic()
                names = (f"{plan.job.name} {_duration(now - began)}" for plan, _, began in running.values())
                self._status.update(f"{len(self.outcomes)}/{self._total} {', '.join(names)}")
                for place, run in [*running.items()]:
                    if (status := run[1].poll()) is not None:
                        self.note(self._ended(*run, status))
                        del running[place]
                if running:
                    time.sleep(0.2)
        except BaseException as error:
            number = signal.Signals[str(error)] if isinstance(error, Interrupted) else signal.SIGTERM
            end_all([process for _, process, _ in running.values()], number)
            for plan, _, _ in running.values():
                self.outcomes[plan.job.name] = Outcome(plan.job, "stopped")
            raise

    def note(self, outcome: Outcome) -> None:
        """Store and print an outcome."""
        self.outcomes[outcome.job.name] = outcome
        took = "" if outcome.seconds is None else f" in {_duration(outcome.seconds)}"
        why = f": {outcome.reason}" if outcome.reason else ""
        line = f"{len(self.outcomes)}/{self._total} {outcome.job.name} {outcome.status}{took}{why}"
        self._status.console.print(line, style=_STYLES[outcome.status], soft_wrap=True)

    def _begin(self, plan: Planned, share: Share) -> _Running | None:
        """Start or resume a run; None if it is done or busy."""
        name = plan.job.name
        try:
            lock = None if plan.done else try_lock(self._folder / "locks" / name)
        except Busy as error:
            self.note(Outcome(plan.job, "busy", f"another benchmark, or a leftover process, is running it: {error}"))
            return None
        # Another process may have finished it.
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
            self._status.console.print(f"{name} begins; log: {log}", soft_wrap=True)
        return plan, Process(command, log, lock, share), time.monotonic()

    def _ended(self, plan: Planned, process: Process, began: float, status: int) -> Outcome:
        job, before, seconds = plan.job, plan.changed, time.monotonic() - began
        found = plan.look(self._out)
        if status or found is None:
            why = process.last_words() if status else "it wrote no results"
            results = None if found is None or plan.changed else found.results
            log = self._folder / "logs" / f"{job.name}.log"
            return Outcome(job, "failed", f"{why} (log: {log})", seconds, results)
        if plan.changed:
            return Outcome(job, "changed", f"while the benchmark was going on: {plan.changed}", seconds, found.results)
        anew = f"again, because of a change: {before}" if before else ""
        return Outcome(job, "finished", anew, seconds, found.results)


def print_summary(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print a table with a row per run, and reasons below."""
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _STYLES}
    table = Table(
        title="Runs: " + ", ".join(f"{count} {status}" for status, count in counts.items() if count),
        title_justify="left",
        caption="Means over findings. Point.: pointing game. Best: at each finding's best threshold.",
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
            Text(outcome.status, _STYLES[outcome.status]),
            "" if outcome.seconds is None else _duration(outcome.seconds),
            *("-" if number is None else f"{number:.3f}" for number in numbers),
        )
    console.print("", table)
    for outcome in outcomes:
        if outcome.reason and outcome.status not in ("finished", "skipped"):
            text = f"{outcome.job.name} {outcome.status}: {outcome.reason}"
            console.print(text, style=_STYLES[outcome.status], soft_wrap=True)
    console.print()


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class Interrupted(BaseException):
    """The benchmark was stopped by the signal of this name."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and hangup into `Interrupted`."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
