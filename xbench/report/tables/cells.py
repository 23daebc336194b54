"""Building blocks of tables: cells from numbers, and rows of models with the best of each column marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xbench.report.schema import Analysis, DatasetAnalysis, Estimate, Reference, number_of
from xbench.report.tables.table import MISSING, TIED, Cell, Column, Kind, Row, Table, percentage

INTERVALS = "In brackets 95 % intervals."


@dataclass(frozen=True)
class Scores:
    """A column of a table whose rows are models, then floors and ceilings.

    Attributes:
        models: By label of the run.
        references: By title.
        tied: Labels of the runs that are not significantly different from the best.
        ranked: Whether the best is marked: more is better, and every run was tested against the best one.
    """

    column: Column
    models: Mapping[str, Estimate]
    references: Mapping[str, Estimate] = field(default_factory=dict)
    tied: frozenset[str] = frozenset()
    ranked: bool = True


def row(*entries: Cell | Estimate | str | float | None, kind: Kind = "model") -> Row:
    """Return a row: words as they are, whole numbers as counts, fractions in per cent, with their intervals."""
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
    """Return a cell with a fraction, in per cent, and its interval."""
    if estimate is None or estimate.value is None:
        return Cell(MISSING)
    return Cell(percentage(estimate.value, signed), estimate.value, estimate.low, estimate.high)


def p_value(p: float | None) -> Cell:
    """Return a cell with a p-value."""
    if p is None:
        return Cell(MISSING)
    return Cell("<0.0001" if p < 0.0001 else f"{p:.4f}", p)


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
    columns = [column if isinstance(column, Column) else Column(column) for column in numbers]
    texts = [Column(heading, numeric=False) for heading in text]
    return Table(name, title, caption, (*texts, *columns), tuple(rows), tuple(notes))


def of_dataset(analysis: Analysis, dataset: DatasetAnalysis, table: Table) -> Table:
    """Return a table of a dataset, named after it and with its notes."""
    return replace(
        table,
        name=f"{table.name}_{analysis.slug(dataset)}",
        title=f"{table.title} {analysis.heading(dataset)}",
        notes=(*notes_of(analysis, dataset), *table.notes),
    )


def notes_of(analysis: Analysis, *datasets: DatasetAnalysis) -> tuple[str, ...]:
    """Return the notes of some datasets, or of all."""
    return tuple(
        f"{analysis.heading(dataset)}: {note}" for dataset in datasets or analysis.datasets for note in dataset.notes
    )


def scores_of(
    dataset: DatasetAnalysis, key: str, column: Column, finding: str | None = None, ranked: bool = True
) -> Scores:
    """Return a number's column: of a finding, or the means over findings with the ties that the tests found."""

    return Scores(
        column,
        {entry.run.label: number_of(entry, key, finding) for entry in dataset.runs},
        {reference.title: number_of(reference, key, finding) for reference in dataset.references},
        dataset.tied_with_best.get(key, frozenset()) if finding is None else frozenset(),
        ranked and dataset.ranked(key),
    )


def rows_of_models(
    labels: Sequence[str], columns: Sequence[Scores], references: Iterable[Reference] = ()
) -> tuple[Row, ...]:
    """Return a row per model, then a row per floor and ceiling that has at least one of the numbers."""
    marked = [_marked(labels, column) for column in columns]
    rows = [row(label, *(cells[label] for cells in marked)) for label in labels]
    kinds = {reference.title: reference.kind for reference in references}
    for title in sorted(kinds, key=lambda title: kinds[title] == "ceiling"):
        cells = [number(column.references.get(title)) for column in columns]
        if any(cell.value is not None for cell in cells):
            rows.append(row(title, *cells, kind=kinds[title]))
    return tuple(rows)


def marks(rows: Iterable[Row]) -> str:
    """Return what a caption says of the marks in a table, with a space before it; nothing where there are none."""
    cells = [cell for row in rows for cell in row.cells]
    if not any(cell.mark for cell in cells):
        return ""
    tied = (
        f"; {TIED}: not significantly different from the best (paired test)" if any(cell.tied for cell in cells) else ""
    )
    return f" Best bold, second underlined{tied}."


def _marked(labels: Sequence[str], scores: Scores) -> dict[str, Cell]:
    cells = {label: number(scores.models.get(label)) for label in labels}
    existing = {label: cell.value for label, cell in cells.items() if cell.value is not None}
    # What is printed alike is marked alike, and where all are alike none is best.
    printed = {label: float(cells[label].text) for label in existing}
    ranks = sorted(set(printed.values()), reverse=True)
    if not scores.ranked or len(ranks) < 2:
        return cells
    for label, value in printed.items():
        cell = cells[label]
        if value == ranks[0]:
            cells[label] = replace(cell, mark="best")
        else:
            cells[label] = replace(cell, mark="second" if value == ranks[1] else None, tied=label in scores.tied)
    return cells
