"""Cases as the page shows them: radiographs as JPEG, maps as grey PNG, regions as SVG paths."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.report.case_choice import ChosenCase, choose_cases
from xbench.report.case_pictures import CaseMap, read_maps
from xbench.report.schema import Analysis
from xbench.report.statistics.analyse import Progress
from xbench.runs.maps import shrunk

_RADIOGRAPH, _MAP = 448, 112
"""Longest sides in pixels: of radiographs, and of maps, which models draw on 32 x 32 cells or fewer."""

_LEVELS = 85
"""Steps of grey in a map; 0 to 255 in steps of 3 compress to two thirds and look the same."""

_JPEG = (cv2.IMWRITE_JPEG_QUALITY, 78)
_PNG = (cv2.IMWRITE_PNG_COMPRESSION, 9)


def case_data(analysis: Analysis, count: int, progress: Progress | None = None) -> dict[str, Any]:
    """Return up to `count` chosen cases of every dataset, and their radiographs, each once, for JSON.

    A case takes 10 to 40 kB for the radiograph and about 6 kB a model. `progress` is called for every case and
    after the last.
    """
    chosen = [(dataset, choose_cases(dataset.runs, count)) for dataset in analysis.datasets]
    total = sum(len(cases) for _, cases in chosen)
    pictures: dict[str, str] = {}
    shown: list[dict[str, Any]] = []
    for dataset, cases in chosen:
        title = analysis.heading(dataset)
        for case, maps in read_maps(dataset.runs, cases):
            if progress is not None:
                progress(len(shown), total, f"pictures of {title}")
            picture = f"{title}/{case.image_id}"
            if picture not in pictures:
                pictures[picture] = _base64(".jpg", shrunk(maps[0].pair.display, _RADIOGRAPH), _JPEG)
            shown.append({**_case(case, maps), "dataset": title, "picture": picture})
    if progress is not None:
        progress(total, total, "done")
    return {"pictures": pictures, "cases": shown}


def _case(case: ChosenCase, maps: Sequence[CaseMap]) -> dict[str, Any]:
    region = maps[0].pair.region
    height, width = region.shape
    return {
        "image": case.image_id,
        "finding": case.finding,
        "reasons": case.reasons,
        "region": _outline(region),
        "size": [width, height],
        "panels": [_panel(shown) for shown in maps],
    }


def _panel(shown: CaseMap) -> dict[str, Any]:
    scores = shown.scores
    grey = (np.round(shrunk(shown.saliency, _MAP) * _LEVELS) * (255 // _LEVELS)).astype(np.uint8)
    return {
        "model": shown.run.run.label,
        "hit": round(scores.pointing_hit, 4),
        "look": scores.look,
        "dice": round(scores.dice, 4),
        "probability": float(f"{scores.probability:.4g}"),
        "recognised": scores.recognised,
        "peak": [round(share, 4) for share in shown.peak],
        "map": _base64(".png", grey, _PNG),
    }


def _outline(region: NDArray[np.bool_]) -> str:
    """Draw the border of a region (H, W) along the edges of its pixels, as a path in pixels of the grid."""
    # OpenCV draws through the centres of pixels. At twice the size, with a border, halving leads to the nearest edge.
    twice = np.pad(region.astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1), 1)
    contours, _ = cv2.findContours(twice, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    # Half a pixel is less than a screen shows, and most of what a ragged outline weighs.
    tolerance = max(1.0, max(region.shape) / 224) / 2
    smooth = [cv2.approxPolyDP(contour // 2, tolerance, True)[:, 0] for contour in contours]
    return "".join("M" + "L".join(f"{x} {y}" for x, y in points) + "Z" for points in smooth)


def _base64(ending: str, image: NDArray[np.uint8], options: tuple[int, int]) -> str:
    done, encoded = cv2.imencode(ending, image, options)
    if not done:
        raise ValueError(f"a picture of {image.shape} {image.dtype} cannot be encoded as {ending}")
    return base64.b64encode(encoded.tobytes()).decode("ascii")
