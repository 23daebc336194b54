"""The paper's numbers beside ours, with the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from xbench.findings.names import FINDINGS
from xbench.findings.published import inconsistencies, paper
from xbench.report.names import model_title
from xbench.report.schema import Analysis, DatasetAnalysis, Estimate, RunAnalysis, in_order
from xbench.report.tables.table import INTERVALS, Cell, Column, Row, Table, cells_of, decimal, number, row, table_of

_Beside = tuple[Column, Mapping[str, Cell], Mapping[str, float | None]]
"""A column of our numbers by label, with the published ones by model."""
_LAYOUT = "For each model: our number, the published number, and the difference (ours minus published), in percent."


def published_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield a table for each of the paper's that has a model, dataset and split in common with the report."""
    datasets = [dataset for dataset in analysis.datasets if dataset.split == paper()["splits"].get(dataset.dataset)]
    runs, r_squared = [entry for dataset in datasets for entry in dataset.runs], paper()["r_squared"]
    yield _grounding(analysis, datasets, runs)
    for dataset in datasets:
        yield _pointing_game(analysis, dataset)
    yield _dice_gap(runs)
    rows = []
    for line in analysis.correlations:
        if line.scope == "models" and line.dataset is None and _published_models(runs):
            numbers = line.r_squared, r_squared, _less(line.r_squared, r_squared)
            rows.append(row("R\u00b2", len(line.points), *(decimal(value, 2) for value in numbers)))
    yield table_of(
        "published_correlation",
        "Correlation of recognition and grounding, beside the paper's",
        "Coefficient of determination between AUROC and pointing game over models. Ours: each model with its own "
        "prompts, at its means over the datasets of this report.",
        ["Quantity"],
        ["Points", "Ours", "Published", "Difference"],
        rows,
    )


def _grounding(analysis: Analysis, datasets: Sequence[DatasetAnalysis], runs: Sequence[RunAnalysis]) -> Table:
    """Table 1."""
    columns = []
    for dataset in datasets:
        published = paper()["grounding"][dataset.dataset]
        for key, title in (("pointing_game", "Pointing game"), ("dice_best", "Dice, best"), ("iou_best", "IoU, best")):
            column, ours = Column(title, analysis.heading(dataset)), cells_of(dataset, key, ranked=False)
            columns.append((column, ours, {model: of_model[key] for model, of_model in published.items()}))
    protocol = paper()["protocol"]
    notes = dict.fromkeys(text for dataset in datasets for text in inconsistencies(dataset.dataset, "grounding"))
    return table_of(
        "published_grounding",
        "Grounding, beside the paper's Table 1",
        f"{_LAYOUT} Means over findings; Dice and IoU at the best of {protocol['thresholds']} thresholds, chosen on "
        f"the images that are scored. The paper: inputs of {protocol['image_size']} x {protocol['image_size']} "
        f"pixels. {INTERVALS}",
        ["Model"],
        [column for column, *_ in columns],
        _rows(runs, columns),
        [*notes, *(_images(analysis, dataset) for dataset in datasets)],
    )


def _pointing_game(analysis: Analysis, dataset: DatasetAnalysis) -> Table:
    """Tables 2 to 5."""
    published = paper()["pointing_game"].get(dataset.dataset, {})
    columns = []
    for finding in (None, *dataset.findings):
        column, ours = Column(finding or "Mean"), cells_of(dataset, "pointing_game", finding, ranked=False)
        columns.append((column, ours, {model: of_model.get(finding) for model, of_model in published.items()}))
    known = [model for model in published if model in _published_models(dataset.runs).values()]
    cells = {model: fmean(published[model][finding] for finding in FINDINGS[dataset.dataset]) for model in known}
    wrong = [
        f"{model_title(model)} {100 * published[model][None]:.2f} (cells {100 * cells[model]:.2f})"
        for model in known
        if abs(published[model][None] - cells[model]) > 1.01e-4
    ]
    rows = _rows(dataset.runs, columns)
    return table_of(
        f"published_pointing_game_{analysis.slug(dataset)}",
        f"Pointing game per finding on {analysis.heading(dataset)}, beside the paper's",
        f"{_LAYOUT} Last: the images behind the numbers, which the published digits imply. {INTERVALS}",
        ["Model"],
        [column for column, *_ in columns],
        [*rows, *_counts(dataset)] if rows else [],
        [
            *([f"Printed means that are not the mean of the printed cells: {', '.join(wrong)}."] if wrong else []),
            *inconsistencies(dataset.dataset, "pointing_game"),
            _images(analysis, dataset),
        ],
    )


def _counts(dataset: DatasetAnalysis) -> Iterator[Row]:
    of_runs = [entry.run.results.grounding.per_class for entry in dataset.runs]
    for scored in sorted({tuple(scores[name].count for name in dataset.findings) for scores in of_runs}):
        yield row("Images scored, ours", None, *scored, kind="count")
    for entry in paper()["positives"][dataset.dataset]:
        implied = map(entry["counts"].get, dataset.findings)
        yield row(f"Positive images, {entry['by']}", None, *implied, kind="count")


def _images(analysis: Analysis, dataset: DatasetAnalysis) -> str:
    return f"{analysis.heading(dataset)}: published are {paper()['remarks'][dataset.dataset]}."


def _dice_gap(runs: Sequence[RunAnalysis]) -> Table:
    """Section 4.0.3."""
    rows = []
    for label, model in _published_models(runs).items():
        gaps = [entry.macro["dice_gap"].value for entry in runs if entry.run.label == label]
        known = [gap for gap in gaps if gap is not None]
        ours, published = fmean(known) if known else None, paper()["dice_gap"][model]
        rows.append(row(label, len(known), ours, published, _signed(ours, published)))
    return table_of(
        "published_dice_gap",
        "Calibration gap, beside the paper's",
        "Dice at the best threshold minus Dice at 0.5, averaged over datasets, in percentage points. The paper "
        "averages over seven datasets, we over those of this report.",
        ["Model"],
        ["Datasets", "Ours", "Published", "Difference"],
        rows,
    )


def _less(ours: float | None, published: float | None) -> float | None:
    return None if ours is None or published is None else ours - published


def _signed(ours: float | None, published: float | None) -> Cell:
    return number(Estimate(_less(ours, published)), signed=True)


def _rows(runs: Sequence[RunAnalysis], columns: Sequence[_Beside]) -> list[Row]:
    rows = []
    for label, model in _published_models(runs).items():
        ours = [cells.get(label, number(None)) for _, cells, _ in columns]
        published = [numbers.get(model) for *_, numbers in columns]
        differences = [_signed(cell.value, value) for cell, value in zip(ours, published, strict=True)]
        if any(cell.value is not None for cell in differences):
            rows += [
                row(label, *ours),
                row(f"{label}, published", *published, kind="published"),
                row(f"{label}, difference", *differences, kind="difference"),
            ]
    return rows


def _published_models(runs: Sequence[RunAnalysis]) -> dict[str, str]:
    return {label: entry.run.model for label, entry in in_order(runs).items() if entry.run.model in paper()["dice_gap"]}
