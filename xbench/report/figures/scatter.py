"""Recognition against grounding: all datasets large, each small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xbench.report.charts import Scatter, apart, lines_of, named_places
from xbench.report.figures.style import COLUMN, EDGE, FAINT, PAGE, ZONE, draw_mark, wrapped
from xbench.report.schema import Analysis
from xbench.report.series import Series

_NAMED = 16
"""Findings that have room for their names."""


def auroc_against_pointing_game(
    analysis: Analysis, scope: Literal["models", "findings"], look: Mapping[str, Series]
) -> Figure | None:
    """Draw a large panel for all datasets, or for the only one, and a small one for each; None for too few points."""
    shown = lines_of(analysis, scope)
    if not shown:
        return None
    large, *small = shown
    rows = 3 if len(small) > 4 else 2
    columns = ceil(len(small) / rows)
    size = (PAGE, 1.4 * rows) if small else (COLUMN, 3.1)
    figure = Figure(figsize=size, layout="constrained")
    places = figure.add_gridspec(rows, 1 + columns, width_ratios=[3.0, *[4.0 / columns] * columns] if small else None)
    main = figure.add_subplot(places[:, 0])
    _draw(main, large, look, [0, 25, 50, 75, 100])
    main.set(xlabel="AUROC (50: a coin flip)", ylabel="pointing game")
    if len(large.means or large.points) <= _NAMED:
        # A line of text, in the units of the axis.
        _name_points(main, named_places(large.means or large.points), 16 / (size[1] - 0.6))
    main.set_title(wrapped(", ".join(filter(None, [large.title, *_fit(large)])), 44))
    for number, scatter in enumerate(small):
        axis = figure.add_subplot(places[number // columns, 1 + number % columns])
        _draw(axis, scatter, look, [0, 50, 100])
        axis.set_title("\n".join([wrapped(scatter.title, 18), *_fit(scatter)[:1]]), linespacing=1.05)
    return figure


def _fit(scatter: Scatter) -> list[str]:
    """Return R squared and p in words, if there are any."""
    if scatter.line is None or scatter.line.r_squared is None:
        return []
    return [f"R\u00b2 = {scatter.line.r_squared:.2f}", *([scatter.line.p_in_words] if scatter.line.p_in_words else [])]


def _draw(axis: Axes, scatter: Scatter, look: Mapping[str, Series], ticks: Sequence[int]) -> None:
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
            draw_mark(axis, 100 * (point.x.value or 0.0), 100 * (point.y.value or 0.0), look[point.label], **style)


def _name_points(axis: Axes, places: Sequence[tuple[float, float, str]], height: float) -> None:
    """Write names beside points, left of them where recognition is good; their height is in units of the axis."""
    for left in (True, False):
        side = [(100 * x, 100 * y, name) for x, y, name in places if (x >= 0.68) is left]
        heights = apart([y for _, y, _ in side], [height] * len(side), 0.0, 100.0)
        # Names stand in a column beside all points of their side.
        edge = min((x for x, _, _ in side), default=0.0) - 5 if left else max((x for x, _, _ in side), default=0.0) + 5
        for (x, y, name), at in zip(side, heights, strict=True):
            arrow = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 3}
            axis.annotate(
                name,
                (x, y),
                (edge, at),
                ha="right" if left else "left",
                va="center",
                arrowprops=arrow,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.6, "linewidth": 0},
            )
