"""The tables of a report: those in the layout of the paper here, the others in the modules beside it."""

from __future__ import annotations

from collections.abc import Iterator

from xbench.report.schema import NUMBERS, Analysis, DatasetAnalysis
from xbench.report.tables import comparisons, details, published
from xbench.report.tables.cells import (
    INTERVALS,
    Scores,
    heading,
    labels_in_order,
    marks,
    notes_of,
    rows_of_models,
    scores_of,
    slug,
)
from xbench.report.tables.table import Column, Table

__all__ = ["all_tables"]

_FLOORS = (
    "Below the models: floors, which a map must exceed to be worth anything, and ceilings. With the best threshold a "
    "useless map scores what the whole image scores."
)


def all_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Return every table of a report, the most looked for first."""
    return tuple(_tables(analysis))


def _tables(analysis: Analysis) -> Iterator[Table]:
    yield _grounding(analysis)
    yield details.grounding_honest(analysis)
    yield _classification(analysis)
    for dataset in analysis.datasets:
        if len(dataset.findings) > 1:
            yield _per_finding(
                analysis,
                dataset,
                "pointing_game",
                "Pointing game per finding on",
                "Mean over the findings, then each finding, in per cent.",
                more_is_better=True,
            )
    for dataset in analysis.datasets:
        yield _per_finding(
            analysis,
            dataset,
            "dice_gap",
            "Calibration gap per finding on",
            f"{NUMBERS['dice_gap'].meaning} In percentage points. A gap of zero is no merit by itself: a map that is "
            "useless at every threshold has it too, so nothing is marked as best.",
            more_is_better=None,
        )
    if best_and_worst := details.best_and_worst_findings(analysis):
        yield best_and_worst
    for per_dataset in (
        comparisons.comparisons,
        details.quadrants,
        details.by_area,
        details.by_position,
    ):
        for dataset in analysis.datasets:
            if table := per_dataset(analysis, dataset):
                yield table
    if lines := comparisons.correlations(analysis):
        yield lines
    yield from comparisons.studies(analysis)
    yield from published.published_tables(analysis)


def _grounding(analysis: Analysis) -> Table:
    """Table 1 of the paper."""
    numbers = {"pointing_game": "Pointing game", "dice_best": "Dice, best", "iou_best": "IoU, best"}
    return _over_datasets(
        analysis,
        numbers,
        "grounding",
        "Grounding",
        "Means over findings, in per cent: pointing game, and Dice and IoU at the threshold that is best on the very "
        f"images they are scored on, as in the paper's Table 1. {_FLOORS}",
    )


def _classification(analysis: Analysis) -> Table:
    numbers = {"auroc": "AUROC", "average_precision": "Average precision", "f1": "F1", "accuracy": "Accuracy"}
    return _over_datasets(
        analysis,
        numbers,
        "classification",
        "Recognition",
        "Means over the findings with both labels, in per cent; F1 and accuracy at probability 0.5 and above. "
        "The whole image stands for finding everything in every image.",
    )


def _over_datasets(analysis: Analysis, numbers: dict[str, str], name: str, title: str, caption: str) -> Table:
    """A table with a row per model and a group of columns per dataset."""
    columns: list[Scores] = []
    for dataset in analysis.datasets:
        group = heading(dataset, analysis)
        columns += [scores_of(dataset, key, Column(short, group)) for key, short in numbers.items()]
    labels = labels_in_order(entry for dataset in analysis.datasets for entry in dataset.runs)
    references = [reference for dataset in analysis.datasets for reference in dataset.references]
    rows = rows_of_models(labels, columns, references)
    return Table(
        name,
        title,
        f"{caption}{marks(rows)} {INTERVALS}",
        (Column("Model", numeric=False), *(column.column for column in columns)),
        rows,
        notes_of(analysis),
    )


def _per_finding(
    analysis: Analysis, dataset: DatasetAnalysis, key: str, title: str, caption: str, more_is_better: bool | None
) -> Table:
    """A table with a row per model and a column per finding, as the paper's Tables 2 to 5."""
    columns = [scores_of(dataset, key, Column("Mean"), more_is_better=more_is_better)]
    # With one finding the mean is the finding.
    for finding in dataset.findings if len(dataset.findings) > 1 else ():
        columns.append(scores_of(dataset, key, Column(finding), finding, more_is_better))
    if len(columns) == 1:
        columns = [scores_of(dataset, key, Column(dataset.findings[0]), more_is_better=more_is_better)]
    rows = rows_of_models(labels_in_order(dataset.runs), columns, dataset.references)
    marked = marks(rows) if more_is_better is not None else ""
    return Table(
        f"{'calibration_gap' if key == 'dice_gap' else key}_{slug(dataset, analysis)}",
        f"{title} {heading(dataset, analysis)}",
        f"{caption}{marked} {INTERVALS}",
        (Column("Model", numeric=False), *(column.column for column in columns)),
        rows,
        dataset.notes,
    )
