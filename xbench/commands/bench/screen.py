"""What a benchmark shows: how far it is, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from xbench.commands.bench.config import Job
from xbench.runs.results import Results

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


class Screen(Progress):
    """A bar over all runs, and a line on the console for each that ends."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[clock]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._done, self._total = 0, total
        self._bar = self.add_task("", total=total, clock="")

    def begin(self, job: Job, log: Path) -> None:
        """Show that a run begins."""
        self._began = monotonic()
        self.update(self._bar, description=job.name)
        if not self.console.is_terminal:
            self.say(f"{self._done + 1}/{self._total} {job.name} begins; log: {log}")

    def tick(self, left: float | None) -> None:
        """Show how long the run goes on, and how long all that is left will take, in seconds; None if unknown."""
        rest = "" if left is None else f", about {duration(left)} left"
        self.update(self._bar, clock=f"{duration(monotonic() - self._began)} running{rest}")

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the bar."""
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def end(self, outcome: Outcome, left: float | None) -> None:
        """Show what came of a run."""
        self._done += 1
        self.update(self._bar, completed=self._done)
        took = "" if outcome.seconds is None else f" in {duration(outcome.seconds)}"
        rest = "" if left is None or self._done == self._total else f"; about {duration(left)} left"
        why = f": {outcome.reason}" if outcome.reason else ""
        line = f"{self._done}/{self._total} {outcome.job.name} {outcome.status}{took}{why}{rest}"
        self.say(line, _STYLES[outcome.status])


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
