"""Pictures for Weights & Biases: radiograph, map and region, with masks and boxes that can be toggled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import wandb
from numpy.typing import NDArray

from xbench.report.case_choice import CaseScores, choose_cases
from xbench.report.maps import map_on_grid
from xbench.report.runs import Run
from xbench.report.schema import RunAnalysis
from xbench.report.statistics.lesions import quadrants
from xbench.report.statistics.sample import Sample
from xbench.runs.maps import ScoredPair


@dataclass(frozen=True)
class Overlay:
    """A scored pair as W&B shows it.

    Attributes:
        case: Radiograph, raw map and region.
        saliency: The map on the region's grid, (H, W) float32 in [0, 1].
        reasons: What it is an example of, such as `Best Dice`.
        scores: What the run scored on it.
        threshold: The one with the largest mean Dice of the finding.
        peak: Where the map is highest, x and y as shares of width and height.
    """

    case: ScoredPair
    saliency: NDArray[np.float32]
    reasons: tuple[str, ...]
    scores: CaseScores
    threshold: float
    peak: tuple[float, float]

    def picture(self) -> NDArray[np.uint8]:
        """Return the radiograph tinted by the map, (H, W, 3) uint8, RGB; where the map is 0 the film is untouched."""
        heat = cv2.applyColorMap((self.saliency * 255).round().astype(np.uint8), cv2.COLORMAP_TURBO)[..., ::-1]
        weight = 0.6 * self.saliency[..., None]
        tinted: NDArray[np.uint8] = (
            (self.case.display[..., None] * (1 - weight) + heat * weight).round().astype(np.uint8)
        )
        return tinted

    def image(self, findings: Sequence[str]) -> wandb.Image:
        """Return the picture with its masks and boxes.

        Args:
            findings: Of the run; a finding's place gives its class, so that all pictures agree on names and colours.
        """
        labels = dict(enumerate(findings, start=1))
        own = 1 + findings.index(self.case.finding)
        at_threshold = {"map_fixed": (_FIXED, 0.5), "map_best": (_BEST, self.threshold)}
        masks = {"region": {"mask_data": self.case.region.astype(np.uint8) * np.uint8(own), "class_labels": labels}}
        for name, (class_id, threshold) in at_threshold.items():
            # float32, as the thresholds of the sweep.
            mask = (self.saliency >= np.float32(threshold)).astype(np.uint8) * np.uint8(class_id)
            masks[name] = {"mask_data": mask, "class_labels": {class_id: _MAP_LABELS[class_id]}}
        scores = {
            "probability": self.scores.probability,
            "dice": self.scores.dice,
            "pointing_hit": self.scores.pointing_hit,
        }
        regions = [_box(corners, own, self.case.finding, scores) for corners in _corners(self.case.region)]
        peak = _box(self._peak_corners(), _PEAK, _MAP_LABELS[_PEAK], scores)
        boxes = {
            "region": {"box_data": regions, "class_labels": labels},
            "peak": {"box_data": [peak], "class_labels": {_PEAK: _MAP_LABELS[_PEAK]}},
        }
        return wandb.Image(self.picture(), caption=self.caption(), masks=masks, boxes=boxes)

    def caption(self) -> str:
        """Return the picture's line of text."""
        scores = self.scores
        return (
            f"{', '.join(self.reasons)} | {self.case.image_id} | {self.case.finding} | p {scores.probability:.2f} | "
            f"Dice {scores.dice:.2f} | {scores.look} | best threshold {self.threshold:.2f}"
        )

    def _peak_corners(self) -> tuple[int, int, int, int]:
        height, width = self.saliency.shape
        reach = max(1, round(0.015 * max(height, width)))
        x, y = int(self.peak[0] * width), int(self.peak[1] * height)
        return max(0, x - reach), max(0, y - reach), min(width, x + reach + 1), min(height, y + reach + 1)


def overlays(run: Run, count: int) -> Iterator[Overlay]:
    """Return the pairs of a run that are most worth a look, up to `count`: see `choose_cases`."""
    # Of all that is said about a run the choice needs no more than which pairs it recognised.
    analysis = RunAnalysis(run, "images", 0, {}, {}, (), {}, (), (), quadrants(Sample.of(run), run))
    cases = run.cases()
    if cases is None:
        return
    row_of = {image_id: row for row, image_id in enumerate(run.images.image_ids)}
    for chosen in choose_cases([analysis], count):
        case = cases.read(chosen.image_id, chosen.finding)
        place = row_of[chosen.image_id], run.results.findings.index(chosen.finding)
        threshold = run.results.grounding.per_class[chosen.finding].dice_best_threshold
        yield Overlay(
            case=case,
            saliency=map_on_grid(run, case),
            reasons=chosen.reasons,
            scores=chosen.scores[run.label],
            threshold=0.5 if threshold is None else threshold,
            peak=(float(run.images.peak_x[place]), float(run.images.peak_y[place])),
        )


# Behind the findings, of which a mask of bytes takes as many.
_FIXED, _BEST, _PEAK = 253, 254, 255
_MAP_LABELS = {_FIXED: "map >= 0.5", _BEST: "map >= best threshold", _PEAK: "maximum of the map"}
_MOST_BOXES = 20


def _corners(region: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Boxes round the separate parts of a region, the largest ones: left, top, right, bottom in pixels, half-open."""
    _, _, parts, _ = cv2.connectedComponentsWithStats(region.astype(np.uint8), connectivity=8)
    largest = sorted(parts[1:].tolist(), key=lambda part: -part[cv2.CC_STAT_AREA])[:_MOST_BOXES]
    return [(left, top, left + width, top + height) for left, top, width, height, _ in largest]


def _box(corners: tuple[int, int, int, int], class_id: int, caption: str, scores: dict[str, float]) -> dict[str, Any]:
    left, top, right, bottom = corners
    return {
        "position": {"minX": left, "minY": top, "maxX": right, "maxY": bottom},
        "domain": "pixel",
        "class_id": class_id,
        "box_caption": caption,
        "scores": scores,
    }
