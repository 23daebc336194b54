"""Lesion by lesion: which ones a map or scored boxes find, and what is found where there is none.

docs/numbers.md has the definitions. Masks and boxes become detections, each with its overlap with every lesion of its
image; what follows is the same for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric

from xbench.metrics.exact import LIMBS, KeepsShape, add_exactly, rounded

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]

RATES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""False positives per image at which FROC reads the sensitivity, those of LUNA16."""
IOUS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Overlaps at which a box counts as found; those of natural images, 0.5 to 0.95, are too strict for X-ray boxes."""
_RECALLS = np.linspace(0, 1, 101)


def components(mask: Mask, least: int = 1) -> list[Mask]:
    """Return the connected parts of a mask (H, W) of at least so many pixels; all eight neighbours connect.

    In the row-major order of their first pixels.
    """
    from scipy.ndimage import label

    labels, count = label(mask, np.ones((3, 3)))
    return [part for number in range(1, count + 1) if np.count_nonzero(part := labels == number) >= least]


def mask_overlaps(detected: Sequence[Mask], lesions: Sequence[Mask]) -> tuple[Floats, Floats]:
    """Return IoU, and the share of each lesion that is covered, of D detected masks and L lesions, each (D, L)."""
    if not len(detected) or not len(lesions):
        return (none := np.zeros((len(detected), len(lesions)))), none
    # Counted mask by mask: as a product of matrices it would keep all cores busy in each of several processes.
    shared = np.array([[np.count_nonzero(one & other) for other in lesions] for one in detected], np.float64)
    sizes = [np.array([np.count_nonzero(mask) for mask in masks]) for masks in (detected, lesions)]
    return shared / np.maximum(sizes[0][:, None] + sizes[1] - shared, 1), shared / np.maximum(sizes[1], 1)


def match(iou: Floats, scores: Floats, least: float) -> NDArray[np.int64]:
    """Return which lesion each detection finds (D,), -1 for none; one detection finds one lesion, and each only once.

    By score, the first of equals first, each takes the free lesion that it overlaps most, at least so much; of equals
    the last, as COCO's tools do.
    """
    found, free = np.full(len(scores), -1), np.ones(iou.shape[1], np.bool_)
    for detection in np.argsort(-scores, kind="stable").tolist():
        candidates = np.flatnonzero(free & (iou[detection] >= min(least, 1 - 1e-10)))
        if len(candidates):
            best = iou[detection, candidates]
            found[detection] = candidates[np.flatnonzero(best == best.max())[-1]]
            free[found[detection]] = False
    return found


class Froc(NamedTuple):
    """Free-response curve; `points` are false positives per image and sensitivity at each distinct score, from 0, 0.

    `sensitivity_at` reads it at `RATES`, and `score` is their mean; None without a lesion. (No dataclass: torchmetrics
    refuses frozen ones.)
    """

    points: list[tuple[float, float]]
    sensitivity_at: dict[float, float]
    score: float | None


def froc(scores: Floats, hits: Mask, lesions: int, images: int, rates: Sequence[float] = RATES) -> Froc | None:
    """Return the curve of detections (N,) that find a lesion (`hits`) or do not, of all images; None without an image.

    A step function: the sensitivity at a rate is the largest at that rate or a lower one. Equal scores enter together.

    Examples:
        >>> froc(np.array([0.9, 0.8, 0.8]), np.array([True, True, False]), lesions=4, images=2).points
        [(0.0, 0.0), (0.0, 0.25), (0.5, 0.5)]
    """
    if not images:
        return None
    if not lesions:
        return Froc([], {}, None)
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=-np.inf if len(scores) else []))
    found, false = (np.concatenate([[0], np.cumsum(which)[ends]]) for which in (hits[order], ~hits[order]))
    points = [(int(f) / images, int(h) / lesions) for f, h in zip(false, found, strict=True)]
    at = {rate: max(sensitivity for other, sensitivity in points if other <= rate) for rate in rates}
    return Froc(points, at, math.fsum(at.values()) / len(at))


def average_precision(scores: Floats, hits: Mask, lesions: int) -> float | None:
    """Return COCO's average precision of detections (N,) of all images, in their order; None without a lesion.

    The mean over recalls 0, 0.01 ... 1 of the highest precision at that recall or a larger one; 0 where it is not
    reached. Equal scores stay in the order given. Lin et al., ECCV 2014.

    Examples:
        >>> average_precision(np.array([0.9, 0.8]), np.array([False, True]), 1)
        0.5
    """
    if not lesions:
        return None
    found = np.cumsum(hits[np.argsort(-scores, kind="stable")])
    precision = found / np.arange(1, len(found) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(found / lesions, _RECALLS, side="left")
    return math.fsum(precision[places[places < len(found)]].tolist()) / len(_RECALLS)


class LesionRecall(KeepsShape):
    """Lesions that a mask finds, and what else it marks, per class.

    A lesion is found if one connected part of the mask covers at least the share `cover` of it. A part that touches no
    lesion is a false positive, in images without the finding as well.

    The state is whole numbers, so neither order nor processes change a bit.

    Args:
        num_classes: C, the number of findings, at least 1.
        cover: Share of a lesion, in (0, 1].
        least: Pixels that a part of the mask must have to count.
    """

    found: Tensor
    lesions: Tensor
    false: Tensor
    images: Tensor

    def __init__(self, num_classes: int, cover: float = 0.5, least: int = 1) -> None:
        super().__init__()
        if num_classes < 1 or not 0 < cover <= 1 or least < 1:
            raise ValueError("there must be a class, a share in (0, 1] and a pixel")
        self.cover, self.least = cover, least
        for name in ("found", "lesions", "false", "images"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, column: int, mask: Mask, lesions: Sequence[Mask]) -> None:
        """Add the mask (H, W) of one image and finding, and its lesions (H, W) each; none where it is absent."""
        parts = components(mask, self.least)
        _, covered = mask_overlaps(parts, lesions)
        self.found[column] += int((covered.max(axis=0, initial=0) >= self.cover).sum())
        self.lesions[column] += len(lesions)
        self.false[column] += int((covered.max(axis=1, initial=0) == 0).sum())
        self.images[column] += 1

    def compute(self) -> dict[str, Tensor]:
        """Return `lesion_recall` and `fp_per_image` (C,) float64, NaN without a lesion or image, and the counts."""
        counts = {name: getattr(self, name) for name in ("found", "lesions", "false", "images")}
        recall, false = (counts[a].double() / counts[b] for a, b in (("found", "lesions"), ("false", "images")))
        return {"lesion_recall": recall, "fp_per_image": false, **counts}


class FalseAlarms(KeepsShape):
    """What maps of absent findings light up at a threshold on their absolute scale, per class.

    The threshold must come from elsewhere: another split, or a declared 0.5 of probabilities. Maps stretched to [0, 1]
    image by image light up always, so take those of a model that declares a `map_scale`. The state is exact, so
    neither order nor processes change a bit.

    Args:
        thresholds: Of each class, on the scale of its maps.
    """

    alarms: Tensor
    images: Tensor
    parts: Tensor
    area: Tensor

    def __init__(self, thresholds: Sequence[float]) -> None:
        super().__init__()
        if not thresholds or not all(map(math.isfinite, thresholds)):
            raise ValueError("there must be a finite threshold for each class")
        self.thresholds = tuple(thresholds)
        for name in ("alarms", "images", "parts"):
            self.add_state(name, torch.zeros(len(thresholds), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("area", torch.zeros(len(thresholds), LIMBS, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, column: int, saliency: NDArray[np.floating[Any]]) -> None:
        """Add the map (H, W), on the evaluation grid and not normalised, of a finding that is absent on the image."""
        lit = saliency >= self.thresholds[column]
        self.images[column] += 1
        self.alarms[column] += int(lit.any())
        self.parts[column] += len(components(lit))
        add_exactly(self.area[column], np.count_nonzero(lit) / lit.size)

    def compute(self) -> dict[str, Tensor]:
        """Return, (C,) float64 and NaN without an image, the means of three per image, and the counts.

        `false_alarm_rate`, the share with any pixel at the threshold or above; `area_lit`, the share of the grid that
        is; and `parts_per_image`, its connected parts.
        """
        area = torch.tensor([rounded(total) for total in self.area], dtype=torch.float64, device=self.device)
        rates = {
            name: total.double() / self.images
            for name, total in (("false_alarm_rate", self.alarms), ("area_lit", area), ("parts_per_image", self.parts))
        }
        return {**rates, "alarms": self.alarms, "images": self.images}


class LesionDetections(Metric):
    """FROC and COCO's mean average precision of scored detections, boxes or connected parts of maps, per class.

    Detections of all images are kept with what they find at each overlap, and put in the order of images before
    anything is counted, so that neither the order of updates nor processes change a bit.

    Args:
        num_classes: C, the number of findings, at least 1.
        ious: Overlaps at which a detection finds a lesion.
        most: How many detections of an image count, those with the highest scores, as in COCO.
    """

    full_state_update = False
    detections: list[Tensor]
    images: Tensor
    lesions: Tensor

    def __init__(self, num_classes: int, ious: Sequence[float] = IOUS, most: int = 100) -> None:
        super().__init__()
        if num_classes < 1 or not ious or not all(0 < iou <= 1 for iou in ious) or most < 1:
            raise ValueError("there must be a class, overlaps in (0, 1] and a detection")
        self.ious, self.most = tuple(ious), most
        self.add_state("detections", [], dist_reduce_fx="cat")
        for name in ("images", "lesions"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, index: int, column: int, scores: Floats, iou: Floats) -> None:
        """Add the detections of one image and finding: scores (D,), IoU with its L lesions (D, L), and its index.

        Of boxes, the IoU is that of `xbench.metrics.boxes.pairwise_iou`, of masks that of `mask_overlaps`.
        """
        kept = np.argsort(-scores, kind="stable")[: self.most]
        scores, iou = scores[kept], iou[kept]
        rows = np.zeros((len(scores), 4 + len(self.ious)))
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = column, index, np.arange(len(scores)), scores
        for place, least in enumerate(self.ious, 4):
            rows[:, place] = match(iou, scores, least) >= 0
        self.detections.append(torch.from_numpy(rows).to(self.device))
        self.images[column] += 1
        self.lesions[column] += iou.shape[1]

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather the states of all processes, with no row from one that saw no image, in the shape of the others."""
        if not len(self.detections):
            self.detections = [torch.zeros(0, 4 + len(self.ious), dtype=torch.float64, device=self.device)]
        super().sync(*args, **kwargs)

    def compute(self) -> list[Mapping[str, Any]]:
        """Return per class and overlap `froc` (a `Froc`) and `ap`, None if undefined, and `map`, the mean `ap`."""
        parts = self.detections if isinstance(self.detections, list) else [self.detections]
        rows = torch.cat(parts).cpu().numpy() if parts else np.zeros((0, 4 + len(self.ious)))
        rows = rows[np.lexsort(rows[:, 2::-1].T)]
        found: list[Mapping[str, Any]] = []
        for column, (images, lesions) in enumerate(zip(self.images.tolist(), self.lesions.tolist(), strict=True)):
            mine = rows[rows[:, 0] == column]
            hits = {iou: mine[:, 4 + place] > 0 for place, iou in enumerate(self.ious)}
            ap = {iou: average_precision(mine[:, 3], hit, lesions) for iou, hit in hits.items()}
            known = [value for value in ap.values() if value is not None]
            curves = {iou: froc(mine[:, 3], hit, lesions, images) for iou, hit in hits.items()}
            found.append({"froc": curves, "ap": ap, "map": math.fsum(known) / len(known) if known else None})
        return found
