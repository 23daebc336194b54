"""Cases as the page shows them: radiographs as JPEG, maps as grey PNG, regions as SVG paths."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.report.case_choice import ChosenCase, choose_cases
from xbench.report.maps import map_on_grid
from xbench.report.schema import Analysis, RunAnalysis
from xbench.report.statistics.analyse import Progress
from xbench.report.tables.cells import heading
from xbench.runs.maps import ScoredPair, ScoredPairs

__all__ = ["case_data"]

_RADIOGRAPH, _MAP = 448, 112
"""Longest sides in pixels: of radiographs, and of maps, which models draw on 32 x 32 cells or fewer."""

_LEVELS = 85
"""Steps of grey in a map; 0 to 255 in steps of 3 compress to two thirds and look the same."""

_JPEG_QUALITY = 78


def case_data(analysis: Analysis, count: int, progress: Progress | None = None) -> dict[str, Any]:
    """Return up to `count` chosen cases of every dataset, and their radiographs, each once, for JSON.

    A case takes 10 to 40 kB for the radiograph and about 6 kB a model.

    Args:
        analysis: The report.
        count: Cases of a dataset.
        progress: Called before every case and after the last.
    """
    chosen = [(dataset, case) for dataset in analysis.datasets for case in choose_cases(dataset.runs, count)]
    pictures: dict[str, str] = {}
    cases = []
    kept: dict[str, list[tuple[RunAnalysis, ScoredPairs]]] = {}
    for done, (dataset, case) in enumerate(chosen):
        title = heading(dataset, analysis)
        if progress is not None:
            progress(done, len(chosen), f"pictures of {title}")
        if title not in kept:
            kept[title] = [(run, stored) for run in dataset.runs if (stored := run.run.cases()) is not None]
        cases.append(_case(kept[title], title, case, pictures))
    if progress is not None:
        progress(len(chosen), len(chosen), "done")
    return {"pictures": pictures, "cases": cases}


def _case(
    runs: Sequence[tuple[RunAnalysis, ScoredPairs]], dataset: str, chosen: ChosenCase, pictures: dict[str, str]
) -> dict[str, Any]:
    read = [(run, cases.read(chosen.image_id, chosen.finding)) for run, cases in runs]
    # The pairs that are chosen have the same radiograph and region in all runs.
    shown = read[0][1]
    picture = f"{dataset}/{chosen.image_id}"
    if picture not in pictures:
        pictures[picture] = _base64(".jpg", _shrunk(shown.display, _RADIOGRAPH), cv2.IMWRITE_JPEG_QUALITY)
    height, width = shown.region.shape
    return {
        "dataset": dataset,
        "image": chosen.image_id,
        "finding": chosen.finding,
        "reasons": chosen.reasons,
        "picture": picture,
        "region": _outline(shown.region),
        "size": [width, height],
        "panels": [_panel(run, case, chosen) for run, case in read],
    }


def _panel(run: RunAnalysis, case: ScoredPair, chosen: ChosenCase) -> dict[str, Any]:
    scores, images = chosen.scores[run.run.label], run.run.images
    place = images.image_ids.index(chosen.image_id), run.run.results.findings.index(chosen.finding)
    return {
        "model": run.run.label,
        "hit": round(scores.pointing_hit, 4),
        "look": scores.look,
        "dice": round(scores.dice, 4),
        "probability": float(f"{scores.probability:.4g}"),
        "recognised": scores.recognised,
        "peak": [round(float(images.peak_x[place]), 4), round(float(images.peak_y[place]), 4)],
        "map": _base64(".png", _grey(map_on_grid(run.run, case)), cv2.IMWRITE_PNG_COMPRESSION),
    }


def _grey(saliency: NDArray[np.float32]) -> NDArray[np.uint8]:
    steps = np.round(_shrunk(saliency, _MAP) * _LEVELS)
    return (steps * (255 // _LEVELS)).astype(np.uint8)


def _shrunk(image: NDArray[Any], longest: int) -> NDArray[Any]:
    height, width = image.shape
    scale = longest / max(height, width)
    if scale >= 1:
        return image
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def _outline(region: NDArray[np.bool_]) -> str:
    """Draw the border of a region (H, W) along the edges of its pixels, as a path in pixels of the grid."""
    # OpenCV draws through the centres of pixels. At twice the size, with a border, halving leads to the nearest edge.
    twice = np.pad(region.astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1), 1)
    contours, _ = cv2.findContours(twice, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    # Half a pixel is less than a screen shows, and most of what a ragged outline weighs.
    tolerance = max(1.0, max(region.shape) / 224) / 2
    smooth = [cv2.approxPolyDP(contour // 2, tolerance, True)[:, 0] for contour in contours]
    return "".join("M" + "L".join(f"{x} {y}" for x, y in points) + "Z" for points in smooth)


_OPTIONS = {cv2.IMWRITE_JPEG_QUALITY: _JPEG_QUALITY, cv2.IMWRITE_PNG_COMPRESSION: 9}


def _base64(ending: str, image: NDArray[np.uint8], option: int) -> str:
    done, encoded = cv2.imencode(ending, image, (option, _OPTIONS[option]))
    if not done:
        raise ValueError(f"a picture of {image.shape} {image.dtype} cannot be encoded as {ending}")
    return base64.b64encode(encoded.tobytes()).decode("ascii")
