"""Figures that compare runs, a panel per dataset: intervals, gaps, curves and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from xbench.report import charts
from xbench.report.colors import Series
from xbench.report.figures.style import (
    COLUMN,
    EDGE,
    FAINT,
    PAGE,
    ZONE,
    Looks,
    draw_mark,
    look_of,
    name_curves,
    name_rows,
    panels,
    wrapped,
    write_number,
)
from xbench.report.names import whole
from xbench.report.schema import Analysis, Scope

INTERVALS = {
    "pointing_game": "pointing game \u00d7 100, mean over findings",
    "dice_cross_fitted": "Dice \u00d7 100, cross-fitted threshold",
    "auroc": "AUROC \u00d7 100",
    "side_joint": "correct side stated \u00d7 100, mean over findings",
}
"""Labels of axes, by number."""
_ROW = 0.24
"""Height of a row in inches."""
_MARKED = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Thresholds at which curves have their marks."""
_NAMED = 16
"""Most points of a scatter with names."""


def intervals(analysis: Analysis, number: str, looks: Looks) -> Figure | None:
    """Draw a row per run with its interval between floor and ceiling; None without a score."""
    if not any(dataset.values(number) for dataset in analysis.datasets):
        return None
    labels = list(analysis.by_label)
    columns = [charts.of_dataset(analysis, dataset, labels, number) for dataset in analysis.datasets]
    figure, axes = _rows(analysis, columns, INTERVALS[number])
    narrow = len(axes) > 3
    for axis, column in zip(axes, columns, strict=True):
        _draw_ends(axis, column, narrow)
        for row, (entry, score) in enumerate((entry, entry.score) for entry in column.entries):
            if score.value is None:
                continue
            between = ""
            if score.low is not None and score.high is not None:
                bar: dict[str, Any] = {"alpha": 0.42, "linewidth": 2.6, "solid_capstyle": "butt", "zorder": 2}
                ends = [100 * score.low, 100 * score.high]
                axis.plot(ends, [row, row], color=looks[entry.label].color, **bar, clip_on=False)
                between = "" if narrow else f"{whole(score.low)}\u2013{whole(score.high)}"
            draw_mark(axis, 100 * score.value, row, looks[entry.label])
            write_number(axis, row, whole(score.value), between)
    return figure


def dice_gap(analysis: Analysis, looks: Looks) -> Figure | None:
    """Draw a row per run from Dice at 0.5 to Dice at the best threshold, with the difference as a number."""
    columns = charts.gaps(analysis)
    if not columns:
        return None
    figure, axes = _rows(analysis, columns, "Dice \u00d7 100:  \u25cb at 0.5   \u25cf cross-fitted   | best")
    for axis, column in zip(axes, columns, strict=True):
        for row, entry in enumerate(column.entries):
            if len(entry.marks) < 2:
                continue
            fixed, best = 100 * entry.marks["fixed"], 100 * entry.marks["best"]
            dot: dict[str, Any] = {"color": looks[entry.label].color, "clip_on": False}
            axis.plot([fixed, best], [row, row], **dot)
            dot |= {"markersize": 4.5, "zorder": 3}
            axis.plot(fixed, row, "o", markerfacecolor="white", **dot)
            axis.plot(best, row, "|", **{**dot, "color": "black", "markersize": 8})
            if entry.score.value is not None:
                axis.plot(100 * entry.score.value, row, "o", **dot)
            write_number(axis, row, f"{best - fixed:.1f}")
        axis.text(1.04, 1.0, "gap", transform=axis.transAxes, va="bottom", color=FAINT)
    return figure


def _rows(analysis: Analysis, columns: Sequence[charts.Column], quantity: str) -> tuple[Figure, list[Axes]]:
    several = len(analysis.datasets) > 1
    names = [wrapped(entry.label, 19 if several else 16) for entry in columns[0].entries]
    lines = max(name.count("\n") + 1 for name in names)
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
    """Draw the ground up to the best floor and a dotted line at chance; name floor and ceiling."""
    words: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "va": "bottom", "color": FAINT}
    if (floor := column.floor) is not None:
        axis.axvspan(0, 100 * floor, **ZONE)
        axis.axvline(100 * floor, **EDGE)
        if column.chance is not None and floor - column.chance > 0.01:
            axis.axvline(100 * column.chance, **{**EDGE, "linestyle": ":"})
        axis.text(0, 1.0, f"floor {whole(floor)}", **words)
    if narrow:
        return
    name = "perfect 100"
    if column.ceiling is not None:
        axis.axvline(100 * column.ceiling, **{**EDGE, "linestyle": (0, (5, 1.5))})
        name = f"two readers {whole(column.ceiling)}"
    axis.text(100, 1.0, name, ha="right", **words)


