"""Recognition against grounding: all datasets large, each small."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil
from statistics import fmean
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xbench.report.figures.style import COLUMN, EDGE, FAINT, PAGE, ZONE, apart, draw_mark, wrapped
from xbench.report.names import model_title, shared_name
from xbench.report.schema import Analysis, Correlation
from xbench.report.series import Series

_LEAST = {"models": 3, "findings": 2}
"""Points without which there is nothing to see."""
_NAMED = 16
"""Findings that have room for their names."""


def auroc_against_pointing_game(
    analysis: Analysis, scope: Literal["models", "findings"], look: Mapping[str, Series]
) -> Figure | None:
    """Draw a large panel for all datasets, or for the only one, and a small one for each; None for too few points."""
    lines = [(line, title) for line, title in analysis.lines(scope) if len(line.points) >= _LEAST[scope]]
    several = len(analysis.datasets) > 1
    # The line of all datasets is large, or that of the only one.
    lines = sorted(lines, key=lambda entry: (entry[0].dataset is None) is not several)
    if not lines:
        return None
    large, *small = lines if several else lines[:1]
    rows = 3 if len(small) > 4 else 2
    columns = ceil(len(small) / rows)
    size = (PAGE, 1.4 * rows) if small else (COLUMN, 3.1)
    figure = Figure(figsize=size, layout="constrained")
    places = figure.add_gridspec(rows, 1 + columns, width_ratios=[3.0, *[4.0 / columns] * columns] if small else None)
    by_title = {model_title(series.model): series for series in look.values() if series.own}
    main = figure.add_subplot(places[:, 0])
    _frame(main, [0, 25, 50, 75, 100])
    main.set(xlabel="AUROC (50: a coin flip)", ylabel="pointing game")
    # A line of text, in the units of the axis.
    _points(main, large[0], by_title, 16 / (size[1] - 0.6))
    main.set_title(wrapped(", ".join(filter(None, [large[1] if several else "", _fit(large[0])])), 44))
    for number, (line, title) in enumerate(small):
        axis = figure.add_subplot(places[number // columns, 1 + number % columns])
        _frame(axis, [0, 50, 100])
        _points(axis, line, by_title)
        axis.set_title("\n".join(filter(None, (wrapped(title, 18), _fit(line, short=True)))), linespacing=1.05)
    return figure


def _fit(line: Correlation, short: bool = False) -> str:
    fit = "" if line.r_squared is None else f"R\u00b2 = {line.r_squared:.2f}"
    return fit if short else ", ".join(filter(None, (fit, line.p_in_words)))


def _frame(axis: Axes, ticks: Sequence[int]) -> None:
    axis.set(xlim=(0, 100), ylim=(0, 100), xticks=ticks, yticks=ticks)
    axis.axvspan(0, 50, **ZONE)
    axis.plot([50, 50], [0, 100], **EDGE)


def _points(axis: Axes, line: Correlation, by_title: Mapping[str, Series], name_height: float = 0) -> None:
    # Points of findings are called `model: finding`.
    points = [
        (max((title for title in by_title if label == title or label.startswith(f"{title}: ")), key=len), label, x, y)
        for label, x, y in ((label, 100 * auroc, 100 * hit) for label, auroc, hit in line.points)
    ]
    if line.slope is not None and line.intercept is not None:
        ends = [end(x for _, _, x, _ in points) for end in (min, max)]
        heights = [100 * line.intercept + line.slope * x for x in ends]
        axis.plot(ends, heights, color=FAINT, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    owners = {owner for owner, *_ in points}
    large = line.scope == "models" or len(owners) == 1
    for owner, _, x, y in points:
        # Of several models, findings are small and the models' means are large.
        faint = {} if large else {"alpha": 0.4, "markersize": 3.0, "markeredgewidth": 0.0}
        draw_mark(axis, x, y, by_title[owner], **faint)
    labels = [(label.removeprefix(f"{owner}: ") if len(owners) == 1 else owner, x, y) for owner, label, x, y in points]
    if not large:
        means: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for owner, _, x, y in points:
            means[owner].append((x, y))
        labels = []
        for owner, places in means.items():
            x, y = (fmean(values) for values in zip(*places, strict=True))
            draw_mark(axis, x, y, by_title[owner], markersize=7.0)
            labels.append((owner, x, y))
    if name_height and len(labels) <= _NAMED:
        _name_points(axis, labels, name_height)


def _name_points(axis: Axes, points: Sequence[tuple[str, float, float]], height: float) -> None:
    """Write names beside points, left of them where recognition is good; their height is in units of the axis."""
    # Points in one place share a name.
    merged: list[tuple[list[str], float, float]] = []
    for name, x, y in points:
        for names, at_x, at_y in merged:
            if abs(at_x - x) < 1.2 and abs(at_y - y) < 1.2:
                names.append(name)
                break
        else:
            merged.append(([name], x, y))
    for left in (True, False):
        side = [point for point in merged if (point[1] >= 68) is left]
        heights = apart([y for _, _, y in side], [height] * len(side), 0.0, 100.0)
        # Names stand in a column beside all points of their side.
        edge = min((x for _, x, _ in side), default=0.0) - 5 if left else max((x for _, x, _ in side), default=0.0) + 5
        for (names, x, y), at in zip(side, heights, strict=True):
            arrow = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 3}
            axis.annotate(
                shared_name(names),
                (x, y),
                (edge, at),
                ha="right" if left else "left",
                va="center",
                arrowprops=arrow,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.6, "linewidth": 0},
            )
