"""MedGround-Bench (arXiv 2605.20158), RadVLM (2025) and RadFact: maps made boxes, and boxes against boxes.

Follows gzxiong/medfocus 4f11faf, uzh-dqbm-cmi/RadVLM 69fe946 and microsoft/RadFact 72463ac. Boxes are x1, y1, x2, y2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.metrics.maps import Map, Region

Box = Sequence[float]

_LEAST, _MOST = 16, 10


def boxes_of_map(saliency: Map) -> list[list[int]]:
    """Return the boxes of the connected parts of the highest tenth of what is above the minimum, at most ten.

    Parts of fewer than 16 pixels are dropped; those with the highest mean come first. The last row and column belong to
    a box (inclusive). A constant map gives a box of the whole image.
    """
    from scipy.ndimage import find_objects, label

    x = saliency.astype(np.float32) - saliency.min().astype(np.float32)
    x = x / (x.max() + np.float32(1e-8))
    positive = x[x > 0]
    threshold = np.quantile(positive, 0.9) if len(positive) else 0
    parts, number = label(x >= threshold, np.ones((3, 3)))
    sizes = np.bincount(parts.ravel(), minlength=number + 1)
    sums = np.bincount(parts.ravel(), x.ravel(), minlength=number + 1)
    places = find_objects(parts)
    kept = [part for part in range(1, number + 1) if sizes[part] >= _LEAST]
    kept.sort(key=lambda part: -sums[part] / sizes[part])
    found = (places[part - 1] for part in kept[:_MOST])
    return [[columns.start, rows.start, columns.stop - 1, rows.stop - 1] for rows, columns in found]


def boxes_of_region(region: Region) -> list[list[int]]:
    """Return the tight boxes of the connected parts of a region, half-open."""
    from scipy.ndimage import find_objects, label

    places = find_objects(label(region, np.ones((3, 3)))[0])
    return [[columns.start, rows.start, columns.stop, rows.stop] for rows, columns in places]


def union_area(boxes: Sequence[Box]) -> float:
    """Return the area of the union of half-open boxes, exact but for the roundings of float64."""
    whole = [box for box in boxes if box[2] > box[0] and box[3] > box[1]]
    xs = sorted({edge for box in whole for edge in (box[0], box[2])})
    areas = []
    for left, right in pairwise(xs):
        covered, reached = [], -math.inf
        for top, bottom in sorted((box[1], box[3]) for box in whole if box[0] <= left and box[2] >= right):
            if bottom > reached:
                covered.append(bottom - max(top, reached))
                reached = bottom
        areas.append((right - left) * math.fsum(covered))
    return math.fsum(areas)


def score_union(predicted: Sequence[Box], true: Sequence[Box]) -> dict[str, float]:
    """Score unions of half-open boxes as MedGround-Bench does: `iou`, `precision`, `recall`, `f1`.

    All are 1 if there is no box at all, and 0 if only one side has some.
    """
    names = ("iou", "precision", "recall", "f1")
    mine, theirs = union_area(predicted), union_area(true)
    if not mine and not theirs:
        return dict.fromkeys(names, 1.0)
    if not mine or not theirs:
        return dict.fromkeys(names, 0.0)
    cuts = [[max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])] for a in predicted for b in true]
    both = union_area(cuts)
    precision, recall = both / mine, both / theirs
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return dict(zip(names, (both / (mine + theirs - both), precision, recall, f1), strict=True))


def box_iou(one: Box, other: Box) -> float:
    """Return the intersection over union of two half-open boxes; 0 if both have no area."""
    width, height = (min(one[k + 2], other[k + 2]) - max(one[k], other[k]) for k in (0, 1))
    both = max(0, width) * max(0, height)
    union = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - both
    return both / union if union > 0 else 0.0


def radvlm(predicted: Sequence[Box], true: Sequence[Box]) -> dict[str, float]:
    """Score one image as RadVLM does, boxes in the order of the answer.

    Returns:
        `iou_sum` and `iou_pairs`: IoU summed over all pairs of a predicted and a true box, and their number. `map`: the
        area under the interpolated curve of precision; a box is right if the true one it overlaps most is free and
        overlaps by at least half. 0 if either side has no box, even if neither has.
    """
    ious = np.array([[box_iou(box, other) for other in true] for box in predicted]).reshape(len(predicted), len(true))
    taken: set[int] = set()
    right = []
    for row in ious if len(true) else ():
        best = int(np.argmax(row))
        right.append(row[best] >= 0.5 and best not in taken)
        taken |= {best} if right[-1] else set()
    return {
        "iou_sum": math.fsum(ious.ravel().tolist()),
        "iou_pairs": ious.size,
        "map": _area(right, len(true)) if right else 0.0,
    }


def _area(right: Sequence[bool], true: int) -> float:
    """All-point interpolated average precision."""
    found = np.cumsum(right)
    recall = np.concatenate([[0.0], found / true, [1.0]])
    precision = np.concatenate([[0.0], found / np.arange(1, len(right) + 1), [0.0]])
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    return math.fsum((np.diff(recall) * precision[1:]).tolist())


def radfact(predicted: Sequence[Box], true: Sequence[Box], side: int = 224) -> dict[str, float]:
    """Score boxes in fractions as RadFact does, drawn on whole pixels: `iou`, `precision`, `recall`; NaN over empty."""

    def drawn(boxes: Sequence[Box]) -> NDArray[np.bool_]:
        mask = np.zeros((side, side), bool)
        for box in boxes:
            left, top, right, bottom = (int(edge * side) for edge in box)
            mask[top:bottom, left:right] = True
        return mask

    one, other = drawn(predicted), drawn(true)
    both = int(np.count_nonzero(one & other))

    def share(pixels: NDArray[Any]) -> float:
        number = int(np.count_nonzero(pixels))
        return both / number if number else math.nan

    return {"iou": share(one | other), "precision": share(one), "recall": share(other)}
