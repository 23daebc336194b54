"""RadFact: boxes drawn on whole pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.protocols.base import PairTruth, PairView, Protocol
from xbench.scoring.protocols.common import dice_and_iou

SIDE = 224
Boxes = Sequence[Sequence[float]]


def score(predicted: Boxes, true: Boxes) -> dict[str, float]:
    """Score boxes x0, y0, x1, y1 in fractions, drawn on whole pixels: `iou`, `precision`, `recall`; NaN if empty."""
    first, second = _drawn(predicted), _drawn(true)
    both, sizes = int((first & second).sum()), (int(first.sum()), int(second.sum()))
    precision, recall = (both / size if size else math.nan for size in sizes)
    return {"iou": dice_and_iou(first, second)[1], "precision": precision, "recall": recall}


def _drawn(boxes: Boxes) -> NDArray[np.bool_]:
    mask = np.zeros((SIDE, SIDE), bool)
    for box in boxes:
        left, top, right, bottom = (int(edge * SIDE) for edge in box)
        mask[top:bottom, left:right] = True
    return mask


class RadFact(Protocol):
    name = "radfact"
    title = "RadFact"
    headline = "precision"
    heading = "Precision"
    citation = "RadFact (microsoft/RadFact 72463ac)"
    rule = "answered boxes against annotated ones, as masks of 224 x 224"
    flaw = "Only precision is ranked: a small box in a large lesion is perfect, and pairs without a box are left out."
    setting = "boxes as fractions, on 224 x 224 pixels"
    in_setting = "always"
    limits = ("entailment of phrases needs a language model", "images without the finding are left out")
    takes = frozenset({"boxes"})
    means = ("iou", "precision", "recall")

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, float]:
        return score(prediction.boxes.tolist(), truth.boxes.tolist())
