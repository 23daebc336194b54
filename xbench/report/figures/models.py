"""Figures that compare models, a panel per dataset: points, intervals, gaps, and curves over thresholds and area."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from xbench.report.figures.style import FLOOR, Style, label_left, legend, panels, style_keys
from xbench.report.schema import (
    NUMBERS,
    Analysis,
    Correlation,
    DatasetAnalysis,
    Estimate,
    RunAnalysis,
    in_order,
    number_of,
)

INTERVALS = {"pointing_game": "Pointing game", "dice_cross_fitted": "Dice, cross-fitted", "auroc": "AUROC"}
"""Numbers that are shown with their intervals, as narrow panels call them."""


def auroc_against_pointing_game(
    analysis: Analysis, scope: Literal["models", "findings"], look: Mapping[str, Style]
) -> Figure | None:
    """Draw a panel for all datasets, unless there is only one, then one for each."""
    lines = [(line, title) for line, title in analysis.lines(scope) if line.points]
    lines = [entry for entry in lines if entry[0].dataset is not None or len(analysis.datasets) > 1]
    # The line of all datasets first.
    lines.sort(key=lambda entry: entry[0].dataset is not None)
    if not lines:
        return None
    figure, axes = panels(len(lines), 2.2 if len(lines) > 1 else 2.6)
    shown: set[str] = set()
    for axis, (line, title) in zip(axes, lines, strict=True):
        shown |= _scatter(axis, line, look)
        fit = "" if line.r_squared is None else f"R\u00b2 = {line.r_squared:.2f}"
        said = ", ".join(filter(None, (fit, line.p_in_words)))
        axis.set_title(title, pad=14 if said else 6)
        axis.text(0.5, 1.02, said, transform=axis.transAxes, ha="center", va="bottom", color="0.35", fontsize=6.5)
        axis.set(ylim=(0, 100), xlabel="AUROC (%)")
        label_left(axis, "Pointing game (%)")
        axis.grid(color="0.92", linewidth=0.5)
    # Legends stand in the order of tables.
    legend(figure, style_keys([name for name in look if name in shown], look, lines=False))
    return figure


def _scatter(axis: Axes, line: Correlation, look: Mapping[str, Style]) -> set[str]:
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for label, auroc, hit in line.points:
        # Points of findings are called `model: finding`.
        owner = max((name for name in look if label == name or label.startswith(f"{name}: ")), key=len)
        points[owner].append((100 * auroc, 100 * hit))
    size: dict[str, Any] = {"s": 11, "alpha": 0.7} if line.scope == "findings" else {"s": 26, "alpha": 1.0}
    for owner, places in points.items():
        x, y = zip(*places, strict=True)
        style = look[owner]
        axis.scatter(x, y, c=style.colour, marker=style.marker, **size, linewidths=0, clip_on=False, zorder=3)
    if line.slope is not None and line.intercept is not None:
        ends = [end(auroc for _, auroc, _ in line.points) for end in (min, max)]
        axis.plot([100 * x for x in ends], [100 * (line.intercept + line.slope * x) for x in ends], "0.5", zorder=2)
    return set(points)


def intervals(analysis: Analysis, key: str, look: Mapping[str, Style]) -> Figure:
    """Draw a row per model with its interval, and floors as lines."""
    figure, axes, rows = _row_per_model(analysis, f"{INTERVALS[key]} (%)")
    floors = {"Whole image": FLOOR, "Centre prior": {**FLOOR, "linestyle": ":"}}
    known: set[str] = set()
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        for entry in dataset.runs:
            score, row, style = number_of(entry, key), rows[entry.run.label], look[entry.run.label]
            line: dict[str, Any] = {"color": style.colour, "clip_on": False}
            if score.low is not None and score.high is not None:
                axis.plot([100 * score.low, 100 * score.high], [row, row], **line, zorder=2)
            if score.value is not None:
                axis.plot(100 * score.value, row, **line, marker=style.marker, zorder=3)
        for title in floors:
            floor = _reference(dataset, title, key)
            if floor is not None:
                axis.axvline(100 * floor, **floors[title], zorder=1)
                known.add(title)
        axis.set_xlim(0, 100)
    if known:
        legend(figure, [Line2D([], [], **floors[title], label=title) for title in floors if title in known])
    return figure


def _reference(dataset: DatasetAnalysis, title: str, key: str) -> float | None:
    return next((number_of(entry, key).value for entry in dataset.references if entry.title == title), None)


def dice_gap(analysis: Analysis, look: Mapping[str, Style]) -> Figure:
    """Draw a row per model from Dice at 0.5 to Dice at the best threshold."""
    figure, axes, rows = _row_per_model(analysis, "Dice (%)")
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        most = 0.0
        for entry in dataset.runs:
            fixed, fitted, best = (entry.macro[key].value for key in ("dice_fixed", "dice_cross_fitted", "dice_best"))
            if fixed is None or best is None:
                continue
            row, colour = rows[entry.run.label], look[entry.run.label].colour
            axis.plot([100 * fixed, 100 * best], [row, row], color=colour)
            axis.plot(100 * fixed, row, "o", color=colour, markerfacecolor="white")
            axis.plot(100 * best, row, "o", color=colour)
            if fitted is not None:
                axis.plot(100 * fitted, row, "|", color="black", markersize=7)
            gap = f"{100 * (best - fixed):.1f}"
            axis.annotate(gap, (100 * best, row), (5, 0), textcoords="offset points", va="center", fontsize=6.5)
            most = max(most, best)
        # Room for the number behind the longest row.
        axis.set_xlim(0, 130 * most + 5)
    dot: dict[str, Any] = {"color": "0.3", "marker": "o", "linestyle": "none"}
    fixed_key = Line2D([], [], **dot, markerfacecolor="white", label="at 0.5")
    fitted_key = Line2D([], [], color="black", marker="|", linestyle="none", markersize=7, label="cross-fitted")
    legend(figure, [fixed_key, fitted_key, Line2D([], [], **dot, label="best threshold")])
    return figure


def _row_per_model(analysis: Analysis, quantity: str) -> tuple[Figure, list[Axes], dict[str, int]]:
    labels = list(in_order(analysis.runs))
    figure, axes = panels(len(analysis.datasets), 0.6 + 0.18 * len(labels), sharey=True)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        axis.set_title(analysis.heading(dataset))
        axis.set(xlabel=quantity, ylim=(len(labels) - 0.5, -0.5))
        axis.set_yticks(range(len(labels)), labels)
        axis.grid(axis="x", color="0.92", linewidth=0.5)
    return figure, axes, {label: row for row, label in enumerate(labels)}


def dice_over_thresholds(analysis: Analysis, look: Mapping[str, Style]) -> Figure:
    """Draw a curve per model, with the whole image's Dice as floor."""
    figure, axes = _curve_panels(analysis)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        for entry in _last_first(dataset):
            thresholds = entry.run.results.grounding.thresholds
            marked = [place for place, at in enumerate(thresholds) if round(at, 6) in (0.1, 0.3, 0.5, 0.7, 0.9)]
            _band(axis, thresholds, entry.dice_curve, look[entry.run.label], marked, len(dataset.runs))
        floor = _reference(dataset, "Whole image", "dice_fixed")
        if floor is not None:
            axis.axhline(100 * floor, **FLOOR)
        axis.set(xlabel="Threshold", xlim=(0, 1))
        axis.set_ylim(bottom=0)
        label_left(axis, "Dice (%)")
    _curve_legend(figure, analysis, look, "Whole image")
    return figure


