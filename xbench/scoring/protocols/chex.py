"""ChEX (ECCV 2024): IoU of all pixels of the data set together.

Follows philip-mueller/chex c3f5d78.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.protocols.base import Columns, Group, Number, PairTruth, PairView, Protocol, mean, of_all
from xbench.scoring.protocols.common import count_above, stretched

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)


def pooled_iou(mask: NDArray[Any], overlap: NDArray[Any], region: NDArray[Any]) -> NDArray[np.float64]:
    """Return the IoU at each threshold: all overlaps (N, T) over all unions, NaN if these are empty (T,)."""
    together = overlap.sum(0).astype(np.float64)
    union = (mask + region[:, None] - overlap).sum(0).astype(np.float64)
    ious: NDArray[np.float64] = np.divide(together, union, out=np.full(len(union), np.nan), where=union > 0)
    return ious


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
        "stretched maps above 0.1 to 0.5; all overlaps over all unions of the data set, mean over thresholds "
        "(mask_miou) and the largest (mask_biou)"
    )
    flaw = "Pixels are pooled: one large heart outweighs a hundred nodules."
    setting = "a square of 1024 pixels, boxes cut to whole ones"
    limits = ("sentences are findings here", "mAP takes boxes with a weight")

    def measure(self, prediction: PairView, truth: PairTruth) -> Columns:
        mask, overlap = count_above(stretched(prediction.on_grid(truth.region.shape)), truth.region, THRESHOLDS)
        return {"mask": mask, "overlap": overlap, "region": int(truth.region.sum())}

    def derive(self, group: Group, tuned: Mapping[str, Any] | None) -> Columns:
        # What a report compares pair by pair; the numbers are pooled.
        union = group["mask"] + group["region"][:, None] - group["overlap"]
        return {"mask_miou": (group["overlap"] / union).mean(1)}

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        return of_all(groups, "pooled pixels", _pooled)
