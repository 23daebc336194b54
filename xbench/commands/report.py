"""Commands `report` and `view`: tables, figures and one page from finished runs."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table as Grid

from xbench.runs.files import RunFileError
from xbench.runtime.errors import UsageError, UserError

if TYPE_CHECKING:
    from xbench.report.schema import Analysis
    from xbench.report.statistics.analyze import Progress as OnProgress
    from xbench.report.tables.table import Table

_RECORD = "analysis.json"
_ENDINGS = {"tables": (".md", ".csv", ".tex"), "figures": (".pdf", ".svg", ".png"), "cards": (".md",)}
_USUAL_CASES = 24


def report(given: Namespace) -> None:
    """Write a report, and log it to W&B on request."""
    folders = [path.expanduser() for path in given.runs]
    out = (given.out or folders[0] / "report").expanduser()
    cases = _USUAL_CASES if given.cases is None else given.cases
    of_papers = given.figures != "false"
    analysis, tables = write_report(folders, out, given.seed or 0, cases, given.card == "true", of_papers)
    if given.wandb == "true":
        from xbench.report.wandb.log_report import log_report

        if (offline := log_report(analysis, tables, out, given.wandb_pictures == "true")) is not None:
            print(f"Logged offline. To upload: wandb sync {offline}")


def view(given: Namespace) -> None:
    """Open the page of a report in a browser, and print its path."""
    place = (given.runs or Path("runs")).expanduser().absolute()
    pages = [path for path in (place, place / "index.html", place / "report" / "index.html") if path.is_file()]
    if not pages:
        raise UsageError(f"view: {place} has no report. Write one with xbench report {given.runs or 'runs'}")
    # Without a display, Python would start a text browser.
    seen = sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    opened = seen and webbrowser.open(pages[0].as_uri())
    print(f"{'Opened' if opened else 'No browser here: copy this file to your computer and open it'}: {pages[0]}")


def write_report(
    runs: Sequence[Path],
    out: Path,
    seed: int = 0,
    cases: int = _USUAL_CASES,
    card: bool = False,
    figures: bool = True,
    damaged: Mapping[Path, str] | None = None,
) -> tuple[Analysis, tuple[Table, ...]]:
    """Write a report on folders with finished runs at any depth into `out`, replacing an earlier report.

    `seed` is for paired tests, `cases` the pictured cases per dataset; `card` adds a card per model, `figures` draws
    those for papers, and `damaged` is as in `collect`. Returns the analysis and tables. Raises a `UserError` if there
    is no finished run or `out` is not writable.
    """
    # Imported here because they take a second.
    from xbench.report.document import document, write_analysis
    from xbench.report.figures.beside import drawn_beside
    from xbench.report.page.write import write_page
    from xbench.report.runs import collect
    from xbench.report.statistics.analyze import analyze
    from xbench.report.tables.contents import all_tables
    from xbench.report.tables.latex import to_latex
    from xbench.report.tables.table import to_csv, to_markdown

    began, console = time.monotonic(), Console(markup=False, highlight=False)
    collection = collect(runs, damaged)
    try:
        with _clear(out):
            with _bar(console, "Numbers") as progress:
                analysis = analyze(collection, seed=seed, progress=progress)
            write_analysis(out / _RECORD, analysis)
            total = 9 + 3 * len(analysis.datasets) if figures else 0
            with drawn_beside(analysis, out / "figures", cases, total) as drawn:
                if card:
                    from xbench.report.card import write_cards

                    write_cards(analysis, out / "cards")
                tables = all_tables(analysis)
                for table in tables:
                    for ending, write in ((".md", to_markdown), (".csv", to_csv), (".tex", to_latex)):
                        (out / "tables" / f"{table.name}{ending}").write_text(write(table), encoding="utf-8")
                with _bar(console, "Page") as progress:
                    write_page(analysis, tables, out / "index.html", cases, progress)
                _summarize(console, analysis, out, time.monotonic() - began)
                written = []
                with _bar(console, "Figures for papers") as progress:
                    for done, figure in enumerate(drawn, start=1):
                        written += [figure] if figure else []
                        progress(done, total, figure.title if figure else "done")
            (out / "report.md").write_text(document(analysis, tables, written), encoding="utf-8")
            return analysis, tables
    except RunFileError as error:
        if error.folder in (damaged or {}):
            raise
        # Retry without the unreadable maps and pictures of a run.
        damaged = {**(damaged or {}), error.folder: str(error)}
        return write_report(runs, out, seed, cases, card, figures, damaged)


@contextmanager
def _clear(out: Path) -> Iterator[None]:
    """Create the report's folders, without files of an earlier report."""
    ours = [name for name in ("index.html", "report.md", *_ENDINGS) if (out / name).exists()]
    if ours and not (out / _RECORD).is_file():
        raise UsageError(
            f"{out} holds {', '.join(ours)} but no {_RECORD}, so it is not an earlier report: give another folder "
            "with --out."
        )
    try:
        for name, endings in _ENDINGS.items():
            if name != "cards":
                (out / name).mkdir(parents=True, exist_ok=True)
            for path in (out / name).glob("*"):
                if path.suffix in endings:
                    path.unlink()
        yield
    except OSError as error:
        where = error.filename or out
        raise UserError(
            f"The report could not be completed: {where}: {error.strerror or error}. Give a writable folder with free "
            "disk space with --out."
        ) from error


@contextmanager
def _bar(console: Console, part: str) -> Iterator[OnProgress]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(part, total=None)
        yield lambda done, total, what: bars.update(task, completed=done, total=total, description=f"{part}: {what}")


def _summarize(console: Console, analysis: Analysis, out: Path, seconds: float) -> None:
    from xbench.report.facts import facts_of
    from xbench.report.sentences import in_a_line

    grid = Grid(title="Pointing game, mean over findings", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    several = any(len(dataset.values("pointing_game")) > 1 for dataset in analysis.datasets)
    titles = ["Dataset", "Best" if several else "Model", "Point.", "95% interval", "Not significantly different"]
    for title in titles if several else titles[:-1]:
        grid.add_column(title, justify="right" if title == "Point." else "left", overflow="fold")
    for dataset in analysis.datasets:
        values = dataset.values("pointing_game")
        if values:
            label = max(values, key=lambda label: values[label])
            best = next(entry.macro["pointing_game"] for entry in dataset.runs if entry.run.label == label)
            tied = sorted(dataset.tied_with_best.get("pointing_game", frozenset()) - {label})
            tied += [f"{other} (not tested)" for other in dataset.untested("pointing_game", label)]
            others = ", ".join(tied) if len(tied) < 3 else f"{len(tied)} others"
            # Fractions, as in the table of `test`.
            interval = "" if best.low is None or best.high is None else f"{best.low:.3f} to {best.high:.3f}"
            cells = (analysis.heading(dataset), label, f"{values[label]:.3f}", interval, others)
            grid.add_row(*map(escape, cells[: len(grid.columns)]))
    if grid.row_count:
        console.print(grid)
    for aside in analysis.set_aside:
        console.print(f"Skipped: {aside.folder}: {aside.reason}", style="yellow", soft_wrap=True, markup=False)
    console.print(f"Wrote tables and the page in {seconds:.0f} s.\n", style="dim")
    # soft_wrap: a wrapped path cannot be copied.
    console.print(in_a_line(facts_of(analysis)), style="bold", soft_wrap=True)
    console.print(f"Report: {out / 'index.html'}", soft_wrap=True)
