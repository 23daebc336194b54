"""ChEX (ECCV 2024): IoU of all pixels of the dataset together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.numbers import iou
from xbench.scoring.protocols.base import Group, Number, PairTruth, PairView, Protocol, Table, mean, of_all
from xbench.scoring.protocols.common import count_above, stretched

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)


def pooled_iou(mask: NDArray[Any], overlap: NDArray[Any], region: NDArray[Any]) -> NDArray[np.float64]:
    """Return the IoU at each threshold, all overlaps (N, T) over all unions (T,); NaN if the unions are empty."""
    return iou(mask.sum(0), overlap.sum(0), region.sum())


def _pooled(group: Group) -> dict[str, float | None]:
    ious = pooled_iou(group["mask"], group["overlap"], group["region"])
    defined = not np.isnan(ious).any()
    return {"mask_miou": mean(ious) if defined else None, "mask_biou": float(ious.max()) if defined else None}


class CheX(Protocol):
    name = "chex"
    title = "ChEX"
    headline = "mask_miou"
    heading = "Pooled IoU"
    citation = "ChEX, ECCV 2024 (philip-mueller/chex c3f5d78)"
    rule = (
        "stretched maps above 0.1 to 0.5; total intersection over total union, pooled over the dataset: mean over "
        "thresholds (mask_miou) and largest (mask_biou)"
    )
    flaw = "Pixels are pooled: one large heart outweighs a hundred nodules."
    setting = "a square of 1024 pixels, boxes cut to whole ones"
    limits = ("sentences are findings here", "mAP needs boxes with a weight")

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, Any]:
        mask, overlap = count_above(stretched(prediction.on_grid(truth.region.shape)), truth.region, THRESHOLDS)
        return {"mask": mask, "overlap": overlap, "region": int(truth.region.sum())}

    def derive(self, group: Group, tuned: Mapping[str, Any] | None) -> Table:
        # For pairwise comparisons in reports; the numbers are pooled.
        return {"mask_miou": iou(group["mask"], group["overlap"], group["region"][:, None]).mean(1)}

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        return of_all(groups, "pooled pixels", _pooled)
