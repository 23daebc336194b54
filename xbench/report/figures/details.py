"""Figures with details of each model: quadrants, positions, and maps side by side."""

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
from xbench.report.colors import tinted
from xbench.report.figures.style import COLUMN, PAGE, legend, name_rows, panels, wrapped, write_number
from xbench.report.schema import DatasetAnalysis, in_order
from xbench.runs.images import shrunk

_CELLS = LinearSegmentedColormap.from_list("cells", ["#f4f7fb", "#2b6dff", "#0c2350"]).with_extremes(bad="#eeeeee")
_QUADRANTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "both": ("on the lesion, recognized", {"color": "#00707d"}),
    "grounded_only": ("on the lesion only", {"color": "#74bcc4"}),
    "near_miss": ("recognized, just outside", {"facecolor": "#a85500", "edgecolor": "white", "hatch": "/////"}),
    "elsewhere": ("recognized, elsewhere", {"color": "#ffad42"}),
    "neither": ("both wrong", {"color": "#dde2e7"}),
}
_HEIGHT = 9.0
"""Largest height of a figure in inches."""
_BESIDE = 7  # runs whose maps stand side by side
_PLACES = {"hit": "hit", "near miss": "just outside", "elsewhere": "outside"}


def quadrants(dataset: DatasetAnalysis) -> Figure | None:
    """Draw a panel per run with a stacked bar per finding; None if no finding has both labels and a scored pair."""
    runs = {label: entry.quadrants for label, entry in dataset.by_label.items() if entry.quadrants}
    findings = [name for name in dataset.findings if any(name in shares for shares in runs.values())]
    if not findings:
        return None
    counts = [max(shares[name].count for shares in runs.values() if name in shares) for name in findings]
    names = [wrapped(f"{name} ({count})", 24) for name, count in zip(findings, counts, strict=True)]
    columns = min(4 if len(runs) < 9 else 5, len(runs))
    line = 0.28 if any("\n" in name for name in names) else 0.19
    height = min(line * len(findings) + 0.6, _HEIGHT / ceil(len(runs) / columns))
    figure, axes, _ = panels(len(runs), height + 0.35 * (len(runs) == 1), columns, sharex=True, sharey=True)
    drawn: set[str] = set()
    for axis, (label, shares) in zip(axes, runs.items(), strict=True):
        for row, of in ((row, shares[name]) for row, name in enumerate(findings) if name in shares):
            left = 0.0
            for key, (_, paint) in _QUADRANTS.items():
                if width := 100 * getattr(of, key):
                    drawn.add(key)
                    axis.barh(row, width, 0.72, left, linewidth=0, **paint)
                    left += width
            write_number(axis, row, f"{100 * (of.both + of.grounded_only):.0f}")
        if len(runs) > 1:
            axis.set_title(wrapped(label, 20 if columns < 5 else 15), linespacing=1.05)
        name_rows(axis, names, [0, 50, 100], linespacing=1.0)
    looks = (look for key, look in _QUADRANTS.items() if key in drawn)
    legend(figure, [Patch(**paint, linewidth=0, label=words) for words, paint in looks])
    return figure


def positions(dataset: DatasetAnalysis) -> Figure | None:
    """Draw a row of nine cells, three times, per run; None without a scored pair."""
    runs = {label: entry.positions for label, entry in dataset.by_label.items() if entry.positions}
    if not runs:
        return None
    height = min(0.72, (_HEIGHT - 0.3) / len(runs))
    figure = Figure(figsize=(COLUMN, 0.3 + height * len(runs)), layout="constrained")
    axes = figure.subplots(len(runs), 3, squeeze=False)
    keys = {"pointing": "pointing_game", "Dice at 0.5": "dice_fixed", "peaks": None}
    for column, (title, key) in enumerate(keys.items()):
        axes[0, column].set_title(title, loc="center", weight="normal")
        for axis, cells in zip(axes[:, column], runs.values(), strict=True):
            shares = [cell.peaks if key is None else cell.scores[key].value for cell in cells]
            values = 100 * np.array(shares, np.float64).reshape(3, 3)
            axis.imshow(values, cmap=_CELLS, vmin=0, vmax=100, aspect="auto")
            axis.set_frame_on(False)
            axis.set(xticks=[], yticks=[])
            for (y, x), value in np.ndenumerate(values):
                ink, text = "white" if value > 55 else "black", "\u2013" if np.isnan(value) else f"{value:.0f}"
                axis.text(x, y, text, ha="center", va="center", color=ink)
    for axis, label in zip(axes[:, 0], runs, strict=True):
        if len(runs) > 1:
            _name(axis, wrapped(label, 19))
    return figure


