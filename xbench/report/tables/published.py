"""The paper's numbers beside ours, with the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from xbench.protocol.published import (
    PublishedPointingGame,
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
from xbench.report.schema import Analysis, DatasetAnalysis, Estimate, RunAnalysis
from xbench.report.tables.cells import INTERVALS, heading, labels_in_order, number, row, slug, table_of
from xbench.report.tables.table import MISSING, Cell, Column, Row, Table

__all__ = ["published_tables"]

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
    columns = [
        (Column(title, heading(dataset, analysis)), dataset, key)
        for dataset in datasets
        for key, title in numbers.items()
    ]
    published = {dataset.dataset: published_grounding(dataset.dataset) for dataset in datasets}

    def theirs(model: str) -> list[float | None]:
        return [getattr(published[dataset.dataset].get(model), key, None) for _, dataset, key in columns]

    def ours(label: str) -> list[Estimate | None]:
        by_label = [{entry.run.label: entry.macro for entry in dataset.runs} for _, dataset, _ in columns]
        return [macro.get(label, {}).get(key) for macro, (_, _, key) in zip(by_label, columns, strict=True)]

    rows = _rows([entry for dataset in datasets for entry in dataset.runs], ours, theirs)
    protocol = published_protocol()
    notes = list(dict.fromkeys(text for dataset in datasets for text in inconsistencies(dataset.dataset, "grounding")))
    notes += [f"{heading(dataset, analysis)}: {_images(dataset)}" for dataset in datasets]
    return table_of(
        "published_grounding",
        "Grounding, beside the paper's Table 1",
        f"{_LAYOUT} Means over findings; Dice and IoU at the best of {protocol.thresholds} thresholds, chosen on "
        f"the images that are scored. The paper: inputs of {protocol.image_size} x {protocol.image_size} "
        f"pixels. {INTERVALS}",
        ["Model"],
        [column for column, _, _ in columns],
        rows,
        notes,
    )


def _pointing_game(analysis: Analysis, dataset: DatasetAnalysis) -> Table:
    """Tables 2 to 5."""
    published = published_pointing_game(dataset.dataset)
    entries = {entry.run.label: entry for entry in dataset.runs}

    def theirs(model: str) -> list[float | None]:
        row = published.get(model)
        if row is None:
            return [None] * (1 + len(dataset.findings))
        return [row.mean, *(row.findings.get(finding) for finding in dataset.findings)]

    def ours(label: str) -> list[Estimate | None]:
        entry = entries[label]
        findings = (entry.findings.get(finding, {}).get("pointing_game") for finding in dataset.findings)
        return [entry.macro.get("pointing_game"), *findings]

    rows = _rows(list(entries.values()), ours, theirs)
    return table_of(
        f"published_pointing_game_{slug(dataset, analysis)}",
        f"Pointing game per finding on {heading(dataset, analysis)}, beside the paper's",
        f"{_LAYOUT} Last: the images behind the numbers, which the published digits imply. {INTERVALS}",
        ["Model"],
        ["Mean", *dataset.findings],
        [*rows, *_counts(dataset)] if rows else [],
        [
            *_wrong_means({model: published[model] for model in _models(dataset.runs) if model in published}),
            *inconsistencies(dataset.dataset, "pointing_game"),
            f"{heading(dataset, analysis)}: {_images(dataset)}",
        ],
    )


def _wrong_means(published: Mapping[str, PublishedPointingGame]) -> list[str]:
    wrong = [
        f"{model_title(model)} {100 * row.mean:.2f} (cells {100 * row.mean_of_findings:.2f})"
        for model, row in published.items()
        if abs(row.mean - row.mean_of_findings) > 1.01e-4
    ]
    return [f"Printed means that are not the mean of the printed cells: {', '.join(wrong)}."] if wrong else []


def _counts(dataset: DatasetAnalysis) -> Iterator[Row]:
    """How many images stand behind each finding's number: ours, and what the published digits imply."""
    numbers = {
        tuple(entry.run.results.grounding.per_class[finding].count for finding in dataset.findings)
        for entry in dataset.runs
    }
    for scored in sorted(numbers):
        yield row("Images scored, ours", None, *scored, kind="count")
    for counts in published_positives(dataset.dataset):
        implied = map(counts.counts.get, dataset.findings)
        yield row(f"Positive images, {counts.by}", None, *implied, kind="count")


def _images(dataset: DatasetAnalysis) -> str:
    return f"published are {remark(dataset.dataset)}."


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
            cells = [Cell(MISSING if value is None else f"{value:.2f}", value) for value in values]
            rows.append(row("R\u00b2", len(line.points), *cells))
    return table_of(
        "published_correlation",
        "Correlation of recognition and grounding, beside the paper's",
        "Coefficient of determination between AUROC and pointing game over models. Ours: each model with its own "
        "prompts at its means over the datasets of this report.",
        ["Quantity"],
        ["Points", "Ours", "Published", "Difference"],
        rows,
    )


def _rows(
    runs: Sequence[RunAnalysis],
    ours: Callable[[str], list[Estimate | None]],
    theirs: Callable[[str], list[float | None]],
) -> list[Row]:
    """Three rows for each model that the paper has: our numbers, the published ones, the differences."""
    rows = []
    for label, model in _published_models(runs).items():
        mine, printed = ours(label), theirs(model)
        if not any(a is not None and a.value is not None and b is not None for a, b in zip(mine, printed, strict=True)):
            continue
        differences = [
            Estimate(None if a is None or a.value is None or b is None else a.value - b)
            for a, b in zip(mine, printed, strict=True)
        ]
        rows += [
            row(label, *mine),
            row(f"{label}, published", *printed, kind="published"),
            row(f"{label}, difference", *(number(value, signed=True) for value in differences), kind="difference"),
        ]
    return rows


def _published_models(runs: Sequence[RunAnalysis]) -> dict[str, str]:
    """The models that the paper has, by label."""
    models = {entry.run.label: entry.run.model for entry in runs}
    return {label: models[label] for label in labels_in_order(runs) if models[label] in published_dice_gaps()}


def _models(runs: Sequence[RunAnalysis]) -> list[str]:
    return list(dict.fromkeys(_published_models(runs).values()))
