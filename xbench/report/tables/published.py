"""The paper's numbers beside ours, with the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from xbench.findings.published import (
    inconsistencies,
    published_dice_gaps,
    published_grounding,
    published_pointing_game,
    published_positives,
    published_protocol,
    published_r_squared,
    published_split,
    remark,
)
from xbench.report.names import model_title
from xbench.report.schema import Analysis, DatasetAnalysis, Estimate, RunAnalysis, in_order
from xbench.report.tables.table import INTERVALS, Column, Row, Scores, Table, decimal, number, row, scores_of, table_of

_LAYOUT = "Of each model our number, the published one, and the difference, ours less published, in per cent."


def published_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield a table for each of the paper's that has a model, dataset and split in common with the report."""
    known = [dataset for dataset in analysis.datasets if dataset.split == published_split(dataset.dataset)]
    yield _grounding(analysis, known)
    for dataset in known:
        yield _pointing_game(analysis, dataset)
    yield _dice_gap(known)
    yield _correlation(analysis, known)


def _grounding(analysis: Analysis, datasets: Sequence[DatasetAnalysis]) -> Table:
    """Table 1."""
    numbers = {"pointing_game": "Pointing game", "dice_best": "Dice, best", "iou_best": "IoU, best"}
    columns = []
    for dataset in datasets:
        published = published_grounding(dataset.dataset)
        for key, title in numbers.items():
            ours = scores_of(dataset, key, Column(title, analysis.heading(dataset)))
            columns.append((ours, {model: getattr(of_model, key) for model, of_model in published.items()}))
    protocol = published_protocol()
    notes = list(dict.fromkeys(text for dataset in datasets for text in inconsistencies(dataset.dataset, "grounding")))
    notes += [_images(analysis, dataset) for dataset in datasets]
    return table_of(
        "published_grounding",
        "Grounding, beside the paper's Table 1",
        f"{_LAYOUT} Means over findings; Dice and IoU at the best of {protocol.thresholds} thresholds, chosen on "
        f"the images that are scored. The paper: inputs of {protocol.image_size} x {protocol.image_size} "
        f"pixels. {INTERVALS}",
        ["Model"],
        [ours.column for ours, _ in columns],
        _rows([entry for dataset in datasets for entry in dataset.runs], columns),
        notes,
    )


def _pointing_game(analysis: Analysis, dataset: DatasetAnalysis) -> Table:
    """Tables 2 to 5."""
    published = published_pointing_game(dataset.dataset)
    known = {model: published[model] for model in _published_models(dataset.runs).values() if model in published}
    means: dict[str, float | None] = {model: of_model.mean for model, of_model in known.items()}
    columns = [(scores_of(dataset, "pointing_game", Column("Mean")), means)]
    for finding in dataset.findings:
        ours = scores_of(dataset, "pointing_game", Column(finding), finding)
        columns.append((ours, {model: of_model.findings.get(finding) for model, of_model in known.items()}))
    wrong = [
        f"{model_title(model)} {100 * row.mean:.2f} (cells {100 * row.mean_of_findings:.2f})"
        for model, row in known.items()
        if abs(row.mean - row.mean_of_findings) > 1.01e-4
    ]
    rows = _rows(dataset.runs, columns)
    return table_of(
        f"published_pointing_game_{analysis.slug(dataset)}",
        f"Pointing game per finding on {analysis.heading(dataset)}, beside the paper's",
        f"{_LAYOUT} Last: the images behind the numbers, which the published digits imply. {INTERVALS}",
        ["Model"],
        [ours.column for ours, _ in columns],
        [*rows, *_counts(dataset)] if rows else [],
        [
            *([f"Printed means that are not the mean of the printed cells: {', '.join(wrong)}."] if wrong else []),
            *inconsistencies(dataset.dataset, "pointing_game"),
            _images(analysis, dataset),
        ],
    )


def _counts(dataset: DatasetAnalysis) -> Iterator[Row]:
    """Yield how many images are behind the number of each finding: ours, and what the published digits imply."""
    numbers = {
        tuple(entry.run.results.grounding.per_class[finding].count for finding in dataset.findings)
        for entry in dataset.runs
    }
    for scored in sorted(numbers):
        yield row("Images scored, ours", None, *scored, kind="count")
    for counts in published_positives(dataset.dataset):
        implied = map(counts.counts.get, dataset.findings)
        yield row(f"Positive images, {counts.by}", None, *implied, kind="count")


def _images(analysis: Analysis, dataset: DatasetAnalysis) -> str:
    return f"{analysis.heading(dataset)}: published are {remark(dataset.dataset)}."


def _dice_gap(datasets: Sequence[DatasetAnalysis]) -> Table:
    """Section 4.0.3."""
    published = published_dice_gaps()
    runs = [entry for dataset in datasets for entry in dataset.runs]
    rows = []
    for label, model in _published_models(runs).items():
        gaps = [entry.macro["dice_gap"].value for entry in runs if entry.run.label == label]
        known = [gap for gap in gaps if gap is not None]
        ours = fmean(known) if known else None
        difference = None if ours is None else ours - published[model]
        rows.append(row(label, len(known), ours, published[model], number(Estimate(difference), signed=True)))
    return table_of(
        "published_dice_gap",
        "Calibration gap, beside the paper's",
        "Dice at the best threshold less Dice at 0.5, averaged over datasets, in percentage points. The paper averages "
        "over seven datasets, we over those of this report.",
        ["Model"],
        ["Datasets", "Ours", "Published", "Difference"],
        rows,
    )


def _correlation(analysis: Analysis, datasets: Sequence[DatasetAnalysis]) -> Table:
    """Figure 3."""
    runs = [entry for dataset in datasets for entry in dataset.runs]
    rows = []
    for line in analysis.correlations:
        if line.scope == "models" and line.dataset is None and _published_models(runs):
            ours, published = line.r_squared, published_r_squared()
            values = (ours, published, None if ours is None else ours - published)
            rows.append(row("R\u00b2", len(line.points), *(decimal(value, 2) for value in values)))
    return table_of(
        "published_correlation",
        "Correlation of recognition and grounding, beside the paper's",
        "Coefficient of determination between AUROC and pointing game over models. Ours: each model with its own "
        "prompts at its means over the datasets of this report.",
        ["Quantity"],
        ["Points", "Ours", "Published", "Difference"],
        rows,
    )


def _rows(runs: Sequence[RunAnalysis], columns: Sequence[tuple[Scores, Mapping[str, float | None]]]) -> list[Row]:
    """Return our numbers, the published ones and the differences of each model that the paper has.

    Columns are our scores with the published numbers by model.
    """
    rows = []
    for label, model in _published_models(runs).items():
        ours = [scores.models.get(label, Estimate(None)) for scores, _ in columns]
        published = [numbers.get(model) for _, numbers in columns]
        differences = [
            None if score.value is None or value is None else score.value - value
            for score, value in zip(ours, published, strict=True)
        ]
        if any(value is not None for value in differences):
            signed = [number(Estimate(value), signed=True) for value in differences]
            rows += [
                row(label, *ours),
                row(f"{label}, published", *published, kind="published"),
                row(f"{label}, difference", *signed, kind="difference"),
            ]
    return rows


def _published_models(runs: Sequence[RunAnalysis]) -> dict[str, str]:
    """Return the models that the paper has, by label."""
    return {
        label: entry.run.model for label, entry in in_order(runs).items() if entry.run.model in published_dice_gaps()
    }
