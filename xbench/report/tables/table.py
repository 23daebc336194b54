"""Tables of a report as data, and how they are written as Markdown and CSV; as LaTeX in latex.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

MISSING = "\u2013"
"""What stands for a value that does not exist."""

TIED = "\u2020"
"""The sign at what is not significantly different from the best; captions of tables that have it say so."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        group: Heading above several columns side by side, such as a dataset's title; empty for none.
        numeric: Whether it sorts by value rather than by text.
    """

    title: str
    group: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Attributes:
        text: What is shown, without marks; percentages with two decimals, as in the paper. A dash for what does not
            exist.
        value: The number behind it, a fraction; None for words and for what does not exist.
        low, high: Ends of its 95 % interval, if there is one.
        mark: Best or second best of its column among the models.
        tied: Whether it is not significantly different from the best.
    """

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    mark: Literal["best", "second"] | None = None
    tied: bool = False

    @property
    def interval(self) -> str:
        """Its interval as `[low, high]` in per cent; empty if it has none."""
        if self.low is None or self.high is None:
            return ""
        return f"[{percentage(self.low)}, {percentage(self.high)}]"


Kind = Literal["model", "floor", "ceiling", "published", "difference", "count"]
"""Whose a row is."""


@dataclass(frozen=True)
class Row:
    """A row of a table: cells, and whose they are."""

    cells: tuple[Cell, ...]
    kind: Kind = "model"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: Stem of its files, such as `grounding`.
        rows: Each with a cell per column.
        notes: What else a reader must know, each a sentence or more.
    """

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def each_note_once(tables: Iterable[Table], shown: Iterable[str] = ()) -> list[Table]:
    """Return tables that are shown together, with each note under the first that has it; none of those in `shown`."""
    seen, found = set(shown), []
    for table in tables:
        found.append(replace(table, notes=tuple(note for note in table.notes if note not in seen)))
        seen.update(table.notes)
    return found


def percentage(value: float | None, signed: bool = False) -> str:
    """Write a fraction in per cent with two decimals; a dash for None.

    >>> percentage(0.61574), percentage(-0.00001), percentage(0.02, signed=True)
    ('61.57', '0.00', '+2.00')
    """
    if value is None:
        return MISSING
    text = f"{100 * value:+.2f}" if signed else f"{100 * value:.2f}"
    return "0.00" if float(text) == 0 else text


def to_frame(table: Table) -> pd.DataFrame:
    """Return a table for machines: every number as a fraction in full precision, its interval in columns of its own.

    The first column, `kind`, says whose a row is: `model`, `floor`, `ceiling`, `published`, `difference`, `count`.
    """
    columns: dict[str, list[object]] = {"kind": [row.kind for row in table.rows]}
    for position, column in enumerate(table.columns):
        cells = [row.cells[position] for row in table.rows]
        name = f"{column.group}: {column.title}" if column.group else column.title
        if not column.numeric:
            columns[name] = [cell.text for cell in cells]
            continue
        columns[name] = [cell.value for cell in cells]
        if any(cell.interval for cell in cells):
            columns[f"{name}, low"] = [cell.low for cell in cells]
            columns[f"{name}, high"] = [cell.high for cell in cells]
    # As objects, or pandas would turn counts beside a missing one into fractions.
    return pd.DataFrame(columns, dtype=object)


def to_csv(table: Table) -> str:
    """Write `to_frame` as CSV."""
    return str(to_frame(table).to_csv(index=False, lineterminator="\n"))


def to_markdown(table: Table) -> str:
    """Write a table as GitHub shows it: best bold, second underlined, intervals in small print beneath the values."""
    headings = [
        f"{escaped(column.group)}<br>{escaped(column.title)}" if column.group else escaped(column.title)
        for column in table.columns
    ]
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
