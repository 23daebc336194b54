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

        Of boxes, the IoU is that of `xbench.scoring.boxes.pairwise_iou`, of masks that of `mask_overlaps`.
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
