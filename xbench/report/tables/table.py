"""Tables of a report as data: cells from numbers, rows of models with the best marked, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from xbench.report.schema import NUMBERS, Analysis, DatasetAnalysis, Estimate, Reference

MISSING = "\u2013"
"""What stands for a value that does not exist."""
TIED = "\u2020"
"""The sign at what is not significantly different from the best; captions of tables that have it say so."""
INTERVALS = "Brackets: 95% intervals."


@dataclass(frozen=True)
class Column:
    """A column under an optional group heading; numeric columns sort by value."""

    title: str
    group: str = ""
    numeric: bool = True


Mark = Literal["best", "second"] | None


@dataclass(frozen=True)
class Cell:
    """One entry of a table, with its 95% interval."""

    text: str  # without marks; percentages with two decimals, as in the paper
    value: float | None = None  # a fraction; None for words and missing numbers
    low: float | None = None
    high: float | None = None
    mark: Mark = None  # best or second best of its column among the models
    tied: bool = False  # not significantly different from the best
    plain: bool = False  # whether the interval is not in percent

    @property
    def interval(self) -> str:
        """Its interval as `[low, high]`; empty if it has none."""
        return self.limits(2)

    def limits(self, digits: int) -> str:
        """Return the interval with so many decimals if it is in percent."""
        if self.low is None or self.high is None:
            return ""
        ends = [_fixed(end, 2) if self.plain else percentage(end, digits=digits) for end in (self.low, self.high)]
        return f"[{ends[0]}, {ends[1]}]"


Kind = Literal["model", "floor", "ceiling", "published", "difference", "count"]
"""Whose a row is."""


@dataclass(frozen=True)
class Row:
    """A row of a table, with a cell per column."""

    cells: tuple[Cell, ...]
    kind: Kind = "model"


@dataclass(frozen=True)
class Table:
    """A table; its name is the stem of its files, and its notes are what else a reader must know."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def spans(columns: Iterable[Column]) -> list[tuple[str, int]]:
    """Return the headings above columns side by side, each with how many it spans."""
    return [(group, len(list(of_group))) for group, of_group in groupby(columns, key=lambda column: column.group)]


def each_note_once(tables: Iterable[Table], shown: Iterable[str] = ()) -> list[Table]:
    """Return tables with each note only under the first that has it, and without the notes in `shown`."""
    seen, found = set(shown), []
    for table in tables:
        found.append(replace(table, notes=tuple(note for note in table.notes if note not in seen)))
        seen.update(table.notes)
    return found


def percentage(value: float, signed: bool = False, digits: int = 2) -> str:
    """Write a fraction in percent with so many decimals.

    >>> percentage(0.61574), percentage(-0.00001), percentage(0.02, signed=True)
    ('61.57', '0.00', '+2.00')
    """
    return _fixed(100 * value, digits, "+" if signed else "")


def _fixed(value: float, digits: int, sign: str = "") -> str:
    text = f"{value:{sign}.{digits}f}"
    return f"{0:.{digits}f}" if float(text) == 0 else text


def row(*entries: Cell | Estimate | str | float | None, kind: Kind = "model") -> Row:
    """Return a row: text as is, integers as counts, fractions in percent with their intervals."""
    return Row(tuple(map(_cell, entries)), kind)


def _cell(entry: Cell | Estimate | str | float | None) -> Cell:
    if isinstance(entry, Cell):
        return entry
    if isinstance(entry, str):
        return Cell(entry)
    if isinstance(entry, int):
        return Cell(str(entry), entry)
    return number(Estimate(entry) if isinstance(entry, float) else entry)


def number(estimate: Estimate | None, signed: bool = False) -> Cell:
    """Return a cell with a fraction, in percent, and its interval."""
    if estimate is None or estimate.value is None:
        return Cell(MISSING)
    return Cell(percentage(estimate.value, signed), estimate.value, estimate.low, estimate.high)


def decimal(value: Estimate | float | None, digits: int) -> Cell:
    """Return a cell with a rounded number and its interval, not in percent."""
    found = value if isinstance(value, Estimate) else Estimate(value)
    text = MISSING if found.value is None else _fixed(found.value, digits)
    return Cell(text, found.value, found.low, found.high, plain=found.low is not None)


def p_value(p: float | None) -> Cell:
    """Return a cell with a p-value."""
    return Cell("<0.0001", p) if p is not None and p < 0.0001 else decimal(p, 4)


def table_of(
    name: str,
    title: str,
    caption: str,
    text: Sequence[str],
    numbers: Iterable[str | Column],
    rows: Iterable[Row],
    notes: Sequence[str] = (),
) -> Table:
    """Return a table with columns of text, then of numbers."""
    columns = [Column(heading, numeric=False) for heading in text]
    columns += [column if isinstance(column, Column) else Column(column) for column in numbers]
    return Table(name, title, caption, tuple(columns), tuple(rows), tuple(notes))


