"""What the page's scripts draw, as plain values for JSON: charts, and cases with their pictures."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.report.cases import CaseMap, ChosenCase, choose_cases, read_maps
from xbench.report.names import model_order
from xbench.report.schema import NUMBERS, Analysis, Estimate, RunAnalysis, in_order
from xbench.report.statistics.analyse import Progress
from xbench.runs.maps import shrunk


def chart_data(analysis: Analysis) -> dict[str, Any]:
    """Return everything that the charts show; what does not exist is None, never NaN."""
    models = {label: run.run.model for label, run in in_order(analysis.runs).items()}
    # Each of the paper's seven models has a colour of its own in the style sheet; three are left for others.
    others = [model for model in dict.fromkeys(models.values()) if model_order(model) >= 7]
    places = {model: 7 + number % 3 for number, model in enumerate(others)}
    return {
        "models": list(models),
        "colours": [places.get(model, model_order(model)) for model in models.values()],
        "numbers": {key: {"title": number.title, "meaning": number.meaning} for key, number in NUMBERS.items()},
        "datasets": [
            {
                "title": analysis.heading(dataset),
                "findings": dataset.findings,
                "runs": [_run(run) for run in dataset.runs],
                "references": [
                    {"title": reference.title, "kind": reference.kind, "macro": _plain(reference.macro)}
                    for reference in dataset.references
                ],
            }
            for dataset in analysis.datasets
        ],
        "correlations": [
            # The page has words of its own for all datasets together.
            {**_plain(line), "dataset": None if line.dataset is None else title}
            for scope in _SCOPES
            for line, title in analysis.lines(scope)
            if line.points
        ],
    }


_SCOPES: tuple[Literal["models", "findings"], ...] = ("models", "findings")


def _run(run: RunAnalysis) -> dict[str, Any]:
    return {
        "label": run.run.label,
        "macro": _plain(run.macro),
        "thresholds": [round(value, 4) for value in run.run.results.grounding.thresholds],
        "curve": _plain(run.dice_curve),
        "areas": _plain(run.areas),
        "positions": _plain(run.positions),
        "quadrants": _plain({finding: shares for finding, shares in run.quadrants.items() if shares.count}),
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: estimates as [value, low, high], other parts of an analysis by field."""
    if isinstance(value, Estimate):
        return [_plain(number) for number in (value.value, value.low, value.high)]
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def case_data(analysis: Analysis, count: int, progress: Progress | None = None) -> dict[str, Any]:
    """Return up to `count` chosen cases of every dataset, and their radiographs, each once.

    Radiographs are JPEG (10 to 40 kB each), maps grey PNG (about 6 kB a model), regions SVG paths. `progress` is called
    for every case and after the last.
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
                radiograph = shrunk(maps[0].pair.display, 448)
                pictures[picture] = _base64(".jpg", radiograph, (cv2.IMWRITE_JPEG_QUALITY, 78))
            shown.append({**_case(case, maps), "dataset": title, "picture": picture})
    if progress is not None:
        progress(total, total, "done")
    return {"pictures": pictures, "cases": shown}


def _case(case: ChosenCase, maps: Sequence[CaseMap]) -> dict[str, Any]:
    region = maps[0].pair.region
    return {
        "image": case.image_id,
        "finding": case.finding,
        "reasons": case.reasons,
        "region": _outline(region),
        "size": [*reversed(region.shape)],
        "panels": [_panel(shown) for shown in maps],
    }


def _panel(shown: CaseMap) -> dict[str, Any]:
    scores = shown.scores
    # Models draw on 32 x 32 cells or fewer, and 85 steps of grey compress to two thirds and look the same.
    grey = (np.round(shrunk(shown.saliency, 112) * 85) * 3).astype(np.uint8)
    return {
        "model": shown.run.run.label,
        "hit": round(scores.pointing_hit, 4),
        "look": scores.look,
        "dice": round(scores.dice, 4),
        "probability": float(f"{scores.probability:.4g}"),
        "recognised": scores.recognised,
        "peak": [round(share, 4) for share in shown.peak],
        "map": _base64(".png", grey, (cv2.IMWRITE_PNG_COMPRESSION, 9)),
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
