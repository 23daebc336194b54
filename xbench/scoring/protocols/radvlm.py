"""RadVLM (2025): every box x0, y0, x1, y1 against every other, and precision in the order of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xbench.scoring.protocols.base import Group, Number, PairTruth, PairView, Protocol, of_all


def score(predicted: ArrayLike, true: ArrayLike) -> dict[str, float]:
    """Score boxes (N, 4), in the order of the answer, against (M, 4).

    Return `iou_sum` over all `iou_pairs` of boxes, and `map`, the area under the interpolated precision curve; a box is
    right if the true box that it overlaps most is free and overlaps by half. 0 if either side is empty.
    """
    from xbench.scoring.boxes import pairwise_iou

    ious = pairwise_iou(predicted, true)
    taken: set[int] = set()
    right = []
    for row in ious if ious.size else ():
        best = int(np.argmax(row))
        right.append(row[best] >= 0.5 and best not in taken)
        taken |= {best} if right[-1] else set()
    area = _area(right, ious.shape[1]) if right else 0.0
    return {"iou_sum": math.fsum(ious.ravel().tolist()), "iou_pairs": ious.size, "map": area}


def _area(right: Sequence[bool], true: int) -> float:
    found = np.cumsum(right)
    recall = np.concatenate([[0.0], found / true, [1.0]])
    precision = np.concatenate([[0.0], found / np.arange(1, len(right) + 1), [0.0]])
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    return math.fsum((np.diff(recall) * precision[1:]).tolist())


def _average(group: Group) -> dict[str, float | None]:
    pairs = int(group["iou_pairs"].sum())
    return {"avg_iou": math.fsum(group["iou_sum"].tolist()) / pairs if pairs else None}


class RadVLM(Protocol):
    name = "radvlm"
    title = "RadVLM"
    headline = "avg_iou"
    heading = "Average IoU"
    citation = "RadVLM 2025 (uzh-dqbm-cmi/RadVLM 69fe946)"
    rule = (
        "answered boxes against annotated ones: mean IoU over all pairs of boxes, and map: mAP at IoU 0.5 per image "
        "and finding; boxes are in the order of the answer, or of the scores in a file"
    )
    flaw = "Two perfect boxes score an average IoU of one half, because each is also compared with the other."
    setting = "boxes as fractions"
    in_setting = "always"
    limits = (
        "lesions drawn by several readers are left out",
        "boxes are not merged by weighted fusion",
        "images without the finding are left out",
    )
    takes = frozenset({"boxes"})
    means = ("map",)
    average = "pairs"

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, float] | None:
        return score(prediction.boxes, truth.boxes) if truth.separate else None

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        return of_all(groups, "pairs of boxes", _average) | super().numbers(groups)

    def pair_values(self, group: Group) -> NDArray[np.float64]:
        # A pair without an answered box has no IoU, and counts as 0 in paired tests.
        return np.asarray(group["iou_sum"] / np.maximum(group["iou_pairs"], 1))
