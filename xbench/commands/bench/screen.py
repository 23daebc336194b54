"""What a benchmark shows: how far it is, how long it will take, and what came of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from xbench.commands.bench.jobs import Job
from xbench.runs.results import Results

_OVERHEAD = 15.0
"""Seconds that a run takes to start and to end, where no run of this benchmark has shown it yet."""

Status = Literal["finished", "skipped", "failed", "changed", "left out", "busy", "stopped", "not begun"]
_STYLES: dict[Status, str] = {
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
        job: The run.
        status: In a word: it `finished` now, was `skipped` as finished and unchanged, `failed`, finished but had what
            it depends on `changed` meanwhile, was `left out` because data or weights are missing, is `busy` in another
            process, was `stopped` by the user, or `not begun` by then.
        reason: Why, in words.
        seconds: How long it took now.
        results: Its results, if there are any.
    """

    job: Job
    status: Status
    reason: str = ""
    seconds: float | None = None
    results: Results | None = None


class Estimate:
    """How long runs take, after those that are known: by seconds per image of the same model.

    Args:
        finished: Results of finished runs.
    """

    def __init__(self, finished: Sequence[Results] = ()) -> None:
        self._spent: defaultdict[tuple[str, ...], list[tuple[float, int]]] = defaultdict(list)
        self._overheads: list[float] = []
        for results in finished:
            self._note((results.model,), _work(results), results.counts.images)

    def add(self, job: Job, results: Results, seconds: float) -> None:
        """Take a run into account."""
        work = _work(results)
        self._overheads.append(max(0.0, seconds - work))
        self._note((job.model, job.variant), work, results.counts.images)
        self._note((job.model,), work, results.counts.images)

    def seconds(self, job: Job, images: int) -> float | None:
        """Return how long a run will take; None if nothing is known."""
        for key in ((job.model, job.variant), (job.model,), ()):
            if self._spent[key]:
                work = sum(seconds for seconds, _ in self._spent[key])
                seen = sum(count for _, count in self._spent[key])
                overhead = sum(self._overheads) / len(self._overheads) if self._overheads else _OVERHEAD
                return overhead + images * work / max(seen, 1)
        return None

    def _note(self, key: tuple[str, ...], work: float, images: int) -> None:
        self._spent[key].append((work, images))
        if len(key) == 1:
            self._spent[()].append((work, images))


class Screen:
    """A bar over all runs, and a line for each that ends.

    Args:
        console: Where to.
        total: Number of runs.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._done = 0
        self._total = total
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[clock]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total, clock="")

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def start(self, job: Job, log: Path) -> None:
        """Show that a run begins."""
        self._began = monotonic()
        self._bar.update(self._task, description=job.name)
        if not self._console.is_terminal:
            self._line(f"{self._done + 1}/{self._total} {job.name} begins; log: {log}")

    def tick(self, left: float | None) -> None:
        """Show how long the run goes on, and how long all that is left will take, in seconds; None if unknown."""
        rest = "" if left is None else f", about {duration(left)} left"
        self._bar.update(self._task, clock=f"{duration(monotonic() - self._began)} running{rest}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._line(text, "yellow")

    def end(self, outcome: Outcome, left: float | None) -> None:
        """Show what came of a run."""
        self._done += 1
        self._bar.update(self._task, completed=self._done)
        took = "" if outcome.seconds is None else f" in {duration(outcome.seconds)}"
        rest = "" if left is None or self._done == self._total else f"; about {duration(left)} left"
        why = f": {outcome.reason}" if outcome.reason else ""
        line = f"{self._done}/{self._total} {outcome.job.name} {outcome.status}{took}{why}{rest}"
        self._line(line, _STYLES[outcome.status])

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def print_summary(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print a table with a row per run, and below why some were not done."""
    console.print("", _table(outcomes))
    for outcome in outcomes:
        if outcome.reason and outcome.status not in ("finished", "skipped"):
            text = f"{outcome.job.name} {outcome.status}: {outcome.reason}"
            console.print(text, style=_STYLES[outcome.status], highlight=False, markup=False, soft_wrap=True)
    console.print()


def _table(outcomes: Sequence[Outcome]) -> Table:
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _STYLES}
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    table = Table(
        title=f"Runs: {said}",
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
        results = outcome.results
        macro = {} if results is None else results.macro
        numbers = (macro.get(name) for name in ("pointing_game", "dice_fixed", "auroc", "dice_best"))
        table.add_row(
            outcome.job.name,
            f"[{_STYLES[outcome.status]}]{outcome.status}[/]",
            "" if outcome.seconds is None else duration(outcome.seconds),
            *("-" if number is None else f"{number:.3f}" for number in numbers),
        )
    return table


def duration(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds.

    >>> duration(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _work(results: Results) -> float:
    """Seconds that a run spent on its images; they are decoded meanwhile."""
    spent = results.provenance.get("seconds") or {}
    return float(sum(value for stage, value in spent.items() if stage not in ("setup", "text", "decode")))
