"""Figures of one dataset that look closer at each model: quadrants, positions, and maps side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import cv2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from xbench.report.cases import CaseMap, ChosenCase, read_maps
from xbench.report.colors import Series, tinted
from xbench.report.figures.style import COLUMN, PAGE, bare, legend, name_rows, wrapped, write_number
from xbench.report.schema import DatasetAnalysis, Estimate, PositionCell, in_order
from xbench.runs.images import shrunk

_CELLS = LinearSegmentedColormap.from_list("cells", ["#f4f7fb", "#2b6dff", "#0c2350"]).with_extremes(bad="#eeeeee")

_QUADRANTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "both": ("on the lesion, recognised", {"color": "#00707d"}),
    "grounded_only": ("on the lesion only", {"color": "#74bcc4"}),
    "near_miss": ("recognised, just outside", {"facecolor": "#a85500", "edgecolor": "white", "hatch": "/////"}),
    "elsewhere": ("recognised, elsewhere", {"color": "#ffad42"}),
    "neither": ("both wrong", {"color": "#dde2e7"}),
}
_HEIGHT = 9.0
"""Inches that a figure may be high."""
_BESIDE = 7
"""Runs whose maps stand side by side."""


def quadrants(dataset: DatasetAnalysis, look: Mapping[str, Series]) -> Figure | None:
    """Draw a panel per run, a stacked bar per finding; None where no finding has both labels and a scored pair."""
    runs = {label: entry.quadrants for label, entry in in_order(dataset.runs).items() if entry.quadrants}
    findings = [name for name in dataset.findings if any(name in shares for shares in runs.values())]
    counts = {name: max(shares[name].count for shares in runs.values() if name in shares) for name in findings}
    if not findings:
        return None
    columns = min(4 if len(runs) < 9 else 5, len(runs))
    rows = ceil(len(runs) / columns)
    names = [wrapped(f"{name} ({count})", 24) for name, count in counts.items()]
    line = 0.19 if max(name.count("\n") for name in names) == 0 else 0.28
    height = min(line * len(findings) + 0.6, _HEIGHT / rows)
    width = COLUMN if len(runs) == 1 else PAGE
    figure = Figure(figsize=(width, rows * height + (0.35 if len(runs) == 1 else 0)), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten().tolist()
    for unused in places[len(runs) :]:
        unused.remove()
    for axis, (label, shares) in zip(places, runs.items(), strict=False):
        known = [place for place, name in enumerate(findings) if name in shares]
        left = np.zeros(len(known))
        for key, (_, paint) in _QUADRANTS.items():
            widths = np.array([100 * getattr(shares[findings[place]], key) for place in known])
            axis.barh(known, widths, 0.72, left, linewidth=0, **paint)
            left += widths
        for place in known:
            of = shares[findings[place]]
            write_number(axis, place, f"{100 * (of.both + of.grounded_only):.0f}")
        if len(runs) > 1:
            axis.set_title(wrapped(label, 20 if columns < 5 else 15), linespacing=1.05)
        name_rows(axis, names, [0, 50, 100], linespacing=1.0)
    for axis in places[max(0, len(runs) - columns) : len(runs)]:
        axis.tick_params(labelbottom=True)
    drawn = [
        key for key in _QUADRANTS if any(getattr(of, key) > 0 for shares in runs.values() for of in shares.values())
    ]
    legend(figure, [Patch(**_QUADRANTS[key][1], linewidth=0, label=_QUADRANTS[key][0]) for key in drawn])
    return figure


def positions(dataset: DatasetAnalysis, look: Mapping[str, Series]) -> Figure | None:
    """Draw a row of nine cells, thrice, per run; None without a scored pair."""
    runs = {label: entry.positions for label, entry in in_order(dataset.runs).items() if entry.positions}
    if not runs:
        return None
    height = min(0.72, (_HEIGHT - 0.3) / len(runs))
    figure = Figure(figsize=(COLUMN, 0.3 + height * len(runs)), layout="constrained")
    axes = figure.subplots(len(runs), 3, squeeze=False)
    keys = {"pointing": "pointing_game", "Dice at 0.5": "dice_fixed", "peaks": None}
    for column, (title, key) in enumerate(keys.items()):
        axes[0, column].set_title(title, loc="center", weight="normal")
        for axis, cells in zip(axes[:, column], runs.values(), strict=True):
            _draw_cells(axis, _values(cells, key))
    if len(runs) > 1:
        for axis, label in zip(axes[:, 0], runs, strict=True):
            name = wrapped(label, 19)
            axis.set_ylabel(name, rotation=0, ha="right", va="center", multialignment="right")
    return figure


def _values(cells: tuple[PositionCell, ...], key: str | None) -> NDArray[np.float64]:
    values = np.full((3, 3), np.nan)
    for cell in cells:
        value = cell.peaks if key is None else cell.scores.get(key, Estimate(None)).value
        if value is not None:
            values[cell.row, cell.column] = 100 * value
    return values


def _draw_cells(axis: Axes, values: NDArray[np.float64]) -> None:
    axis.imshow(values, cmap=_CELLS, vmin=0, vmax=100, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        # White on the dark half of the scale, black on the bright one.
        ink = "white" if value > 55 else "black"
        text = "\u2013" if np.isnan(value) else f"{value:.0f}"
        axis.text(column, row, text, ha="center", va="center", color=ink)
    bare(axis)


def overlays(dataset: DatasetAnalysis, cases: Sequence[ChosenCase], look: Mapping[str, Series]) -> Figure | None:
    """Draw a row per case: the radiograph, then over it the maps of the best runs, seven at most; None without."""
    kept = [entry for entry in dataset.runs if cases and entry.run.label in cases[0].scores]
    kept.sort(key=lambda entry: -(entry.macro["pointing_game"].value or 0.0))
    runs = in_order(kept[:_BESIDE])
    if not runs:
        return None
    # A panel is as wide as high; two lines of text stand above each, the reasons for the case at its left.
    words = 0.95 if len(runs) == 1 else 1.25
    width = COLUMN if len(runs) == 1 else PAGE
    side = (width - words) / (1 + len(runs))
    titles = [wrapped(label, max(10, int(side / 0.075))) if len(runs) > 1 else "" for label in runs]
    top = 0.06 + 0.14 * max(title.count("\n") + 1 for title in titles) if len(runs) > 1 else 0.0
    side = min(side, (_HEIGHT - top) / len(cases) - 0.3)
    words = width - side * (1 + len(runs))
    high = top + (side + 0.3) * len(cases)
    # Everything has its place in inches.
    figure = Figure(figsize=(width, high))
    figure.set_layout_engine("none")
    for row, (case, maps) in enumerate(read_maps([*runs.values()], cases)):
        bottom = high - top - (side + 0.3) * (row + 1) + 0.02
        axes = [
            figure.add_axes(((words + side * column + 0.02) / width, bottom / high, (side - 0.04) / width, side / high))
            for column in range(1 + len(maps))
        ]
        _draw_case(axes, maps)
        place: dict[str, Any] = {"ha": "right", "va": "center", "multialignment": "right", "linespacing": 1.05}
        lines = (case.finding, *case.reasons[:1], case.image_id)
        text = "\n".join(wrapped(line, int(words / 0.072), 3) for line in lines)
        figure.text((words - 0.06) / width, (bottom + side / 2) / high, text, **place)
    for column, title in enumerate(titles, 1):
        middle = (words + side * (column + 0.5)) / width
        figure.text(middle, 1 - 0.03 / high, title, ha="center", va="top", weight="bold", linespacing=1.05)
    return figure


def _draw_case(axes: Sequence[Axes], maps: Sequence[CaseMap]) -> None:
    region = maps[0].pair.region
    height, width = region.shape
    # More pixels are lost at the size of a panel.
    display = shrunk(maps[0].pair.display, 448)
    _draw(axes[0], np.repeat(display[..., None], 3, axis=2), region)
    for axis, shown in zip(axes[1:], maps, strict=True):
        saliency = cv2.resize(shown.saliency, display.shape[::-1], interpolation=cv2.INTER_AREA)
        _draw(axis, tinted(display, np.clip(saliency, 0, 1)), region)
        for x, y in () if shown.peak is None else (shown.peak,):
            for colour, weight in (("black", 2.4), ("white", 1.1)):
                axis.plot(width * x, height * y, "+", color=colour, ms=6, mew=weight)
        hit = shown.scores.pointing_hit
        look = shown.scores.look if hit in (0, 1) else f"hit {hit:.2f}"
        text = f"{look}\nDice {100 * shown.scores.dice:.0f}"
        axis.set_title(text, weight="normal", loc="center", pad=1.5, linespacing=1.0)


def _draw(axis: Axes, picture: NDArray[np.uint8], region: NDArray[np.bool_]) -> None:
    height, width = region.shape
    axis.imshow(picture, extent=(0, width, height, 0), interpolation="bilinear")
    # Padded, so that a region at the border is closed there.
    padded = np.pad(region.astype(np.float32), 1)
    x, y = np.arange(width + 2) - 0.5, np.arange(height + 2) - 0.5
    lines: dict[str, Any] = {"levels": [0.5], "linestyles": "solid"}
    axis.contour(x, y, padded, colors="black", linewidths=1.5, **lines)
    axis.contour(x, y, padded, colors="#42dcee", linewidths=0.8, **lines)
    axis.set(xlim=(0, width), ylim=(height, 0))
    bare(axis)