def curves(shown: Sequence[charts.Panel], looks: Looks, unit: str, ground: str, by_area: bool = False) -> Figure | None:
    """Draw a curve per run over thresholds, or `by_area` of regions, over the floor; None without a curve."""
    if not shown:
        return None
    several, scale = len(shown) > 1, 100 if by_area else 1
    figure, axes, key = panels(len(shown), 1.9 if several else 2.2, key=True, sharey=True, sharex=by_area)
    heights: dict[str, float] = {}
    for axis, panel in zip(axes, shown, strict=True):
        axis.set(ylim=(0, 100), yticks=[0, 50, 100])
        if several:
            axis.set_title(wrapped(panel.title, 22))
        # The first one on top.
        for line in reversed(panel.lines):
            _draw_line(axis, line, scale, looks[line.label], by_area, len(panel.lines))
            values = [value for _, value in line.known]
            heights[line.label] = (values[-1] if by_area else max(values)) if values else 0.0
        if panel.floor:
            places, floor = np.array(panel.floor).T
            axis.fill_between(scale * places, 100 * floor, **ZONE)
            axis.plot(scale * places, 100 * floor, **EDGE)
        axis.set_xlabel("region, % of the image" if by_area else "threshold")
        if by_area:
            # Areas are never zero.
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            axis.tick_params(labelbottom=True)
        else:
            axis.set(xlim=(0, 1), xticks=[0, 0.5, 1])
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if (place := axis.get_subplotspec()) is None or place.is_first_col():
            axis.set_ylabel(unit)
    name_curves(figure, axes, key, {label: heights[label] for label in looks if label in heights}, looks, ground)
    return figure


def _draw_line(axis: Axes, line: charts.Line, scale: float, series: Series, every: bool, lines: int) -> None:
    if not line.known:
        return
    x, values = np.array(line.known).T
    marks = [place for place, at in enumerate(x) if every or round(at, 6) in _MARKED]
    axis.plot(scale * x, 100 * values, **look_of(series), markevery=marks)
    if len(line.band) == len(line.known):
        # More bands are fainter.
        _, low, high = 100 * np.array(line.band).T
        alpha = min(0.15, 0.5 / lines)
        axis.fill_between(scale * x, low, high, color=series.color, alpha=alpha, linewidth=0)


def auroc_against_pointing_game(analysis: Analysis, scope: Scope, looks: Looks) -> Figure | None:
    """Draw a large panel for all datasets, or for the only one, and a small one for each; None for too few points."""
    shown = charts.lines_of(analysis, scope)
    if not shown:
        return None
    large, *small = shown
    rows = 3 if len(small) > 4 else 2
    columns = ceil(len(small) / rows)
    size = (PAGE, 1.4 * rows) if small else (COLUMN, 3.1)
    figure = Figure(figsize=size, layout="constrained")
    places = figure.add_gridspec(rows, 1 + columns, width_ratios=[3.0, *[4.0 / columns] * columns] if small else None)
    main = figure.add_subplot(places[:, 0])
    _draw_scatter(main, large, looks, [0, 25, 50, 75, 100])
    main.set(xlabel="AUROC (50: a coin flip)", ylabel="pointing game")
    if len(large.means or large.points) <= _NAMED:
        # A line of text in units of the axis.
        _name_points(main, charts.named_places(large.means or large.points), 16 / (size[1] - 0.6))
    main.set_title(wrapped(", ".join(filter(None, [large.title, *_fit(large)])), 44))
    for number, scatter in enumerate(small):
        axis = figure.add_subplot(places[number // columns, 1 + number % columns])
        _draw_scatter(axis, scatter, looks, [0, 50, 100])
        axis.set_title("\n".join([wrapped(scatter.title, 18), *_fit(scatter)[:1]]), linespacing=1.05)
    return figure


def _fit(scatter: charts.Scatter) -> list[str]:
    if scatter.line is None or scatter.line.r_squared is None:
        return []
    return [f"R\u00b2 = {scatter.line.r_squared:.2f}", *filter(None, [scatter.line.p_in_words])]


def _draw_scatter(axis: Axes, scatter: charts.Scatter, looks: Looks, ticks: Sequence[int]) -> None:
    axis.set(xlim=(0, 100), ylim=(0, 100), xticks=ticks, yticks=ticks)
    axis.axvspan(0, 50, **ZONE)
    axis.plot([50, 50], [0, 100], **EDGE)
    points, line = scatter.points, scatter.line
    if line is not None and line.slope is not None and line.intercept is not None:
        ends = [end(point.x.value or 0.0 for point in points) for end in (min, max)]
        heights = [100 * (line.intercept + line.slope * x) for x in ends]
        axis.plot([100 * x for x in ends], heights, color=FAINT, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    # Of several models, findings are small and the models' means are large.
    faint = {"alpha": 0.4, "markersize": 3.0, "markeredgewidth": 0.0} if scatter.means else {}
    for shown, style in ((points, faint), (scatter.means, {"markersize": 7.0})):
        for point in shown:
            draw_mark(axis, 100 * (point.x.value or 0.0), 100 * (point.y.value or 0.0), looks[point.label], **style)


def _name_points(axis: Axes, places: Sequence[tuple[float, float, str]], height: float) -> None:
    """Write names beside points, left of them at good recognition; `height` is in units of the axis."""
    arrow = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 3}
    ground = {"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.6, "linewidth": 0}
    for left in (True, False):
        side = [(100 * x, 100 * y, name) for x, y, name in places if (x >= 0.68) is left]
        heights = charts.apart([y for _, y, _ in side], [height] * len(side), 0.0, 100.0)
        # Names stand in a column beside all points of their side.
        xs = [x for x, _, _ in side] or [0.0]
        edge = min(xs) - 5 if left else max(xs) + 5
        aligned: dict[str, Any] = {"ha": "right" if left else "left", "va": "center"}
        for (x, y, name), at in zip(side, heights, strict=True):
            axis.annotate(name, (x, y), (edge, at), **aligned, arrowprops=arrow, bbox=ground)
