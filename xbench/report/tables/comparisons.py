"""Tables that set models, settings and kinds of numbers against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Literal

from xbench.report.names import dataset_title
from xbench.report.schema import NUMBERS, Analysis, DatasetAnalysis, Estimate, StudyRow
from xbench.report.tables.cells import (
    INTERVALS,
    correlations_with_headings,
    count,
    number,
    p_value,
    table_of_dataset,
    words,
)
from xbench.report.tables.table import MISSING, Cell, Column, Row, Table

__all__ = ["comparisons", "correlations", "studies"]


def comparisons(analysis: Analysis, dataset: DatasetAnalysis) -> Table | None:
    """Every pair of models, by number."""
    rows = [
        Row(
            (
                words(NUMBERS[entry.number].title),
                words(entry.first),
                words(entry.second),
                count(entry.images),
                number(entry.difference, signed=True),
                p_value(entry.p),
                p_value(entry.p_adjusted),
            )
        )
        for entry in dataset.comparisons
    ]
    untested = {
        f"{entry.first} and {entry.second} were not tested by {NUMBERS[entry.number].title}: {entry.untested}."
        for entry in dataset.comparisons
        if entry.untested
    }
    table = table_of_dataset(
        analysis,
        dataset,
        "comparisons",
        "Models compared on",
        "Paired tests on the images that both models scored. Difference: first less second, in percentage points, with "
        "its 95 % interval. Adjusted p: corrected for all comparisons of the number on the dataset.",
        ("Number", "First", "Second"),
        ("Images", "Difference", "p", "Adjusted p"),
        rows,
    )
    return table and replace(table, notes=(*table.notes, *sorted(untested)))


def correlations(analysis: Analysis) -> Table | None:
    """Least-squares lines through recognition and grounding."""

    def decimals(value: float | None) -> Cell:
        return Cell(MISSING if value is None else f"{value:.2f}", value)

    rows = []
    for scope, point in _POINTS.items():
        for line, where in correlations_with_headings(analysis, scope):
            numbers = (decimals(line.r_squared), decimals(line.slope), decimals(line.intercept), p_value(line.p))
            if line.points:
                rows.append(Row((words(point), words(where), count(len(line.points)), *numbers)))
    if not rows:
        return None
    return Table(
        "correlations",
        "Recognition and grounding",
        "Least-squares line through AUROC and pointing game, both as fractions. A point is a model with its own "
        "prompts, over all datasets its means over them; or a model and finding, which are not independent, so that p "
        "flatters. p: that the slope is zero.",
        (
            *(Column(title, numeric=False) for title in ("A point for each", "Dataset")),
            *map(Column, ("Points", "R\u00b2", "Slope", "Intercept", "p")),
        ),
        tuple(rows),
        analysis.notes,
    )


_POINTS: dict[Literal["models", "findings"], str] = {"models": "model", "findings": "model and finding"}
_STUDIES: dict[str, str] = {"prompts": "Other wordings of the findings", "image_size": "Other input sizes"}


def studies(analysis: Analysis) -> Iterator[Table]:
    """One table per setting that was varied."""
    by_study = attrgetter("study")
    for study, group in groupby(sorted(analysis.studies, key=by_study), by_study):
        rows = list(group)
        values = sorted({value for row in rows for value in row.values}, key=_by_size)
        yield Table(
            f"studies_{study}",
            _STUDIES.get(study, study.replace("_", " ").capitalize()),
            f"What {study.replace('_', ' ')} change, all else equal, in per cent. Spread: largest value less smallest. "
            "Relative: the spread over the value at the model's own setting. Adjusted p: paired test between the two "
            f"extremes, corrected over the study. {INTERVALS}",
            (
                *(Column(title, numeric=False) for title in ("Model", "Dataset", "Finding", "Number")),
                *(Column(value, study.replace("_", " ").capitalize()) for value in values),
                *map(Column, ("Spread", "Relative", "Adjusted p")),
            ),
            tuple(_study_row(row, values) for row in rows),
        )


def _study_row(row: StudyRow, values: Sequence[str]) -> Row:
    names = (row.model, dataset_title(row.dataset), row.finding, NUMBERS[row.number].title)
    spread, relative = number(Estimate(row.spread)), number(Estimate(row.relative))
    cells = [number(row.values.get(value)) for value in values]
    return Row((*map(words, names), *cells, spread, relative, p_value(row.p_adjusted)))


def _by_size(value: str) -> tuple[int, str]:
    return (int(value), value) if value.isdecimal() else (0, value)