def of_datasets(analysis: Analysis, make: Callable[[DatasetAnalysis], Table]) -> Iterator[Table]:
    """Yield a table of each dataset, named after it and with its notes."""
    for dataset in analysis.datasets:
        table, title = make(dataset), analysis.heading(dataset)
        notes = (*analysis.notes_of(dataset), *table.notes)
        name = f"{table.name}_{analysis.slug(dataset)}"
        yield replace(table, name=name, title=f"{table.title} {title}", notes=notes)


def cells_of(
    dataset: DatasetAnalysis, key: str, finding: str | None = None, ranked: bool = True, tested: str = ""
) -> dict[str, Cell]:
    """Return a number of a finding, or its macro mean, by label of the run and title of the reference.

    If `ranked` and all runs were tested against the best, mark the best, the second and ties with the best. Equal
    printed values get equal marks; if all are equal, none is marked. `tested` is the number that tests compare.
    """
    cells = {entry.run.label: number(entry.number(key, finding)) for entry in dataset.runs}
    printed = {label: float(cell.text) for label, cell in cells.items() if cell.value is not None}
    ranks = sorted({*printed.values()}, reverse=True)
    # Neither a small gap nor a small optimism is a merit: a useless map has both.
    if ranked and NUMBERS[key].more_is_better and len(ranks) > 1 and dataset.ranked(key):
        tied = dataset.tied_with_best.get(tested or key, frozenset()) if finding is None else frozenset()
        for label, value in printed.items():
            mark: Mark = "best" if value == ranks[0] else "second" if value == ranks[1] else None
            cells[label] = replace(cells[label], mark=mark, tied=label in tied and mark != "best")
    return cells | {one.title: number(one.number(key, finding)) for one in dataset.references}


def rows_of_models(
    labels: Iterable[str], columns: Sequence[Mapping[str, Cell]], references: Iterable[Reference] = ()
) -> list[Row]:
    """Return a row per model, then one per reference that has at least one of the numbers."""
    kinds = {reference.title: reference.kind for reference in references}
    rows = [row(label, *(cells.get(label) for cells in columns)) for label in labels]
    for title in sorted(kinds, key=lambda title: kinds[title] == "ceiling"):
        if any(title in cells and cells[title].value is not None for cells in columns):
            rows.append(row(title, *(cells.get(title) for cells in columns), kind=kinds[title]))
    return rows


def marks(rows: Iterable[Row], tested: str = "") -> str:
    """Return the explanation of a table's marks with a leading space, empty without marks; `tested` names columns."""
    cells = [cell for row in rows for cell in row.cells]
    only = tested and f"; of these columns, only {tested} tested"
    tied = f"; {TIED}: not significantly different from the best (paired test{only})" * any(c.tied for c in cells)
    return f" Best bold, second underlined{tied}." if any(cell.mark for cell in cells) else ""


def to_rows(table: Table) -> list[list[Any]]:
    """Return a table for machines: full-precision fractions, intervals in separate columns, None for missing values.

    The first row names the columns; the column `kind` has each row's `Kind`.
    """
    columns: dict[str, list[object]] = {"kind": [row.kind for row in table.rows]}
    for position, column in enumerate(table.columns):
        cells = [row.cells[position] for row in table.rows]
        name = f"{column.group}: {column.title}" if column.group else column.title
        columns[name] = [cell.value if column.numeric else cell.text for cell in cells]
        if column.numeric and any(cell.interval for cell in cells):
            columns[f"{name}, low"] = [cell.low for cell in cells]
            columns[f"{name}, high"] = [cell.high for cell in cells]
    return [[*columns], *map(list, zip(*columns.values(), strict=True))]


def to_csv(table: Table) -> str:
    """Write `to_rows` as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(to_rows(table))
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """Write a table as Markdown: best bold, second underlined, intervals in small print below the values."""
    headings = ["<br>".join(map(escaped, filter(None, (column.group, column.title)))) for column in table.columns]
    rules = ["---:" if column.numeric else ":---" for column in table.columns]
    rows = [[_markdown_cell(cell) for cell in row.cells] for row in table.rows]
    lines = [f"| {' | '.join(cells)} |" for cells in [headings, rules, *rows]]
    text = [f"**{escaped(table.title)}.** {escaped(table.caption)}", "", *lines, ""]
    text += [f"- {escaped(note)}" for note in table.notes]
    return "\n".join(text).rstrip("\n") + "\n"


def _markdown_cell(cell: Cell) -> str:
    text = escaped(cell.text)
    text = {"best": f"**{text}**", "second": f"<u>{text}</u>", None: text}[cell.mark]
    interval = f"<br><sub>{cell.interval}</sub>" if cell.interval else ""
    return f"{text}{TIED if cell.tied else ''}{interval}"


def escaped(text: str) -> str:
    """Return plain text so that Markdown shows it as it is."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", " ".join(text.split()))
