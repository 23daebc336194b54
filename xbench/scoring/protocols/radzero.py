"""RadZero (NeurIPS 2025): masks of probabilities at the threshold that is best on the positives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from xbench.scoring import numbers
from xbench.scoring.protocols.base import Group, PairTruth, PairView, Protocol, Table
from xbench.scoring.protocols.common import HUNDREDTHS, best_dice, count_above, first_maximum, probabilities


def pixel_boxes(truth: PairTruth) -> list[tuple[float, float, float, float]]:
    """Return the boxes around the items, or the region's connected parts, in pixels of the grid, half-open."""
    from scipy.ndimage import find_objects, label

    height, width = truth.region.shape
    found = [box for item in truth.items if (box := item.box()) is not None]
    if found and len({item.reader for item in truth.items}) == 1:
        return [(x0 * width, y0 * height, x1 * width, y1 * height) for x0, y0, x1, y1 in found]
    places = find_objects(label(truth.region, np.ones((3, 3)))[0])
    return [(columns.start, rows.start, columns.stop, rows.stop) for rows, columns in places]


class RadZero(Protocol):
    name = "radzero"
    title = "RadZero"
    headline = "dice"
    heading = "Dice"
    citation = "RadZero, NeurIPS 2025 (deepnoid-ai/RadZero 656ae5f)"
    rule = (
        "probabilities above the threshold with the largest mean Dice of positives; specificity: share of negatives "
        "without a pixel above it; hit: first maximum in a box, edges included"
    )
    flaw = "The threshold is chosen on the test positives and then used for the specificity."
    setting = "the image's own pixels (--data.grid native)"
    in_setting = "native"
    limits = (
        "maps must be logits or probabilities",
        "the AUROC of all pixels together is not stored",
        "true boxes of several readers are those around the parts of their union",
    )
    scales = frozenset({"logit", "probability"})
    negatives = True
    means = ("dice", "specificity", "hit")
    of_negatives = frozenset({"specificity"})

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, Any]:
        raw = prediction.on_grid(truth.region.shape)
        saliency = probabilities(raw, prediction.scale)
        mask, overlap = count_above(saliency, truth.region, HUNDREDTHS)
        row, column = first_maximum(raw)
        inside = [left <= column <= right and top <= row <= bottom for left, top, right, bottom in pixel_boxes(truth)]
        return {
            "highest": float(saliency.max()),
            "mask": mask,
            "overlap": overlap,
            "region": int(truth.region.sum()),
            "hit": float(any(inside)) if inside else math.nan,
        }

    def derive(self, group: Group, tuned: Mapping[str, Any] | None) -> Table:
        dice, specificity = np.full((2, len(group)), np.nan)
        positive = (group["label"] == 1) & (group["region"] > 0)
        if positive.any():
            mask, overlap, region = (group[name][positive] for name in ("mask", "overlap", "region"))
            _, best = best_dice(mask, overlap, region)
            dice[positive] = numbers.dice(mask[:, best], overlap[:, best], region)
            negative = group["label"] == 0
            specificity[negative] = group["highest"][negative].astype(np.float32) <= np.float32(HUNDREDTHS[best])
        return {"dice": dice, "specificity": specificity}
