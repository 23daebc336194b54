"""Pictures for Weights & Biases: radiograph, map and region, with masks and boxes that can be toggled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import wandb
from numpy.typing import NDArray

from xbench.report.case_choice import ChosenCase, choose_cases
from xbench.report.case_pictures import CaseMap, read_maps, tinted
from xbench.report.runs import Run
from xbench.report.schema import RunAnalysis
from xbench.report.statistics.lesions import quadrants
from xbench.report.statistics.sample import Sample
from xbench.runs.results import Results

# Behind the findings, of which a mask of bytes takes as many.
_FIXED, _BEST, _PEAK = 253, 254, 255
_MAP_LABELS = {_FIXED: "map >= 0.5", _BEST: "map >= best threshold", _PEAK: "maximum of the map"}
_MOST_BOXES = 20


def read_chosen_maps(run: Run, count: int) -> list[tuple[ChosenCase, CaseMap]]:
    """Return up to `count` pairs of a run that are most worth a look (see `choose_cases`), with their maps."""
    # The choice needs no more of an analysis than which pairs were recognised.
    analysis = RunAnalysis(run, "images", 0, {}, {}, (), {}, (), (), quadrants(Sample.of(run), run))
    return [(case, shown) for case, (shown,) in read_maps([analysis], choose_cases([analysis], count))]


def overlay(case: ChosenCase, shown: CaseMap, results: Results) -> wandb.Image:
    """Return the radiograph tinted by the map, with its masks and boxes.

    A finding's place in the results gives its class, so that all pictures agree on names and colours.
    """
    labels = dict(enumerate(results.findings, start=1))
    own = 1 + results.findings.index(case.finding)
    region, scores = shown.pair.region, shown.scores
    best = results.grounding.per_class[case.finding].dice_best_threshold
    best = 0.5 if best is None else best
    masks = {"region": {"mask_data": region.astype(np.uint8) * np.uint8(own), "class_labels": labels}}
    for name, class_id, threshold in (("map_fixed", _FIXED, 0.5), ("map_best", _BEST, best)):
        # float32, as the thresholds of the sweep.
        mask = (shown.saliency >= np.float32(threshold)).astype(np.uint8) * np.uint8(class_id)
        masks[name] = {"mask_data": mask, "class_labels": {class_id: _MAP_LABELS[class_id]}}
    numbers = {"probability": scores.probability, "dice": scores.dice, "pointing_hit": scores.pointing_hit}
    boxes = {
        "region": {
            "box_data": [_box(corners, own, case.finding, numbers) for corners in _corners(region)],
            "class_labels": labels,
        },
        "peak": {
            "box_data": [_box(_peak_corners(shown), _PEAK, _MAP_LABELS[_PEAK], numbers)],
            "class_labels": {_PEAK: _MAP_LABELS[_PEAK]},
        },
    }
    caption = (
        f"{', '.join(case.reasons)} | {case.image_id} | {case.finding} | p {scores.probability:.2f} | "
        f"Dice {scores.dice:.2f} | {scores.look} | best threshold {best:.2f}"
    )
    return wandb.Image(tinted(shown.pair.display, shown.saliency), caption=caption, masks=masks, boxes=boxes)


def _corners(region: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Return boxes round the largest separate parts of a region: left, top, right, bottom in pixels, half-open."""
    _, _, parts, _ = cv2.connectedComponentsWithStats(region.astype(np.uint8), connectivity=8)
    largest = sorted(parts[1:].tolist(), key=lambda part: -part[cv2.CC_STAT_AREA])[:_MOST_BOXES]
    return [(left, top, left + width, top + height) for left, top, width, height, _ in largest]


def _peak_corners(shown: CaseMap) -> tuple[int, int, int, int]:
    height, width = shown.saliency.shape
    reach = max(1, round(0.015 * max(height, width)))
    x, y = int(shown.peak[0] * width), int(shown.peak[1] * height)
    return max(0, x - reach), max(0, y - reach), min(width, x + reach + 1), min(height, y + reach + 1)


def _box(
    corners: tuple[int, int, int, int], class_id: int, caption: str, scores: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "position": dict(zip(("minX", "minY", "maxX", "maxY"), corners, strict=True)),
        "domain": "pixel",
        "class_id": class_id,
        "box_caption": caption,
        "scores": scores,
    }
