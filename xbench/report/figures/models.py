"""Figures that compare runs, a panel per dataset: intervals, gaps, and curves over thresholds and area."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from xbench.report.figures.style import (
    EDGE,
    FAINT,
    ZONE,
    draw_interval,
    draw_mark,
    label_left,
    look_of,
    name_curves,
    panels,
    wrapped,
)
from xbench.report.schema import NUMBERS, Analysis, DatasetAnalysis, Estimate, RunAnalysis, in_order, number_of
from xbench.report.series import Series

INTERVALS = {
    "pointing_game": "pointing game \u00d7 100, mean over findings",
    "dice_cross_fitted": "Dice \u00d7 100, cross-fitted threshold",
    "auroc": "AUROC \u00d7 100",
}
"""Numbers that are shown with their intervals, as the axes of their figures call them."""

_ROW = 0.24
"""Height of a row in inches."""


def intervals(analysis: Analysis, key: str, look: Mapping[str, Series]) -> Figure:
    """Draw a row per run with its interval between floor and ceiling."""
    figure, axes, rows = _row_per_run(analysis, INTERVALS[key], look)
    narrow = len(axes) > 3
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        _draw_floor(axis, dataset, key)
        if not narrow:
            _draw_ceiling(axis, dataset, key)
        for entry in dataset.runs:
            score, row, series = number_of(entry, key), rows[entry.run.label], look[entry.run.label]
            if score.value is None:
                _write(axis, row, "\u2013")
                continue
            draw_interval(axis, score, row, series.colour)
            draw_mark(axis, 100 * score.value, row, series)
            ends = (score.low, score.high)
            between = "\u2013".join(_whole(end) for end in ends if end is not None) if None not in ends else ""
            _write(axis, row, _whole(score.value), "" if narrow else between)
    return figure


def dice_gap(analysis: Analysis, look: Mapping[str, Series]) -> Figure:
    """Draw a row per run from Dice at 0.5 to Dice at the best threshold, with what lies between as a number."""
    figure, axes, rows = _row_per_run(analysis, "Dice \u00d7 100", look)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        for entry in dataset.runs:
            fixed, fitted, best = (entry.macro[key].value for key in ("dice_fixed", "dice_cross_fitted", "dice_best"))
            row, series = rows[entry.run.label], look[entry.run.label]
            if fixed is None or best is None:
                _write(axis, row, "\u2013")
                continue
            axis.plot([100 * fixed, 100 * best], [row, row], color=series.colour, clip_on=False)
            dot: dict[str, Any] = {"color": series.colour, "markersize": 4.5, "clip_on": False, "zorder": 3}
            axis.plot(100 * fixed, row, "o", markerfacecolor="white", **dot)
            axis.plot(100 * best, row, "o", **dot)
            if fitted is not None:
                axis.plot(100 * fitted, row, "|", **{**dot, "color": "black", "markersize": 8})
            _write(axis, row, f"{100 * (best - fixed):.1f}")
        axis.text(1.04, 1.0, "gap", transform=axis.transAxes, va="bottom", color=FAINT)
    figure.supxlabel("Dice \u00d7 100:  \u25cb at 0.5   | cross-fitted   \u25cf best", fontsize="medium")
    return figure


def _row_per_run(
    analysis: Analysis, quantity: str, look: Mapping[str, Series]
) -> tuple[Figure, list[Axes], dict[str, int]]:
    """Make panels with a row per run, on an axis from 0 to 100."""
    labels = list(in_order(analysis.runs))
    several = len(analysis.datasets) > 1
    names = [wrapped(look[label].name, 19 if several else 16) for label in labels]
    lines = max(name.count("\n") + 1 for name in names)
    # Longer names take more than a row of one line has.
    height = max(_ROW, 0.04 + 0.13 * lines) * len(labels) + (0.75 if several else 0.5)
    figure, axes, _ = panels(len(analysis.datasets), height, sharex=True, sharey=True)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        if several:
            axis.set_title(wrapped(analysis.heading(dataset), 20), pad=15, linespacing=1.05)
        axis.set(xlim=(0, 100), xticks=[0, 50, 100] if several else [0, 25, 50, 75, 100])
        axis.set_ylim(len(labels) - 0.5, -0.5)
        axis.set_yticks(range(len(labels)), names)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
        for row in set(range(len(labels))) - {labels.index(entry.run.label) for entry in dataset.runs}:
            axis.text(50, row, "not run", ha="center", va="center", color=FAINT)
    figure.supxlabel(quantity, fontsize="medium")
    return figure, axes, {label: row for row, label in enumerate(labels)}


def _write(axis: Axes, row: int, value: str, more: str = "") -> None:
    """Write a number at the right edge of a row, and behind it what belongs to it."""
    place = axis.get_yaxis_transform()
    axis.annotate(value, (1.0, row), (22, 0), place, "offset points", ha="right", va="center", weight="bold")
    if more:
        axis.annotate(more, (1.0, row), (27, 0), place, "offset points", va="center", color=FAINT)


def _draw_floor(axis: Axes, dataset: DatasetAnalysis, key: str) -> None:
    """Draw the ground up to the best floor, and a dotted line at what a random map gets."""
    floors = {entry.title: number_of(entry, key).value for entry in dataset.references if entry.kind == "floor"}
    known = {title: value for title, value in floors.items() if value is not None}
    if not known:
        return
    best = max(known.values())
    axis.axvspan(0, 100 * best, **ZONE)
    axis.axvline(100 * best, **EDGE)
    random = known.get("Random")
    if random is not None and best - random > 0.01:
        axis.axvline(100 * random, **{**EDGE, "linestyle": ":"})
    axis.text(0, 1.0, f"floor {_whole(best)}", transform=axis.get_xaxis_transform(), va="bottom", color=FAINT)


def _draw_ceiling(axis: Axes, dataset: DatasetAnalysis, key: str) -> None:
    """Name the end of the axis, or where readers agree with each other."""
    readers = _reference(dataset, "Reader agreement", key)
    said = "perfect 100"
    if readers is not None:
        axis.axvline(100 * readers, **{**EDGE, "linestyle": (0, (5, 1.5))})
        said = f"two readers {_whole(readers)}"
    axis.text(100, 1.0, said, transform=axis.get_xaxis_transform(), ha="right", va="bottom", color=FAINT)


def _whole(share: float) -> str:
    """Write a share in per cent, rounded half up."""
    return str(int(100 * share + 0.5))


def _reference(dataset: DatasetAnalysis, title: str, key: str) -> float | None:
    return next((number_of(entry, key).value for entry in dataset.references if entry.title == title), None)


def dice_over_thresholds(analysis: Analysis, look: Mapping[str, Series]) -> Figure | None:
    """Draw a curve per run over the ground that the whole image's Dice reaches; None without a curve."""
    drawn = [
        replace(dataset, runs=runs)
        for dataset in analysis.datasets
        if (runs := tuple(entry for entry in dataset.runs if entry.dice_curve))
    ]
    if not drawn:
        return None
    analysis = replace(analysis, datasets=tuple(drawn))
    figure, axes, key = _curve_panels(analysis)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        for entry in _last_first(dataset):
            thresholds = entry.run.results.grounding.thresholds
            marked = [place for place, at in enumerate(thresholds) if round(at, 6) in (0.1, 0.3, 0.5, 0.7, 0.9)]
            _band(axis, thresholds, entry.dice_curve, look[entry.run.label], marked, len(dataset.runs))
        floor = _reference(dataset, "Whole image", "dice_fixed")
        if floor is not None:
            axis.axhspan(0, 100 * floor, **ZONE)
            axis.plot([0, 1], [100 * floor] * 2, **EDGE)
        axis.set(xlim=(0, 1), xticks=[0, 0.5, 1], xlabel="threshold")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        label_left(axis, "Dice \u00d7 100")
    curves = {entry.run.label: entry.dice_curve for entry in analysis.runs}
    heights = [(max(_values(curves[label]), default=0.0), series) for label, series in look.items() if label in curves]
    name_curves(figure, axes, key, heights, "whole image")
    return figure


