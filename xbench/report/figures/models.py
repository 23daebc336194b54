"""Figures that compare runs, a panel per dataset: intervals, gaps, and curves over thresholds and area."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from xbench.report import charts
from xbench.report.figures.style import (
    EDGE,
    FAINT,
    ZONE,
    draw_interval,
    draw_mark,
    label_left,
    look_of,
    name_curves,
    name_rows,
    panels,
    wrapped,
    write_number,
)
from xbench.report.schema import NUMBERS, Analysis, in_order
from xbench.report.series import Series

INTERVALS = {
    "pointing_game": "pointing game \u00d7 100, mean over findings",
    "dice_cross_fitted": "Dice \u00d7 100, cross-fitted threshold",
    "auroc": "AUROC \u00d7 100",
}
"""Numbers that are shown with their intervals, as the axes of their figures call them."""
_ROW = 0.24
"""Height of a row in inches."""
_MARKED = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Thresholds at which curves have their marks."""


def intervals(analysis: Analysis, number: str, look: Mapping[str, Series]) -> Figure:
    """Draw a row per run with its interval between floor and ceiling."""
    labels = list(in_order(analysis.runs))
    columns = [charts.of_dataset(analysis, dataset, labels, number) for dataset in analysis.datasets]
    figure, axes = _rows(analysis, columns, INTERVALS[number], look)
    narrow = len(axes) > 3
    for axis, column in zip(axes, columns, strict=True):
        _draw_ends(axis, column, narrow)
        for row, (entry, score) in enumerate((entry, entry.score) for entry in column.entries):
            if score.value is None:
                continue
            draw_interval(axis, score, row, look[entry.label].colour)
            draw_mark(axis, 100 * score.value, row, look[entry.label])
            ends = [_whole(end) for end in (score.low, score.high) if end is not None]
            write_number(axis, row, _whole(score.value), "\u2013".join(ends) if len(ends) == 2 and not narrow else "")
    return figure


def dice_gap(analysis: Analysis, look: Mapping[str, Series]) -> Figure | None:
    """Draw a row per run from Dice at 0.5 to Dice at the best threshold, with what lies between as a number."""
    columns = charts.gaps(analysis)
    if not columns:
        return None
    figure, axes = _rows(analysis, columns, "", look)
    for axis, column in zip(axes, columns, strict=True):
        for row, entry in enumerate(column.entries):
            if len(entry.marks) < 2:
                continue
            fixed, best = entry.marks["fixed"], entry.marks["best"]
            dot: dict[str, Any] = {"color": look[entry.label].colour, "clip_on": False}
            axis.plot([100 * fixed, 100 * best], [row, row], **dot)
            dot |= {"markersize": 4.5, "zorder": 3}
            axis.plot(100 * fixed, row, "o", markerfacecolor="white", **dot)
            axis.plot(100 * best, row, "o", **dot)
            if entry.score.value is not None:
                axis.plot(100 * entry.score.value, row, "|", **{**dot, "color": "black", "markersize": 8})
            write_number(axis, row, f"{100 * (best - fixed):.1f}")
        axis.text(1.04, 1.0, "gap", transform=axis.transAxes, va="bottom", color=FAINT)
    figure.supxlabel("Dice \u00d7 100:  \u25cb at 0.5   | cross-fitted   \u25cf best", fontsize="medium")
    return figure


def _rows(
    analysis: Analysis, columns: Sequence[charts.Column], quantity: str, look: Mapping[str, Series]
) -> tuple[Figure, list[Axes]]:
    """Make panels with a row per run, on an axis from 0 to 100."""
    several = len(analysis.datasets) > 1
    names = [wrapped(look[entry.label].name, 19 if several else 16) for entry in columns[0].entries]
    lines = max(name.count("\n") + 1 for name in names)
    # Longer names take more than a row of one line has.
    height = max(_ROW, 0.04 + 0.13 * lines) * len(names) + (0.75 if several else 0.5)
    figure, axes, _ = panels(len(columns), height, sharex=True, sharey=True)
    for axis, column in zip(axes, columns, strict=True):
        if several:
            axis.set_title(wrapped(column.title, 20), pad=15, linespacing=1.05)
        name_rows(axis, names, [0, 50, 100] if several else [0, 25, 50, 75, 100])
        for row, entry in enumerate(column.entries):
            if entry.score.value is None and entry.none == "not run":
                axis.text(50, row, entry.none, ha="center", va="center", color=FAINT)
            elif entry.score.value is None and len(entry.marks) < 2:
                write_number(axis, row, "\u2013")
    figure.supxlabel(quantity, fontsize="medium")
    return figure, axes


