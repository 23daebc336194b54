"""Building blocks of tables: cells from numbers, and rows of models with the best of each column marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from xbench.report.names import dataset_title, model_order
from xbench.report.schema import Analysis, Correlation, DatasetAnalysis, Estimate, Reference, RunAnalysis
from xbench.report.tables.table import MISSING, TIED, Cell, Column, Row, Table, percentage

__all__ = [
    "INTERVALS",
    "Scores",
    "correlations_with_headings",
    "count",
    "heading",
    "labels_in_order",
    "marks",
    "notes_of",
    "number",
    "p_value",
    "rows_of_models",
    "scores_of",
    "slug",
    "table_of_dataset",
    "words",
]

INTERVALS = "In brackets 95 % intervals."


@dataclass(frozen=True)
class Scores:
    """A column of a table whose rows are models, then floors and ceilings.

    Attributes:
        column: The column.
        models: By label of the run.
        references: By title.
        tied: Labels of the runs that a test cannot tell from the best.
        more_is_better: Which end is best; None marks none.
    """

    column: Column
    models: Mapping[str, Estimate]
    references: Mapping[str, Estimate] = field(default_factory=dict)
    tied: frozenset[str] = frozenset()
    more_is_better: bool | None = True


def words(text: str) -> Cell:
    """Return a cell with text."""
    return Cell(text)


def count(value: int | None) -> Cell:
    """Return a cell with a whole number."""
    return Cell(MISSING if value is None else str(value), value)


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


def heading(dataset: DatasetAnalysis, analysis: Analysis) -> str:
    """Return how tables and figures call a dataset: with its split where there are several of it."""
    title = dataset_title(dataset.dataset)
    return f"{title} ({dataset.split})" if _splits(dataset, analysis) > 1 else title


def slug(dataset: DatasetAnalysis, analysis: Analysis) -> str:
    """Return what names of a dataset's tables and figures end with."""
    name = f"{dataset.dataset}_{dataset.split}" if _splits(dataset, analysis) > 1 else dataset.dataset
    return re.sub(r"\W+", "_", name)


def _splits(dataset: DatasetAnalysis, analysis: Analysis) -> int:
    return sum(other.dataset == dataset.dataset for other in analysis.datasets)


def table_of_dataset(
    analysis: Analysis,
    dataset: DatasetAnalysis,
    name: str,
    title: str,
    caption: str,
    text: Sequence[str],
    numbers: Sequence[str],
    rows: Sequence[Row],
) -> Table | None:
    """Return a table of a dataset with columns of text, then of numbers; None without a row."""
    if not rows:
        return None
    columns = (*(Column(column, numeric=False) for column in text), *map(Column, numbers))
    where = heading(dataset, analysis)
    return Table(f"{name}_{slug(dataset, analysis)}", f"{title} {where}", caption, columns, tuple(rows), dataset.notes)


def notes_of(analysis: Analysis) -> tuple[str, ...]:
    """Return the notes of all datasets, for a table that shows them together."""
    return tuple(f"{heading(dataset, analysis)}: {note}" for dataset in analysis.datasets for note in dataset.notes)


def correlations_with_headings(
    analysis: Analysis, scope: Literal["models", "findings"]
) -> list[tuple[Correlation, str]]:
    """Return the lines over models or over findings, each with the heading of its dataset or `All datasets`."""
    # One per dataset, in their order: with several splits the name alone would not tell which.
    places = iter(analysis.datasets)
    return [
        (line, "All datasets" if line.dataset is None else heading(next(places), analysis))
        for line in analysis.correlations
        if line.scope == scope
    ]


def labels_in_order(runs: Iterable[RunAnalysis]) -> list[str]:
    """Return the labels of runs in the order of the paper's tables, others' models behind."""
    models = {entry.run.label: entry.run.model for entry in runs}
    return sorted(models, key=lambda label: (model_order(models[label]), models[label], label))


def scores_of(
    dataset: DatasetAnalysis, key: str, column: Column, finding: str | None = None, more_is_better: bool | None = True
) -> Scores:
    """Return a number's column: of a finding, or the means over findings with the ties that the tests found."""

    def pick(entry: RunAnalysis | Reference) -> Estimate:
        numbers = entry.macro if finding is None else entry.findings.get(finding, {})
        return numbers.get(key, Estimate(None))

    return Scores(
        column,
        {entry.run.label: pick(entry) for entry in dataset.runs},
        {reference.title: pick(reference) for reference in dataset.references},
        dataset.tied_with_best.get(key, frozenset()) if finding is None else frozenset(),
        more_is_better if dataset.ranked(key) else None,
    )


def rows_of_models(
    labels: Sequence[str], columns: Sequence[Scores], references: Iterable[Reference] = ()
) -> tuple[Row, ...]:
    """Return a row per model, then a row per floor and ceiling that has at least one of the numbers."""
    marked = [_marked(labels, column) for column in columns]
    rows = [Row((words(label), *(cells[label] for cells in marked))) for label in labels]
    kinds = {reference.title: reference.kind for reference in references}
    for title in sorted(kinds, key=lambda title: kinds[title] == "ceiling"):
        cells = [number(column.references.get(title)) for column in columns]
        if any(cell.value is not None for cell in cells):
            rows.append(Row((words(title), *cells), kinds[title]))
    return tuple(rows)


def marks(rows: Iterable[Row]) -> str:
    """Return what a caption says of the marks in a table, with a space before it; nothing where there are none."""
    cells = [cell for row in rows for cell in row.cells]
    if not any(cell.mark for cell in cells):
        return ""
    tied = f"; {TIED}: a paired test cannot tell it from the best" if any(cell.tied for cell in cells) else ""
    return f" Best bold, second underlined{tied}."


def _marked(labels: Sequence[str], scores: Scores) -> dict[str, Cell]:
    cells = {label: number(scores.models.get(label)) for label in labels}
    existing = {label: cell.value for label, cell in cells.items() if cell.value is not None}
    # What is printed alike is marked alike, and where all are alike none is best.
    printed = {label: float(cells[label].text) for label in existing}
    ranks = sorted(set(printed.values()), reverse=scores.more_is_better is True)
    if scores.more_is_better is None or len(ranks) < 2:
        return cells
    for label, value in printed.items():
        cell = cells[label]
        if value == ranks[0]:
            cells[label] = replace(cell, mark="best")
        else:
            cells[label] = replace(cell, mark="second" if value == ranks[1] else None, tied=label in scores.tied)
    return cells
