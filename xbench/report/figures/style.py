"""The look of all figures: sizes for print, marks of series, floors, labels, and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from xbench.report.charts import apart
from xbench.report.colors import SHAPES, Series

COLUMN, PAGE = 3.4, 7.0
"""Widths of a journal's column and page in inches."""
FAINT = "#4a5661"
Looks = Mapping[str, Series]
ZONE: dict[str, Any] = {"color": "#c5ced7", "alpha": 0.34, "linewidth": 0, "zorder": 0}
"""Scores of useless maps."""
EDGE: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "zorder": 1}
"""The end of that zone."""
_LINE = 0.14
"""Height of a line of text in inches."""
_DIRECT = 7
"""Most series with names beside the panel; more have a legend."""


drawing = partial(matplotlib.style.context, "xbench.report.figures.xbench", after_reset=True)
"""Context that sets the look of everything drawn and saved within."""


def panels(
    count: int, height: float, columns: int = 0, key: bool = False, **options: Any
) -> tuple[Figure, list[Axes], Axes | None]:
    """Return a figure of panels, each `height` inches high: a column wide for one, a page for more.

    With `key`, several panels leave a place free for the names of series, which is returned as well.
    """
    places = count + (key and count > 1)
    columns = columns or (places if places < 4 else 3 if places in (5, 6, 9) else 4)
    rows = ceil(places / columns)
    figure = Figure(figsize=(COLUMN if count == 1 else PAGE, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).flatten().tolist()
    for unused in axes[places:]:
        unused.remove()
    for axis in axes[:count]:
        if count - axis.get_subplotspec().num1 <= columns:
            # The lowest of its column.
            axis.tick_params(labelbottom=True)
    return figure, axes[:count], axes[count] if places > count else None


def wrapped(text: str, width: int, lines: int = 4) -> str:
    """Break a text into lines of about `width` characters, within words only if they are longer."""
    hyphens = any(len(word) > width for word in text.split())
    return "\n".join(wrap(text, width, break_on_hyphens=hyphens, max_lines=lines, placeholder=" \u2026") or [""])


def name_rows(axis: Axes, names: Sequence[str], ticks: Sequence[int], **options: Any) -> None:
    """Make an axis of rows with names, from the top, on a scale from 0 to 100."""
    axis.set(xlim=(0, 100), ylim=(len(names) - 0.5, -0.5), xticks=ticks)
    axis.set_yticks(range(len(names)), names, **options)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)


def write_number(axis: Axes, row: int, value: str, more: str = "") -> None:
    """Write a number at the right edge of a row, and behind it what belongs to it."""
    place = axis.get_yaxis_transform()
    axis.annotate(value, (1.0, row), (22, 0), place, "offset points", ha="right", va="center", weight="bold")
    if more:
        axis.annotate(more, (1.0, row), (27, 0), place, "offset points", va="center", color=FAINT)


def look_of(series: Series) -> dict[str, Any]:
    """Return how a series' marks and lines are drawn by `Axes.plot`."""
    marker, size = SHAPES[series.shape]
    return {
        "color": series.color,
        "marker": marker,
        "markersize": size * matplotlib.rcParams["lines.markersize"],
        "markerfacecolor": series.color if series.filled else "white",
        # A thin white edge tells a filled mark from one that it lies on.
        "markeredgecolor": "white" if series.filled else series.color,
        "markeredgewidth": 0.4 if series.filled else 1.0,
        "linestyle": (0, series.dash) if series.dash else "-",
        "clip_on": False,
    }


def draw_mark(axis: Axes, x: float, y: float, series: Series, **more: Any) -> None:
    """Draw the mark of a series, over everything else."""
    axis.plot(x, y, **{**look_of(series), "zorder": 3, "linestyle": "none", **more})


def name_curves(
    figure: Figure, axes: list[Axes], key: Axes | None, heights: Mapping[str, float], looks: Looks, floor: str
) -> None:
    """Name curves and the ground: beside the panel at their heights from 0 to 1, or in the place left free."""
    if len(heights) > _DIRECT:
        if key is not None:
            key.remove()
        keys = [Line2D([], [], **look_of(looks[label]), label=label) for label in heights]
        legend(figure, [*keys, Patch(**ZONE, label=floor)])
        return
    axis, left, width = (axes[0], 1.07, 15) if key is None else (key, 0.03, 22)
    names = [wrapped(name, width) for name in (*heights, floor)]
    lines = [_LINE * (name.count("\n") + 1.3) for name in names]
    wanted = [*heights.values(), 0.0]
    figure.draw_without_rendering()
    room = axis.get_position().height * figure.get_figheight()
    if sum(lines) > room:
        figure.set_figheight(figure.get_figheight() + (sum(lines) - room) * (1 if key is None else 2))
        room = sum(lines)
    if key is not None:
        # From the top, in the order of their heights.
        key.axis("off")
        order = sorted(wanted, reverse=True)
        wanted = [1.0 - order.index(height) / 100 for height in wanted]
    places = apart(wanted, [line / room for line in lines], 0.0, 1.0 if key is None else 0.95)
    for y, name, label in zip(places, names, [*heights, None], strict=True):
        if label is not None:
            draw_mark(axis, left, y, looks[label], transform=axis.transAxes)
        else:
            square: dict[str, Any] = {"marker": "s", "markersize": 7, "markeredgewidth": 0, "linestyle": "none"}
            axis.plot(left, y, **square, color="#c5ced7", alpha=0.6, transform=axis.transAxes, clip_on=False)
        axis.annotate(name, (left, y), (7, 0), axis.transAxes, "offset points", va="center", linespacing=1.0)


def legend(figure: Figure, keys: Sequence[Artist]) -> None:
    """Put a legend below the panels, in as many columns as fit, and make room for it."""
    longest = max(len(str(key.get_label())) for key in keys)
    # A character takes about 0.062 inches, a line with its marker 0.4.
    columns = max(1, min(len(keys), int(figure.get_figwidth() / (0.062 * longest + 0.4))))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.17 * ceil(len(keys) / columns) + 0.1)
    figure.legend(handles=list(keys), loc="outside lower center", ncols=columns, columnspacing=1.0, handlelength=1.6)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PDF, SVG and PNG beside a path without an ending; equal figures give equal bytes."""
    # Lay out once instead of for each file.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=200)
