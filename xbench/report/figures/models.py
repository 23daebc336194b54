"""Figures that compare models, a panel per dataset: points, intervals, gaps, and curves over thresholds and area."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

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

_MARKED = (0.1, 0.3, 0.5, 0.7, 0.9)

INTERVALS: Mapping[str, str] = {
    "pointing_game": "Pointing game",
    "dice_cross_fitted": "Dice, cross-fitted",
    "auroc": "AUROC",
}
"""Numbers that are shown with their intervals, as narrow panels call them."""


def auroc_against_pointing_game(
    analysis: Analysis, scope: Literal["models", "findings"], look: Mapping[str, Style]
) -> Figure | None:
    """Draw a panel for all datasets, unless there is only one, then one for each."""
    lines = [(line, title) for line, title in analysis.lines(scope) if line.points]
    pooled = [(line, title) for line, title in lines if line.dataset is None and len(analysis.datasets) > 1]
    lines = [*pooled, *((line, title) for line, title in lines if line.dataset is not None)]
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
    many = line.scope == "findings"
    for owner, places in points.items():
        x, y = zip(*places, strict=True)
        style = look[owner]
        size, alpha = (11, 0.7) if many else (26, 1.0)
        axis.scatter(
            x, y, s=size, c=style.colour, marker=style.marker, alpha=alpha, linewidths=0, clip_on=False, zorder=3
        )
    if line.slope is not None and line.intercept is not None:
        ends = [min(point[1] for point in line.points), max(point[1] for point in line.points)]
        axis.plot([100 * x for x in ends], [100 * (line.intercept + line.slope * x) for x in ends], "0.5", zorder=2)
    return set(points)


def intervals(analysis: Analysis, key: str, look: Mapping[str, Style]) -> Figure:
    """Draw a row per model with its interval, and floors as lines."""
    figure, axes, rows = _row_per_model(analysis, f"{INTERVALS[key]} (%)")
    floors = {"Whole image": FLOOR, "Centre prior": {**FLOOR, "linestyle": ":"}}
    known: set[str] = set()
    for axis, dataset in zip(axes, analysis.datasets, strict=True):
        for entry in dataset.runs:
            _whisker(axis, number_of(entry, key), rows[entry.run.label], look[entry.run.label])
        for title in floors:
            floor = _reference(dataset, title, key)
            if floor is not None:
                axis.axvline(100 * floor, **floors[title], zorder=1)
                known.add(title)
        axis.set_xlim(0, 100)
    if known:
        legend(figure, [Line2D([], [], **line, label=title) for title, line in floors.items() if title in known])
    return figure


def _whisker(axis: Axes, estimate: Estimate, row: int, style: Style) -> None:
    if estimate.value is None:
        return
    if estimate.low is not None and estimate.high is not None:
        axis.plot([100 * estimate.low, 100 * estimate.high], [row, row], color=style.colour, clip_on=False, zorder=2)
    axis.plot(100 * estimate.value, row, color=style.colour, marker=style.marker, clip_on=False, zorder=3)


def _reference(dataset: DatasetAnalysis, title: str, key: str) -> float | None:
    found = [number_of(entry, key).value for entry in dataset.references if entry.title == title]
    return found[0] if found else None


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
    keys = [
        Line2D([], [], **dot, markerfacecolor="white", label="at 0.5"),
        Line2D([], [], color="black", marker="|", linestyle="none", markersize=7, label="cross-fitted"),
        Line2D([], [], **dot, label="best threshold"),
    ]
    legend(figure, keys)
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
            marked = [place for place, threshold in enumerate(thresholds) if round(threshold, 6) in _MARKED]
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
            middles = [float((part.low * part.high) ** 0.5) for part in entry.areas]
            scores = [part.scores.get(key, Estimate(None)) for part in entry.areas]
            percent = [100 * middle for middle in middles]
            _band(axis, percent, scores, look[entry.run.label], range(len(percent)), len(dataset.runs))
            for middle, part in zip(middles, entry.areas, strict=True):
                # A random point lies in a region with a chance of the region's area.
                floor[100 * middle] = 100 * (middle if points else part.whole_image)
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
    labels = list(in_order(analysis.runs))
    legend(figure, [*style_keys(labels, look, lines=True), Line2D([], [], **FLOOR, label=floor)])


def _last_first(dataset: DatasetAnalysis) -> list[RunAnalysis]:
    """Return runs against the order of the legend, so that its first ones are drawn on top."""
    return [*reversed(in_order(dataset.runs).values())]


def _band(
    axis: Axes, x: Sequence[float], estimates: Sequence[Estimate], style: Style, marked: Sequence[int], curves: int
) -> None:
    known = [(place, at, e) for place, (at, e) in enumerate(zip(x, estimates, strict=True)) if e.value is not None]
    if not known:
        return
    at = [place for _, place, _ in known]
    values = [100 * e.value for _, _, e in known if e.value is not None]
    marks = [position for position, (place, _, _) in enumerate(known) if place in marked]
    axis.plot(at, values, color=style.colour, linestyle=style.line, marker=style.marker, markevery=marks, markersize=3)
    if all(e.low is not None and e.high is not None for _, _, e in known):
        low, high = ([100 * getattr(e, end) for _, _, e in known] for end in ("low", "high"))
        # The more bands lie on each other, the fainter.
        axis.fill_between(at, low, high, color=style.colour, alpha=min(0.15, 0.5 / curves), linewidth=0)
