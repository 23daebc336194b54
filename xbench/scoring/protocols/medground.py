"""MedGround-Bench (arXiv 2605.20158), RadVLM (2025) and RadFact: maps made boxes, and boxes against boxes.

Follows gzxiong/medfocus 4f11faf, uzh-dqbm-cmi/RadVLM 69fe946 and microsoft/RadFact 72463ac. Boxes are x1, y1, x2, y2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.boxes import pairwise_iou, union_areas
from xbench.scoring.maps import Map, Region

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


def score_union(predicted: Sequence[Box], true: Sequence[Box]) -> dict[str, float]:
    """Score unions of half-open boxes as MedGround-Bench does: `iou`, `precision`, `recall`, `f1`.

    All are 1 if there is no box at all, and 0 if only one side has some.
    """
    names = ("iou", "precision", "recall", "f1")
    one, other = ([box for box in boxes if box[2] > box[0] and box[3] > box[1]] for boxes in (predicted, true))
    (_, mine), (_, theirs), (both, either) = union_areas(one, []), union_areas(other, []), union_areas(one, other)
    if not mine and not theirs:
        return dict.fromkeys(names, 1.0)
    if not mine or not theirs:
        return dict.fromkeys(names, 0.0)
    precision, recall = both / mine, both / theirs
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return dict(zip(names, (both / either, precision, recall, f1), strict=True))


def radvlm(predicted: Sequence[Box], true: Sequence[Box]) -> dict[str, float]:
    """Score one image as RadVLM does, boxes in the order of the answer.

    Returns:
        `iou_sum` and `iou_pairs`: IoU summed over all pairs of a predicted and a true box, and their number. `map`: the
        area under the interpolated curve of precision; a box is right if the true one it overlaps most is free and
        overlaps by at least half. 0 if either side has no box, even if neither has.
    """
    ious = pairwise_iou(predicted, true)
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
