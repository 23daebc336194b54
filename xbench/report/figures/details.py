"""Figures of one dataset that look closer at each model: quadrants, positions, and maps side by side."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import cv2
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from numpy.typing import NDArray

from xbench.report.cases import CaseMap, ChosenCase, read_maps, tinted
from xbench.report.figures.style import COLUMN, PAGE, bare, grid, legend
from xbench.report.schema import DatasetAnalysis, Estimate, PositionCell, in_order
from xbench.runs.maps import shrunk

_QUADRANTS = {
    "both": ("Both", "#009e73"),
    "near_miss": ("Recognised, near miss", "#f0e442"),
    "elsewhere": ("Recognised, elsewhere", "#e69f00"),
    "grounded_only": ("Grounded only", "#56b4e9"),
    "neither": ("Neither", "#d0d0d0"),
}


def quadrants(dataset: DatasetAnalysis) -> Figure | None:
    """Draw a panel per model, a stacked bar per finding; None where no finding has both labels and a scored pair."""
    runs = {label: entry.quadrants for label, entry in in_order(dataset.runs).items() if entry.quadrants}
    findings = [name for name in dataset.findings if any(name in shares for shares in runs.values())]
    counts = {name: max(shares[name].count for shares in runs.values() if name in shares) for name in findings}
    if not findings:
        return None
    columns = min(4 if len(runs) < 9 else 5, len(runs))
    width = COLUMN if len(runs) == 1 else PAGE
    figure, axes = grid(len(runs), columns, 0.75 + 0.14 * len(findings), width, sharex=True, sharey=True)
    for axis, (label, shares) in zip(axes, runs.items(), strict=True):
        known = [place for place, name in enumerate(findings) if name in shares]
        left = np.zeros(len(known))
        for key, (_, colour) in _QUADRANTS.items():
            widths = np.array([100 * getattr(shares[findings[place]], key) for place in known])
            axis.barh(known, widths, 0.78, left, color=colour)
            left += widths
        axis.set_title(fill(label, 15, break_long_words=False))
        axis.set(xlim=(0, 100), ylim=(len(findings) - 0.5, -0.5))
        axis.set_yticks(range(len(findings)), [f"{name} ({count})" for name, count in counts.items()])
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
    for axis in axes[-columns:]:
        axis.set_xlabel("Share (%)")
        axis.tick_params(labelbottom=True)
    legend(figure, [Patch(color=colour, label=name) for name, colour in _QUADRANTS.values()])
    return figure


def positions(dataset: DatasetAnalysis) -> Figure | None:
    """Draw a row of heat maps per model; None without a scored pair."""
    runs = {label: entry.positions for label, entry in in_order(dataset.runs).items() if entry.positions}
    if not runs:
        return None
    figure = Figure(figsize=(COLUMN, 0.3 + 0.85 * len(runs)), layout="constrained")
    axes = figure.subplots(len(runs), 3, squeeze=False)
    keys = {"Pointing game": "pointing_game", "Dice at 0.5": "dice_fixed", "Map peaks": None}
    for column, (title, key) in enumerate(keys.items()):
        axes[0, column].set_title(title)
        maps = np.stack([_values(cells, key) for cells in runs.values()])
        top = 100.0 if column == 0 else max(1.0, float(np.nanmax(maps))) if not np.isnan(maps).all() else 1.0
        for axis, values in zip(axes[:, column], maps, strict=True):
            _heat_map(axis, values, top)
    for axis, label in zip(axes[:, 0], runs, strict=True):
        name = fill(label, 16, break_long_words=False)
        axis.set_ylabel(name, rotation=0, ha="right", va="center", multialignment="right")
    return figure


def _values(cells: tuple[PositionCell, ...], key: str | None) -> NDArray[np.float64]:
    values = np.full((3, 3), np.nan)
    for cell in cells:
        value = cell.peaks if key is None else cell.scores.get(key, Estimate(None)).value
        if value is not None:
            values[cell.row, cell.column] = 100 * value
    return values


def _heat_map(axis: Axes, values: NDArray[np.float64], top: float) -> None:
    colours = colormaps["cividis"].with_extremes(bad="0.9")
    axis.imshow(values, cmap=colours, vmin=0, vmax=top, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        # White on the dark half of the scale, black on the bright one.
        ink = "black" if np.isnan(value) or value > 0.55 * top else "white"
        text = "\u2013" if np.isnan(value) else f"{value:.0f}"
        axis.text(column, row, text, ha="center", va="center", color=ink, fontsize=6.5)
    bare(axis)


def overlays(dataset: DatasetAnalysis, cases: Sequence[ChosenCase]) -> Figure | None:
    """Draw a row per case: the radiograph, then each model's map over it; None without cases."""
    runs = in_order(dataset.runs)
    labels = [label for label, entry in runs.items() if entry.run.cases() is not None]
    if not cases or not labels:
        return None
    # Inches: a panel is 1.15 wide and high, the column of labels 1.3 wide, the models' names are 0.35 high.
    size = (1.3 + 1.15 * (1 + len(labels)), 0.35 + (1.15 + 0.22) * len(cases))
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0))
    rows = figure.subplots(len(cases), 1 + len(labels), squeeze=False)
    for axes, (case, maps) in zip(rows, read_maps([*runs.values()], cases), strict=True):
        _draw_case(axes.tolist(), case, maps)
    for axis, label in zip(rows[0, 1:], labels, strict=True):
        # Above the scores of the first case.
        axis.set_title(f"{fill(label, 18, break_long_words=False)}\n{axis.get_title()}", fontsize=7)
    return figure


def _draw_case(axes: Sequence[Axes], case: ChosenCase, maps: Sequence[CaseMap]) -> None:
    region = maps[0].pair.region
    height, width = region.shape
    # More pixels are lost at the size of a panel.
    display = shrunk(maps[0].pair.display, 448)
    _draw(axes[0], np.repeat(display[..., None], 3, axis=2), region)
    text = "\n".join(fill(words, 22) for words in (case.finding, *case.reasons[:2], case.image_id))
    axes[0].set_ylabel(text, rotation=0, ha="right", va="center", multialignment="right", fontsize=6.5, labelpad=4)
    for axis, shown in zip(axes[1:], maps, strict=True):
        saliency = cv2.resize(shown.saliency, display.shape[::-1], interpolation=cv2.INTER_AREA)
        _draw(axis, tinted(display, np.clip(saliency, 0, 1)), region)
        axis.plot(width * shown.peak[0], height * shown.peak[1], "+", color="white", ms=5)
        hit = shown.scores.pointing_hit
        said = shown.scores.look if hit in (0, 1) else f"hit {hit:.2f}"
        axis.set_title(f"{said}, Dice {100 * shown.scores.dice:.1f}", fontsize=6.5, pad=3)


def _draw(axis: Axes, picture: NDArray[np.uint8], region: NDArray[np.bool_]) -> None:
    height, width = region.shape
    axis.imshow(picture, extent=(0, width, height, 0), interpolation="bilinear")
    # Padded, so that a region at the border is closed there.
    padded = np.pad(region.astype(np.float32), 1)
    x, y = np.arange(width + 2) - 0.5, np.arange(height + 2) - 0.5
    lines: dict[str, Any] = {"levels": [0.5], "linestyles": "solid"}
    axis.contour(x, y, padded, colors="black", linewidths=1.5, **lines)
    axis.contour(x, y, padded, colors="#00e5ff", linewidths=0.8, **lines)
    axis.set(xlim=(0, width), ylim=(height, 0))
    bare(axis)
