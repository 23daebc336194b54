"""Draw and write the figures of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from xbench.report import charts
from xbench.report.cases import choose_cases
from xbench.report.colors import series_of
from xbench.report.figures.details import overlays, positions, quadrants
from xbench.report.figures.models import INTERVALS, auroc_against_pointing_game, curves, dice_gap, intervals
from xbench.report.figures.style import drawing, save
from xbench.report.schema import NEAR, NUMBERS, WORDS, Analysis, Drawn


def write_figures(analysis: Analysis, folder: Path, cases: int = 6) -> Iterator[Drawn]:
    """Write every figure as PDF, SVG and PNG, and yield its description.

    Overlays show up to `cases` cases of each dataset, six at most. Datasets with references only are left out.
    """
    # Of either scope there is a line per dataset, in their order.
    places = {"models": iter(analysis.datasets), "findings": iter(analysis.datasets)}
    lines = tuple(line for line in analysis.correlations if line.dataset is None or next(places[line.scope]).runs)
    datasets = tuple(entry for entry in analysis.datasets if entry.runs)
    with drawing():
        for drawn, figure in _figures(replace(analysis, datasets=datasets, correlations=lines), min(cases, 6)):
            if figure is not None:
                save(figure, folder / drawn.name)
                yield drawn


def _figures(analysis: Analysis, cases: int) -> Iterator[tuple[Drawn, Figure | None]]:
    looks = series_of(analysis.runs)
    both = "AUROC against pointing game, both from 0 to 100."
    line = "Dashed: least squares; gray: AUROC below 50, worse than a coin flip."
    caption = f"{both} A point is a model with its own settings; over all datasets it is the mean over them. {line}"
    drawn = Drawn("auroc_pointing_game_models", "Recognition and grounding of models", caption)
    yield drawn, auroc_against_pointing_game(analysis, "models", looks)
    means = " A model's mean is large." if len({entry.run.model for entry in analysis.runs}) > 1 else ""
    caption = f"{both} A point is a finding, of a model with its own settings.{means} {line}"
    drawn = Drawn("auroc_pointing_game_findings", "Recognition and grounding per finding", caption)
    yield drawn, auroc_against_pointing_game(analysis, "findings", looks)
    numbers = {**NUMBERS, **WORDS}
    dotted = {"pointing_game": "; dotted: a random point", "dice_cross_fitted": "; dotted: the whole image"}
    for key in INTERVALS:
        caption = (
            f"{numbers[key].meaning} Means over findings with 95% intervals, times 100. Gray: the best score of any "
            f"rule that ignores the image{dotted.get(key, '')}."
        )
        drawn = Drawn(f"intervals_{key}", f"{numbers[key].title} with intervals", caption)
        yield drawn, intervals(analysis, key, looks)
    caption = (
        "Dice at the fixed threshold 0.5 (open), at cross-fitted thresholds (filled), and at the threshold that is "
        "best on the same images (bar); numbers: best minus at 0.5. Means over findings, times 100."
    )
    yield Drawn("dice_gap", "What the fixed threshold costs", caption), dice_gap(analysis, looks)
    caption = (
        "Means over findings with 95% bands, times 100; marks at 0.1, 0.3, 0.5, 0.7 and 0.9. Gray: marking the whole "
        "image."
    )
    dice = curves(charts.curves(analysis), looks, "Dice \u00d7 100", "whole image")
    yield Drawn("dice_curve", "Dice over thresholds", caption), dice
    grounds = {"pointing_game": ("what a random point gets", "pointing game", "random point")}
    grounds["dice_fixed"] = "marking the whole image", f"{NUMBERS['dice_fixed'].title} \u00d7 100", "whole image"
    for key, (floor, quantity, ground) in grounds.items():
        caption = (
            "In up to ten groups of about equal size, sorted by region area; all findings together, times 100, "
            f"with 95% bands. Gray: {floor}."
        )
        drawn = Drawn(f"area_{key}", f"{NUMBERS[key].title} against lesion size", caption)
        yield drawn, curves(charts.sizes(analysis, key, by_area=True), looks, quantity, ground, by_area=True)
    for dataset in analysis.datasets:
        where, ending = analysis.heading(dataset), analysis.slug(dataset)
        caption = (
            "Radiographs with the annotated region outlined, and over them the map or boxes of each model; +: the peak "
            "of the map. Above it: hit (in the region; half of the box area), just outside (the peak, or the center "
            f"of the boxes, by at most {100 * NEAR:g}% of the image's width) or outside; Dice at 0.5, times 100. "
            "Cases were chosen by scores alone, for the reason at their left, which holds for one model at least. Each "
            "radiograph is drawn square. Of more than seven models, those with the highest pointing game are shown."
        )
        drawn = Drawn(f"overlays_{ending}", f"Cases side by side on {where}", caption)
        yield drawn, overlays(dataset, choose_cases(dataset.runs, cases))
        caption = (
            "Percentage of images with the finding and its region (n in parentheses) by whether the model recognizes "
            "the finding (its probability reaches the threshold that maximizes sensitivity plus specificity) "
            f"and whether it points at the lesion, just outside (at most {100 * NEAR:g}% of the image's width) or "
            "elsewhere. Numbers: on the lesion."
        )
        yield Drawn(f"quadrants_{ending}", f"Recognized and grounded on {where}", caption), quadrants(dataset)
        caption = (
            "By the cell of a 3 x 3 grid that holds the region's center of mass, all findings together: pointing game "
            "and Dice, times 100; on the right, the percentage of maps that peak in each cell."
        )
        yield Drawn(f"positions_{ending}", f"Grounding against position on {where}", caption), positions(dataset)
