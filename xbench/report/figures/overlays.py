"""Maps of several models side by side over the same radiographs, the radiologists' regions outlined."""

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
from numpy.typing import NDArray

from xbench.report.case_choice import CaseScores, ChosenCase
from xbench.report.maps import map_on_grid
from xbench.report.schema import DatasetAnalysis, RunAnalysis
from xbench.report.tables.cells import labels_in_order
from xbench.runs.maps import ScoredPair, ScoredPairs

__all__ = ["overlays", "tinted"]

_PANEL, _LABEL, _TITLE = 1.15, 1.3, 0.35
"""Inches: side of a panel, width of the column of labels, height of the models' names."""
_LONGEST = 448
"""Longest side of a picture in pixels; more is lost at this size."""
_OUTLINE = "#00e5ff"


def overlays(dataset: DatasetAnalysis, cases: Sequence[ChosenCase]) -> Figure | None:
    """A row per case: the radiograph, then each model's map over it; None without cases."""
    kept = [(entry, stored) for entry in dataset.runs if (stored := entry.run.cases()) is not None]
    places = labels_in_order(dataset.runs)
    kept = sorted(kept, key=lambda pair: places.index(pair[0].run.label))
    if not cases or not kept:
        return None
    width, height = _LABEL + _PANEL * (1 + len(kept)), _TITLE + (_PANEL + 0.22) * len(cases)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    figure = Figure(figsize=(width, height), layout=layout)
    rows = figure.subplots(len(cases), 1 + len(kept), squeeze=False)
    for axes, case in zip(rows, cases, strict=True):
        _draw_case(axes.tolist(), kept, case)
    for axis, (entry, _) in zip(rows[0, 1:], kept, strict=True):
        # Above what is said of the first case.
        axis.set_title(f"{fill(entry.run.label, 18, break_long_words=False)}\n{axis.get_title()}", fontsize=7)
    return figure


def tinted(display: NDArray[np.uint8], saliency: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return a radiograph (H, W) tinted by a map (H, W) in [0, 1], as RGB (H, W, 3); a map of 0 leaves it untouched."""
    heat = colormaps["inferno"](saliency)[..., :3] * 255
    weight = 0.65 * saliency[..., None]
    return (display[..., None] * (1 - weight) + heat * weight).round().astype(np.uint8)


def _draw_case(axes: Sequence[Axes], runs: Sequence[tuple[RunAnalysis, ScoredPairs]], chosen: ChosenCase) -> None:
    read = [(entry, stored.read(chosen.image_id, chosen.finding)) for entry, stored in runs]
    # The pairs that are chosen have the same radiograph and region in all runs.
    case = read[0][1]
    height, width = case.region.shape
    display = _shrunk(case.display)
    _draw(axes[0], np.repeat(display[..., None], 3, axis=2), case)
    said = [chosen.finding, *chosen.reasons[:2]]
    text = "\n".join([*(fill(words, 22) for words in said), fill(chosen.image_id, 22)])
    axes[0].set_ylabel(text, rotation=0, ha="right", va="center", multialignment="right", fontsize=6.5, labelpad=4)
    for axis, (entry, own) in zip(axes[1:], read, strict=True):
        saliency = cv2.resize(map_on_grid(entry.run, own), display.shape[::-1], interpolation=cv2.INTER_AREA)
        _draw(axis, tinted(display, np.clip(saliency, 0, 1)), case)
        images = entry.run.images
        row, column = images.image_ids.index(chosen.image_id), entry.run.results.findings.index(chosen.finding)
        axis.plot(width * images.peak_x[row, column], height * images.peak_y[row, column], "+", color="white", ms=5)
        scores = chosen.scores[entry.run.label]
        axis.set_title(f"{_hit(scores)}, Dice {100 * scores.dice:.1f}", fontsize=6.5, pad=3)


def _hit(scores: CaseScores) -> str:
    return scores.look if scores.pointing_hit in (0, 1) else f"hit {scores.pointing_hit:.2f}"


def _draw(axis: Axes, picture: NDArray[np.uint8], case: ScoredPair) -> None:
    height, width = case.region.shape
    axis.imshow(picture, extent=(0, width, height, 0), interpolation="bilinear")
    # Padded, so that a region at the border is closed there.
    region = np.pad(case.region.astype(np.float32), 1)
    x, y = np.arange(width + 2) - 0.5, np.arange(height + 2) - 0.5
    lines: dict[str, Any] = {"levels": [0.5], "linestyles": "solid"}
    axis.contour(x, y, region, colors="black", linewidths=1.5, **lines)
    axis.contour(x, y, region, colors=_OUTLINE, linewidths=0.8, **lines)
    axis.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)


def _shrunk(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    scale = min(1.0, _LONGEST / max(image.shape))
    size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
