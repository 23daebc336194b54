"""Maps of several models side by side over the same radiographs, the radiologists' regions outlined."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import cv2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from xbench.report.cases import CaseMap, ChosenCase, read_maps, tinted
from xbench.report.figures.style import bare
from xbench.report.schema import DatasetAnalysis, in_order
from xbench.runs.maps import shrunk


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