def _name(axis: Axes, name: str, **options: Any) -> None:
    axis.set_ylabel(name, rotation=0, ha="right", va="center", multialignment="right", **options)


def overlays(dataset: DatasetAnalysis, cases: Sequence[ChosenCase]) -> Figure | None:
    """Draw a row per case: the radiograph, then the maps of the best runs, seven at most; None without."""
    kept = [entry for entry in dataset.runs if cases and entry.run.label in cases[0].scores]
    kept.sort(key=lambda entry: -(entry.macro["pointing_game"].value or 0.0))
    runs = in_order(kept[:_BESIDE])
    if not runs:
        return None
    # A panel is as wide as high; two lines of text stand above each, the reasons for the case at its left.
    columns = 1 + len(runs)
    width, words = (PAGE, 1.25) if len(runs) > 1 else (COLUMN, 0.95)
    side = (width - words) / columns
    titles = [wrapped(label, max(10, int(side / 0.075))) for label in runs]
    top = 0.06 + 0.14 * max(title.count("\n") + 1 for title in titles)
    side = min(side, (_HEIGHT - top) / len(cases) - 0.3)
    words = width - side * columns
    high = top + (side + 0.3) * len(cases)
    figure = Figure(figsize=(width, high))
    figure.set_layout_engine("none")
    places = {"left": (words + 0.02) / width, "right": 1 - 0.02 / width, "bottom": 0.02 / high}
    places |= {"top": 1 - (top + 0.28) / high, "wspace": 0.04 / (side - 0.04), "hspace": 0.3 / side}
    axes = figure.subplots(len(cases), columns, squeeze=False, gridspec_kw=places)
    # Of boxes, near misses may lie on the lesion.
    named = not any(entry.run.results.answered for entry in kept)
    for row, (case, maps) in zip(axes, read_maps([*runs.values()], cases), strict=True):
        _draw_case(row, maps)
        lines = (case.finding, *case.reasons[:named], case.image_id)
        text = "\n".join(wrapped(line, int(words / 0.072), 3) for line in lines)
        _name(row[0], text, linespacing=1.05)
    for column, title in enumerate(titles, 1):
        middle = (words + side * (column + 0.5)) / width
        figure.text(middle, 1 - 0.03 / high, title, ha="center", va="top", weight="bold", linespacing=1.05)
    return figure


def _draw_case(axes: Sequence[Axes], maps: Sequence[CaseMap]) -> None:
    region = maps[0].pair.region
    height, width = region.shape
    # A panel shows no more pixels.
    display = shrunk(maps[0].pair.display, 448)
    _draw(axes[0], np.repeat(display[..., None], 3, axis=2), region)
    for axis, shown in zip(axes[1:], maps, strict=True):
        saliency = cv2.resize(shown.saliency, display.shape[::-1], interpolation=cv2.INTER_AREA)
        _draw(axis, tinted(display, np.clip(saliency, 0, 1)), region)
        if shown.peak is not None and shown.answer is None:
            for color, weight in (("black", 2.4), ("white", 1.1)):
                axis.plot(width * shown.peak[0], height * shown.peak[1], "+", color=color, ms=6, mew=weight)
        hit = shown.scores.pointing_hit
        look = _PLACES[shown.scores.look] if hit in (0, 1) else f"{100 * hit:.0f}% inside"
        if shown.peak is None:
            look = "no box" if shown.answer is not None else "no map"
        text = f"{look}\nDice {100 * shown.scores.dice:.0f}"
        axis.set_title(text, weight="normal", loc="center", pad=1.5, linespacing=1.0)


def _draw(axis: Axes, picture: NDArray[np.uint8], region: NDArray[np.bool_]) -> None:
    height, width = region.shape
    axis.imshow(picture, extent=(0, width, height, 0), interpolation="bilinear")
    # Padding closes regions at the border.
    padded = np.pad(region.astype(np.float32), 1)
    x, y = np.arange(width + 2) - 0.5, np.arange(height + 2) - 0.5
    for color, weight in (("black", 1.5), ("#42dcee", 0.8)):
        axis.contour(x, y, padded, colors=color, linewidths=weight, levels=[0.5], linestyles="solid")
    axis.set_frame_on(False)
    axis.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
