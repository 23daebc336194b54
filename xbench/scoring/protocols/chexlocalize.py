"""CheXlocalize (Saporta et al., Nature Machine Intelligence 2022): Otsu and tuned masks, two slices of IoU.

Follows rajpurkarlab/cheXlocalize 2a79492. A pair comes down to whole numbers, from which everything else follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.scoring.maps import Map, Region
from xbench.scoring.protocols.common import Mask, first_maximum

THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)

RULES = ("otsu", *(f"{threshold:.1f}" for threshold in THRESHOLDS))


def scaled(saliency: Map) -> NDArray[np.float32]:
    """Return (m - min) / max of that, in float32; of a constant map all zeros, whose masks are empty."""
    values = saliency.astype(np.float32, copy=False)
    above: NDArray[np.float32] = values - values.min()
    high = above.max()
    return above / high if high > 0 else above


def otsu_mask(scale: NDArray[np.float32]) -> Mask:
    """Return the pixels above Otsu's threshold, with holes filled and without single pixels.

    Args:
        scale: (H, W) from 0 to 1, as `scaled` gives it.
    """
    levels = (255 * scale).astype(np.uint8)
    _, mask = cv2.threshold(levels, 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    outlines, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = np.zeros_like(levels)
    cv2.drawContours(filled, [outline for outline in outlines if len(outline) > 1], -1, 1, cv2.FILLED)
    return filled.astype(bool)


def count(saliency: Map, region: Region) -> dict[str, float]:
    """Count the pixels of each mask, `mask_` and `overlap_` by rule, those of the region, and whether the map hits.

    The hit is that of the first maximum, NaN without a region.
    """
    scale = scaled(saliency)
    masks = {"otsu": otsu_mask(scale)}
    masks |= {rule: scale > np.float32(rule) for rule in RULES[1:]}
    found: dict[str, float] = {"pixels": region.size, "region": int(np.count_nonzero(region))}
    inside = region if found["region"] else None
    for rule, mask in masks.items():
        found[f"mask_{rule}"] = int(np.count_nonzero(mask))
        found[f"overlap_{rule}"] = 0 if inside is None else int(np.count_nonzero(mask & inside))
    found["hit"] = math.nan if inside is None else float(region[first_maximum(saliency)])
    return found


def ious(
    table: Mapping[str, NDArray[Any]], rule: str, empty: NDArray[np.bool_] | None = None, full: bool = False
) -> NDArray[np.float64]:
    """Return the IoU of pairs from their counts (N,).

    Args:
        table: What `count` gave, by name (N,).
        rule: Of the mask.
        empty: Pairs whose mask is emptied.
        full: NaN only if mask and region are both empty; else already if one is ("true positives").
    """
    region = table["region"].astype(np.float64)
    mask, overlap = (
        np.where(False if empty is None else empty, 0, table[f"{name}_{rule}"]).astype(np.float64)
        for name in ("mask", "overlap")
    )
    union = mask + region - overlap
    defined = union > 0 if full else (mask > 0) & (region > 0)
    found: NDArray[np.float64] = np.divide(overlap, union, out=np.full(len(union), np.nan), where=defined)
    return found


def cutoffs_of(finding: str) -> tuple[float, ...]:
    """Return the cut-offs of the probability among which the best is chosen; for Lung Lesion not 0, as the authors."""
    return tuple(k / 10 for k in range(finding == "Lung Lesion", 9))


def tuned_threshold(table: Mapping[str, NDArray[Any]]) -> str | None:
    """Return the rule with the largest mean IoU of true positives of one finding, the lowest of equals."""
    means = {rule: _mean(ious(table, rule)) for rule in RULES[1:]}
    known = {rule: mean for rule, mean in means.items() if not math.isnan(mean)}
    return max(known, key=lambda rule: known[rule]) if known else None


def tuned_cutoff(table: Mapping[str, NDArray[Any]], finding: str) -> float | None:
    """Return the cut-off of the probability with the largest mean IoU of the full set of one finding, of Otsu masks.

    Means are rounded to three digits first, and the first of equals is taken; masks count where p is above the cut-off,
    although it is applied where p is at least that. None without probabilities.
    """
    p = table["probability"]
    if np.isnan(p).any():
        return None
    candidates = cutoffs_of(finding)
    means = [round(_mean(ious(table, "otsu", ~(p > cutoff), full=True)), 3) for cutoff in candidates]
    known = [mean for mean in means if not math.isnan(mean)]
    return candidates[means.index(max(known))] if known else None


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    present = [float(value) for value in values if not math.isnan(value)]
    return math.fsum(present) / len(present) if present else math.nan
