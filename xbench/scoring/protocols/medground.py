"""MedGround-Bench (arXiv 2605.20158): unions of boxes x0, y0, x1, y1, half-open."""

from __future__ import annotations

from numpy.typing import ArrayLike

from xbench.scoring.protocols.base import PairTruth, PairView, Protocol

NUMBERS = ("iou", "precision", "recall", "f1")


def score_union(predicted: ArrayLike, true: ArrayLike) -> dict[str, float]:
    """Score the unions of boxes (N, 4) and (M, 4); all scores are 1 if both sides are empty, and 0 if one is."""
    from xbench.scoring.boxes import union_areas

    both, either = union_areas(predicted, true)
    (_, mine), (_, theirs) = union_areas(predicted, []), union_areas([], true)
    if not mine or not theirs:
        return dict.fromkeys(NUMBERS, float(not mine and not theirs))
    precision, recall = both / mine, both / theirs
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return dict(zip(NUMBERS, (both / either, precision, recall, f1), strict=True))


class MedGround(Protocol):
    name = "medground"
    title = "MedGround-Bench"
    headline = "iou"
    heading = "IoU"
    citation = "MedGround-Bench, arXiv:2605.20158 (gzxiong/medfocus 4f11faf)"
    rule = "union of the answered boxes against union of the annotated ones: IoU, precision, recall and F1 of areas"
    flaw = "Boxes are united before they are scored: one large lesion outweighs several small ones."
    setting = "the image's own pixels, boxes rounded to whole ones"
    our_setting = "fractions of the whole radiograph"
    limits = (
        "boxes are not rounded to pixels",
        "maps are not turned into boxes",
        "images without the finding are left out",
    )
    takes = frozenset({"boxes"})
    means = NUMBERS
    average = "pairs"

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, float]:
        return score_union(prediction.boxes, truth.boxes)