def _draw_ends(axis: Axes, column: charts.Column, narrow: bool) -> None:
    """Draw the ground up to the best floor, a dotted line at chance, and name floor and ceiling."""
    words: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "va": "bottom", "color": FAINT}
    if (floor := column.floor) is not None:
        axis.axvspan(0, 100 * floor, **ZONE)
        axis.axvline(100 * floor, **EDGE)
        if column.chance is not None and floor - column.chance > 0.01:
            axis.axvline(100 * column.chance, **{**EDGE, "linestyle": ":"})
        axis.text(0, 1.0, f"floor {_whole(floor)}", **words)
    if narrow:
        return
    name = "perfect 100"
    if column.ceiling is not None:
        axis.axvline(100 * column.ceiling, **{**EDGE, "linestyle": (0, (5, 1.5))})
        name = f"two readers {_whole(column.ceiling)}"
    axis.text(100, 1.0, name, ha="right", **words)


def _whole(share: float) -> str:
    """Write a share in per cent, rounded half up."""
    return str(int(100 * share + 0.5))


def dice_over_thresholds(analysis: Analysis, look: Mapping[str, Series]) -> Figure | None:
    """Draw a curve per run over the ground that the whole image's Dice reaches; None without a curve."""
    if not (shown := charts.curves(analysis)):
        return None
    figure, axes, key = _curve_panels(analysis, shown)
    for axis, panel in zip(axes, shown, strict=True):
        for line in reversed(panel.lines):
            marked = [place for place, (at, _) in enumerate(line.points) if round(at, 6) in _MARKED]
            _draw_line(axis, line, 1, look[line.label], marked, len(panel.lines))
        if panel.floor:
            level = 100 * panel.floor[0][1]
            axis.axhspan(0, level, **ZONE)
            axis.plot([0, 1], [level] * 2, **EDGE)
        axis.set(xlim=(0, 1), xticks=[0, 0.5, 1], xlabel="threshold")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        label_left(axis, "Dice \u00d7 100")
    tops = {line.label: max(value for _, value in line.known) for panel in shown for line in panel.lines}
    heights = [(tops[label], series) for label, series in look.items() if label in tops]
    name_curves(figure, axes, key, heights, "whole image")
    return figure


def against_area(analysis: Analysis, number: str, look: Mapping[str, Series]) -> Figure | None:
    """Draw a curve per run over the area of regions, over the ground of the whole image or of a random point.

    None without two sizes to compare.
    """
    if not (shown := charts.sizes(analysis, number, by_area=True)):
        return None
    points = number == "pointing_game"
    figure, axes, key = _curve_panels(analysis, shown, sharex=True)
    for axis, panel in zip(axes, shown, strict=True):
        for line in reversed(panel.lines):
            _draw_line(axis, line, 100, look[line.label], line.marked, len(panel.lines))
        places, floor = 100 * np.array(panel.floor).T
        axis.fill_between(places, floor, **ZONE)
        axis.plot(places, floor, **EDGE)
        # Areas are never zero.
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("region, % of the film")
        label_left(axis, "pointing game" if points else f"{NUMBERS[number].title} \u00d7 100")
    last = {line.label: line.known[-1][1] if line.known else 0.0 for panel in shown for line in panel.lines}
    heights = [(last[label], series) for label, series in look.items() if label in last]
    name_curves(figure, axes, key, heights, "random point" if points else "whole image")
    return figure


def _curve_panels(
    analysis: Analysis, shown: Sequence[charts.Panel], **options: Any
) -> tuple[Figure, list[Axes], Axes | None]:
    several = len(shown) > 1
    figure, axes, key = panels(len(shown), 1.9 if several else 2.2, key=True, sharey=True, **options)
    for axis, panel in zip(axes, shown, strict=True):
        if several:
            axis.set_title(wrapped(panel.title, 22))
        axis.set(ylim=(0, 100), yticks=[0, 50, 100])
    return figure, axes, key


def _draw_line(axis: Axes, line: charts.Line, scale: float, series: Series, marked: Sequence[int], lines: int) -> None:
    """Draw a line, the first one last so that it is on top, with its band where all of it has intervals."""
    known = [place for place, (_, score) in enumerate(line.points) if score.value is not None]
    if not known:
        return
    x, values = np.array(line.known).T
    marks = [place for place, of in enumerate(known) if of in marked]
    axis.plot(scale * x, 100 * values, **look_of(series), markevery=marks)
    if len(line.band) == len(known):
        # The more bands lie on each other, the fainter.
        _, low, high = 100 * np.array(line.band).T
        alpha = min(0.15, 0.5 / lines)
        axis.fill_between(scale * x, low, high, color=series.colour, alpha=alpha, linewidth=0)
