"""Tables that look closer at each model: honest thresholds, findings, quadrants, size and position of lesions."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.report.schema import NEAR, NUMBERS, Analysis, DatasetAnalysis, RunAnalysis, floor_of
from xbench.report.tables.cells import (
    INTERVALS,
    Scores,
    count,
    heading,
    labels_in_order,
    marks,
    notes_of,
    number,
    rows_of_models,
    scores_of,
    table_of_dataset,
    words,
)
from xbench.report.tables.table import MISSING, Cell, Column, Row, Table, percentage

__all__ = [
    "best_and_worst_findings",
    "by_area",
    "by_position",
    "grounding_honest",
    "quadrants",
]

_HONEST = {
    "dice_cross_fitted": "Cross-fitted",
    "dice_fixed": "At 0.5",
    "dice_best": "Best",
    "dice_optimism": "Optimism",
    "dice_gap": "Calibration gap",
    "iou_cross_fitted": "Cross-fitted",
    "iou_fixed": "At 0.5",
    "iou_best": "Best",
}
POSITIONS = tuple(
    tuple(f"{vertical} {horizontal}" for horizontal in ("left", "centre", "right"))
    for vertical in ("upper", "middle", "lower")
)
"""Names of the nine cells by row and column: sides of the image, not of the patient."""


def grounding_honest(analysis: Analysis) -> Table:
    """Thresholds chosen on other images, and the fixed one, beside the one chosen on the images that are scored."""
    rows: list[Row] = []
    for dataset in analysis.datasets:
        title = words(heading(dataset, analysis))
        columns = [_honest(dataset, key) for key in _HONEST]
        for row in rows_of_models(labels_in_order(dataset.runs), columns, dataset.references):
            rows.append(Row((title, *row.cells), row.kind))
    return Table(
        "grounding_honest",
        "Dice and IoU with honest thresholds",
        "Means over findings, in per cent. Best: at the threshold that is best on the same images. Cross-fitted: "
        f"every image at the threshold that is best on other images ({analysis.folds} folds, whole patients). "
        "Optimism: Dice, best less cross-fitted. Calibration gap: Dice, best less at 0.5. Marks are by dataset."
        f"{marks(rows)} {INTERVALS}",
        (
            Column("Dataset", numeric=False),
            Column("Model", numeric=False),
            *(_honest_column(key) for key in _HONEST),
        ),
        tuple(rows),
        notes_of(analysis),
    )


def _honest_column(key: str) -> Column:
    return Column(_HONEST[key], "Dice" if key.startswith("dice") else "IoU")


def _honest(dataset: DatasetAnalysis, key: str) -> Scores:
    # Neither a small gap nor a small optimism is a merit: a useless map has both.
    better = None if key in ("dice_optimism", "dice_gap") else True
    return scores_of(dataset, key, _honest_column(key), more_is_better=better)


def best_and_worst_findings(analysis: Analysis) -> Table | None:
    """Three findings with the highest and three with the lowest pointing game, of each model on each dataset."""
    numbers = ("pointing_game", "dice_cross_fitted", "auroc")
    rows = []
    for dataset in analysis.datasets:
        for entry in _in_order(dataset.runs):
            for place, finding in best_and_worst(entry):
                values = entry.findings[finding]
                scored = entry.run.results.grounding.per_class[finding].count
                cells = [number(values.get(key)) for key in numbers]
                cells.insert(1, number(floor_of(dataset, finding, "pointing_game")))
                names = [words(text) for text in (heading(dataset, analysis), entry.run.label, place, finding)]
                rows.append(Row((*names, count(scored), *cells)))
    if not rows:
        return None
    return Table(
        "best_and_worst_findings",
        "Best and worst findings",
        "Of each model on each dataset the three findings with the highest and the three with the lowest pointing "
        "game, in per cent; fewer where a dataset has fewer than six. Floor: the highest pointing game on this finding "
        f"of maps that know nothing of the image. {INTERVALS}",
        (
            *(Column(title, numeric=False) for title in ("Dataset", "Model", "Place", "Finding")),
            Column("Images"),
            *(Column(title) for title in ("Pointing game", "Floor", *(NUMBERS[key].title for key in numbers[1:]))),
        ),
        tuple(rows),
    )


def best_and_worst(entry: RunAnalysis) -> list[tuple[str, str]]:
    """Return up to three best and three worst findings by pointing game, each as place and name."""
    scores = {
        finding: numbers["pointing_game"].value
        for finding, numbers in entry.findings.items()
        if "pointing_game" in numbers
    }
    known = {finding: score for finding, score in scores.items() if score is not None}
    ranked = sorted(known, key=lambda finding: -known[finding])
    size = min(3, len(ranked) // 2)
    best = [(f"best {place}", finding) for place, finding in enumerate(ranked[:size], 1)]
    worst = [(f"worst {place}", finding) for place, finding in enumerate(ranked[::-1][:size], 1)]
    return best + worst


def quadrants(analysis: Analysis, dataset: DatasetAnalysis) -> Table | None:
    """Recognised or not, grounded or not."""
    rows = []
    for entry in _in_order(dataset.runs):
        for finding, shares in entry.quadrants.items():
            values = (shares.both, shares.near_miss, shares.elsewhere, shares.grounded_only, shares.neither)
            # A probability, not a score: as people set it, not in per cent.
            threshold = f"{shares.threshold:.4f}"
            cells = [Cell(percentage(value), value) if shares.count else Cell(MISSING) for value in values]
            names = (words(entry.run.label), words(finding), count(shares.count))
            rows.append(Row((*names, Cell(threshold, shares.threshold), *cells)))
    return table_of_dataset(
        analysis,
        dataset,
        "quadrants",
        "Recognised and grounded on",
        "Of the images with the finding and its region the share, in per cent, by whether the model recognises the "
        "finding (its probability reaches the threshold with the largest sum of sensitivity and specificity) and "
        "whether it grounds it (the maximum of the map lies in the region). What is recognised only is a near miss if "
        f"the maximum lies at most {100 * NEAR:g} % of the film's width from the region; if it lies elsewhere, the "
        "model is right for another reason than the lesion.",
        ("Model", "Finding"),
        ("Images", "Threshold", "Both", "Recognised, near miss", "Recognised, elsewhere", "Grounded only", "Neither"),
        rows,
    )


def by_area(analysis: Analysis, dataset: DatasetAnalysis) -> Table | None:
    """Grounding against the size of the region."""
    keys = ("pointing_game", "dice_fixed", "dice_cross_fitted")
    rows = []
    for entry in _in_order(dataset.runs):
        for part in entry.areas:
            edges = [Cell(percentage(edge), edge) for edge in (part.low, part.high)]
            scores = [number(part.scores.get(key)) for key in keys]
            whole = Cell(percentage(part.whole_image), part.whole_image)
            rows.append(Row((words(entry.run.label), *edges, count(part.count), *scores, whole)))
    return table_of_dataset(
        analysis,
        dataset,
        "by_area",
        "Grounding against lesion size on",
        "Scored pairs of all findings by decile of the area of their region, as a share of the image; mean scores in "
        f"per cent, and what marking the whole image gets on the same pairs. {INTERVALS}",
        ("Model",),
        ("Area from", "Area to", "Pairs", *(NUMBERS[key].title for key in keys), "Dice of the whole image"),
        rows,
    )


def by_position(analysis: Analysis, dataset: DatasetAnalysis) -> Table | None:
    """Grounding against the place of the region."""
    keys = ("pointing_game", "dice_fixed")
    rows = []
    for entry in _in_order(dataset.runs):
        for part in entry.positions:
            scores = [number(part.scores.get(key)) for key in keys]
            peaks = Cell(percentage(part.peaks), part.peaks)
            place = words(POSITIONS[part.row][part.column])
            rows.append(Row((words(entry.run.label), place, count(part.count), *scores, peaks)))
    return table_of_dataset(
        analysis,
        dataset,
        "by_position",
        "Grounding against position on",
        "Scored pairs of all findings by the ninth of the image that the centre of mass of their region lies in; left "
        "and right are sides of the image. Mean scores in per cent. Peaks: share of all maps that are highest there, "
        f"wherever the region lies. {INTERVALS}",
        ("Model", "Position"),
        ("Pairs", *(NUMBERS[key].title for key in keys), "Peaks"),
        rows,
    )


def _in_order(runs: Sequence[RunAnalysis]) -> list[RunAnalysis]:
    places = labels_in_order(runs)
    return sorted(runs, key=lambda entry: places.index(entry.run.label))