def against_area(analysis: Analysis, key: str, look: Mapping[str, Style]) -> Figure:
    """Draw a curve per model over the area of regions, with the floor: the whole image, or a random point."""
    points = key == "pointing_game"
    figure, axes = _curve_panels(analysis)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        floor: dict[float, float] = {}
        for entry in _last_first(dataset):
            # On a logarithmic axis; areas are never zero.
            middles = [100 * float((part.low * part.high) ** 0.5) for part in entry.areas]
            scores = [part.scores.get(key, Estimate(None)) for part in entry.areas]
            _band(axis, middles, scores, look[entry.run.label], range(len(middles)), len(dataset.runs))
            # A random point lies in a region with a chance of the region's area.
            whole = [100 * part.whole_image for part in entry.areas]
            floor.update(zip(middles, middles if points else whole, strict=True))
        axis.plot(sorted(floor), [floor[area] for area in sorted(floor)], **FLOOR)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(lambda value, _: "")
        axis.set_xlabel("Area of the region (%)")
        axis.set_ylim(0, 100 if points else None)
        label_left(axis, f"{NUMBERS[key].title} (%)")
    _curve_legend(figure, analysis, look, "Random point" if points else "Whole image")
    return figure


def _curve_panels(analysis: Analysis) -> tuple[Figure, list[Axes]]:
    figure, axes = panels(len(analysis.datasets), 2.0 if len(analysis.datasets) > 1 else 2.4)
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        axis.set_title(analysis.heading(dataset))
        axis.grid(color="0.92", linewidth=0.5)
    return figure, axes


def _curve_legend(figure: Figure, analysis: Analysis, look: Mapping[str, Style], floor: str) -> None:
    keys = style_keys(list(in_order(analysis.runs)), look, lines=True)
    legend(figure, [*keys, Line2D([], [], **FLOOR, label=floor)])


def _last_first(dataset: DatasetAnalysis) -> list[RunAnalysis]:
    """Return runs against the order of the legend, so that its first ones are drawn on top."""
    return [*reversed(in_order(dataset.runs).values())]


def _band(
    axis: Axes, x: Sequence[float], estimates: Sequence[Estimate], style: Style, marked: Sequence[int], curves: int
) -> None:
    # Where a number does not exist, None becomes NaN.
    ends = [(estimate.value, estimate.low, estimate.high) for estimate in estimates]
    values, low, high = 100 * np.array(ends, float).reshape(-1, 3).T
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return
    at, marks = np.array(x)[known], np.flatnonzero(np.isin(known, marked)).tolist()
    line: dict[str, Any] = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
    axis.plot(at, values[known], **line, markevery=marks, markersize=3)
    if not np.isnan([low[known], high[known]]).any():
        # The more bands lie on each other, the fainter.
        alpha = min(0.15, 0.5 / curves)
        axis.fill_between(at, low[known], high[known], color=style.colour, alpha=alpha, linewidth=0)