def against_area(analysis: Analysis, key: str, look: Mapping[str, Series]) -> Figure | None:
    """Draw a curve per run over the area of regions, over the ground of the whole image or of a random point.

    None without two sizes to compare.
    """
    sized = tuple(of for of in analysis.datasets if any(len(entry.areas) > 1 for entry in of.runs))
    if not sized:
        return None
    points = key == "pointing_game"
    figure, axes, names = _curve_panels(replace(analysis, datasets=sized), sharex=True)
    for axis, dataset in zip(axes, sized, strict=True):
        floor: dict[float, float] = {}
        for entry in _last_first(dataset):
            # On a logarithmic axis; areas are never zero.
            middles = [100 * float((part.low * part.high) ** 0.5) for part in entry.areas]
            scores = [part.scores.get(key, Estimate(None)) for part in entry.areas]
            _band(axis, middles, scores, look[entry.run.label], range(len(middles)), len(dataset.runs))
            # A random point lies in a region with a chance of the region's area.
            whole = [100 * part.whole_image for part in entry.areas]
            floor.update(zip(middles, middles if points else whole, strict=True))
        places = sorted(floor)
        axis.fill_between(places, [floor[area] for area in places], **ZONE)
        axis.plot(places, [floor[area] for area in places], **EDGE)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("region, % of the film")
        label_left(axis, "pointing game" if points else f"{NUMBERS[key].title} \u00d7 100")
    last = {
        entry.run.label: next(iter(_values([part.scores.get(key, Estimate(None)) for part in entry.areas][::-1])), 0.0)
        for dataset in sized
        for entry in dataset.runs
    }
    heights = [(last[label], series) for label, series in look.items() if label in last]
    name_curves(figure, axes, names, heights, "random point" if points else "whole image")
    return figure


def _curve_panels(analysis: Analysis, **options: Any) -> tuple[Figure, list[Axes], Axes | None]:
    several = len(analysis.datasets) > 1
    figure, axes, key = panels(len(analysis.datasets), 1.9 if several else 2.2, key=True, sharey=True, **options)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        if several:
            axis.set_title(wrapped(analysis.heading(dataset), 22))
        axis.set(ylim=(0, 100), yticks=[0, 50, 100])
    return figure, axes, key


def _last_first(dataset: DatasetAnalysis) -> list[RunAnalysis]:
    """Return runs against the order of the tables, so that the first ones are drawn on top."""
    return [*reversed(in_order(dataset.runs).values())]


def _values(estimates: Sequence[Estimate]) -> list[float]:
    return [estimate.value for estimate in estimates if estimate.value is not None]


def _band(
    axis: Axes, x: Sequence[float], estimates: Sequence[Estimate], series: Series, marked: Sequence[int], curves: int
) -> None:
    # Where a number does not exist, None becomes NaN.
    ends = [(estimate.value, estimate.low, estimate.high) for estimate in estimates]
    values, low, high = 100 * np.array(ends, float).reshape(-1, 3).T
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return
    at, marks = np.array(x)[known], np.flatnonzero(np.isin(known, marked)).tolist()
    axis.plot(at, values[known], **look_of(series), markevery=marks)
    if not np.isnan([low[known], high[known]]).any():
        # The more bands lie on each other, the fainter.
        alpha = min(0.15, 0.5 / curves)
        axis.fill_between(at, low[known], high[known], color=series.colour, alpha=alpha, linewidth=0)
