"""Detection of lesions (docs/protocols.md): parts of a map, or answered boxes, ranked by their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.protocols.base import Group, Number, PairTruth, PairView, Protocol, RunView, mean, of_group
from xbench.scoring.protocols.common import SIZES, Mask, components, mask_overlaps, sizes_of, stretched

Floats = NDArray[np.float64]

RATES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
"""False positives per image at which FROC reads the sensitivity, as in LUNA16."""
IOUS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Overlaps at which a box is found; those for natural images, 0.5 to 0.95, are too strict for X-ray boxes."""
MOST = 100  # detections per pair that count, those with the highest scores, as in COCO
_FROC_IOU = 0.3
_RATE = 1.0
_RECALLS = np.linspace(0, 1, 101)


def match(iou: Floats, scores: Floats, least: float) -> NDArray[np.int64]:
    """Return the lesion that each detection finds (D,), -1 for none; each lesion is found at most once.

    By score, each detection takes the free lesion with the largest overlap, the last if tied, like COCO.
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
    """Free-response curve of false positives per image and sensitivity. (Torchmetrics rejects frozen dataclasses.)"""

    points: list[tuple[float, float]]  # at each distinct score, from 0, 0
    sensitivity_at: dict[float, float]  # by rate
    score: float | None  # mean of these; None without a lesion


def froc(scores: Floats, hits: Mask, lesions: int, images: int) -> Froc | None:
    """Return the curve of detections (N,) of all images; `hits` are those that find a lesion. None without an image.

    A step function: the sensitivity at a rate is the largest at that rate or below. Equal scores enter together.

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
    at = {rate: max(sensitivity for other, sensitivity in points if other <= rate) for rate in RATES}
    return Froc(points, at, mean(at.values()))


def average_precision(scores: Floats, hits: Mask, lesions: int) -> float | None:
    """Return COCO's average precision of detections (N,) of all images, in their order; None without a lesion.

    The mean over recalls 0, 0.01 ... 1 of the highest precision at that recall or above, 0 if it is not reached. Ties
    stay in the given order. Lin et al., ECCV 2014.

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


def ranked(scores: Floats, iou: Floats, areas: Floats) -> dict[str, Any]:
    """Return the columns of a pair from scores (D,), IoU (D, L) and areas of lesions (L,): detections by score."""
    kept = np.argsort(-scores, kind="stable")[:MOST]
    scores, iou, sizes = scores[kept], iou[kept], sizes_of(areas)
    columns: dict[str, Any] = {"lesions": len(areas), "scores": scores.tolist()}
    for least in IOUS:
        lesion = match(iou, scores, least)
        columns[_hits(least)] = (lesion >= 0).tolist()
        if least == _FROC_IOU:
            columns["sizes"] = [int(sizes[place]) if place >= 0 else -1 for place in lesion.tolist()]
    return columns | {f"lesions_{size}": int((sizes == place).sum()) for place, size in enumerate(SIZES)}


def detection_numbers(group: Group) -> dict[str, float | None]:
    """Return the numbers of one finding from its pairs; None without a lesion.

    `froc`: mean sensitivity at 1/8 to 8 false detections per image, at an IoU of 0.3; `sensitivity`: that at one false
    detection per image, and by size; `ap_30`, `ap_50`: COCO's average precision; `map`: its mean over IoU 0.1 to 0.5.
    """
    lesions, images = int(group["lesions"].sum()), len(group)
    scores = _joined(group["scores"], np.float64)
    hits = {iou: _joined(group[_hits(iou)], np.bool_) for iou in IOUS}
    precisions = {iou: average_precision(scores, hit, lesions) for iou, hit in hits.items()}
    curve = froc(scores, hits[_FROC_IOU], lesions, images)
    numbers: dict[str, float | None] = {
        "froc": None if curve is None else curve.score,
        "sensitivity": curve.sensitivity_at[_RATE] if curve is not None and lesions else None,
        "map": mean(precisions.values()),
        "ap_30": precisions[0.3],
        "ap_50": precisions[0.5],
    }
    counted = _counted(scores, hits[_FROC_IOU], images)
    sizes = _joined(group["sizes"], np.int64)
    for place, size in enumerate(SIZES):
        of_size = int(group[f"lesions_{size}"].sum())
        found = int(((sizes == place) & counted).sum())
        numbers[f"sensitivity_{size}"] = found / of_size if of_size else None
    return numbers


def _counted(scores: Floats, hits: Mask, images: int) -> Mask:
    levels, place = np.unique(-scores, return_inverse=True)
    false = np.cumsum(np.bincount(place, ~hits, len(levels)))
    return np.asarray(place < np.searchsorted(false, _RATE * images, side="right"))


def _joined(lists: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(one, dtype) for one in lists)])


def _hits(iou: float) -> str:
    return f"hits_{round(100 * iou)}"


class Detections(Protocol):
    name = "detections"
    title = "Detections"
    headline = "froc"
    heading = "FROC"
    citation = "this project; FROC at the rates of LUNA16, average precision of COCO (Lin et al., ECCV 2014)"
    rule = (
        "answered boxes, ranked by confidence, or connected parts of the stretched map at 0.5, ranked by their highest "
        "raw value; each finds one annotated item at most, at an IoU of 0.3 (froc, sensitivity, ap_30) or 0.5 (ap_50); "
        "froc: mean sensitivity at 1/8, 1/4, 1/2, 1, 2, 4 and 8 false detections per image; map: mean AP at IoU 0.1, "
        "0.2, 0.3, 0.4 and 0.5; sensitivity: with at most one false detection of the finding per image, also for items "
        "below 1% (_small), of 1 to 5% (_medium) and above 5% (_large) of the image"
    )
    flaw = "A correct map scores less than a correct box, because its parts do not have the outline of a lesion."
    setting = "the whole radiograph on the evaluation grid, or without a grid"
    in_setting = "always"
    limits = (
        "a lesion drawn by several readers counts several times for maps and is left out for boxes",
        "boxes need a confidence, and maps a scale that compares between images",
        "a model has no false detections on images that it was not asked about",
    )
    takes = frozenset({"map", "boxes"})
    scales = frozenset({"logit", "probability", "cosine", "attention"})
    negatives = True

    def refuses(self, run: RunView, tuned: bool) -> str | None:
        reason = super().refuses(run, tuned)
        if reason is None and run.unranked:
            return f"--protocol {self.name} ranks boxes by confidence, and {run.folder} has none for {run.unranked}."
        return reason

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, Any] | None:
        if not prediction.cells.size:
            from xbench.scoring.boxes import pairwise_iou

            areas = (truth.boxes[:, 2:] - truth.boxes[:, :2]).prod(axis=1)
            iou = pairwise_iou(prediction.boxes, truth.boxes)
            return ranked(prediction.confidence, iou, areas) if truth.separate else None
        lesions = truth.lesions()
        if truth.label == 1 and not lesions:
            return None
        saliency = prediction.on_grid(truth.region.shape, prediction.upsampling)
        parts = components(stretched(saliency) >= np.float32(0.5))
        scores = np.array([saliency[part].max() for part in parts], np.float64)
        return ranked(scores, mask_overlaps(parts, lesions)[0], np.array([mask.mean() for mask in lesions]))

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        return of_group(groups, detection_numbers)

    def pair_values(self, group: Group) -> Floats:
        # The curve covers all images, so single pairs have no value.
        return np.full(len(group), np.nan)
