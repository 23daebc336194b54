"""AFLoc (Nature BME 2025) and KAF-Ground (2026): smoothed cells, a crop, thresholds above 0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.maps import Map, Region, cnr
from xbench.scoring.protocols.base import PairTruth, PairView, Protocol
from xbench.scoring.protocols.common import dice_and_iou, first_maximum

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)


def smoothed(cells: Map, before: float = 0.0) -> NDArray[np.float32]:
    """Smooth cells (h, w) by a Gaussian of 1.5 cells, cut at 4 sigma, mirrored at the edge, unless done `before`."""
    from scipy.ndimage import gaussian_filter

    if before == 1.5:
        return cells
    return np.asarray(gaussian_filter(cells.astype(np.float32, copy=False), sigma=1.5, order=0))


def central(size: tuple[int, ...], share: float = 7 / 8) -> tuple[slice, slice]:
    """Return rows and columns of the pixels whose center is in the central share of each axis.

    Examples:
        >>> central((224, 224))
        (slice(14, 210, None), slice(14, 210, None))
    """
    margins = (math.ceil(side * (1 - share) / 2 - 0.5) for side in size)
    rows, columns = (slice(margin, side - margin) for margin, side in zip(margins, size, strict=True))
    return rows, columns


def sharpened(saliency: Map) -> NDArray[Any]:
    """Sharpen the kept pixels like KAF's "dynamic heatmap sharpening"; a constant map is unchanged."""
    span = saliency.max() - saliency.min()
    if not span:
        return saliency
    x = (saliency - saliency.min()) / span
    share = np.clip((x > x.mean() + x.std()).mean(), 0.001, 0.6)
    bound = np.float32(np.quantile(x, 1 - share))
    # In float64, because the last bit of a float32 exponential depends on the processor.
    power = np.exp(-np.clip(96 * (x - bound), -60, 60).astype(np.float64)).astype(x.dtype)
    return np.asarray(1 / (1 + power))


def score(saliency: Map, region: Region) -> dict[str, float]:
    """Score the kept pixels of a map (H, W) in float32 against those of a region like AFLoc and KAF-Ground.

    Return the overlaps; `cnr`, signed, 0 if nothing varies on either side; `hit`. NaN where the official code skips a
    pair or stops: for an empty region (`hit` is 0 then), and a constant map.
    """
    span = saliency.max() - saliency.min()
    if not span:
        return dict.fromkeys((*(f"iou_{t}" for t in THRESHOLDS), "miou", "mdice", "cnr", "hit"), math.nan)
    scale = 2 * ((saliency - saliency.min()) / span).astype(np.float32) - 1
    contrast = cnr(saliency, region)
    if math.isnan(contrast) and 0 < np.count_nonzero(region) < region.size:
        contrast = 0.0
    return overlaps(scale, region) | {"cnr": contrast, "hit": float(region[first_maximum(saliency)])}


def overlaps(scale: NDArray[np.float32], region: Region) -> dict[str, float]:
    """Return `iou_0.1` to `iou_0.5` of values above these, their mean `miou`, and `mdice`; NaN for an empty mask."""
    masks = [scale > np.float32(threshold) for threshold in THRESHOLDS]
    none = math.nan, math.nan
    each = [dice_and_iou(mask, region) if mask.any() and region.any() else none for mask in masks]
    dices, ious = zip(*each, strict=True)
    named = {f"iou_{threshold}": value for threshold, value in zip(THRESHOLDS, ious, strict=True)}
    return named | {"miou": math.fsum(ious) / len(ious), "mdice": math.fsum(dices) / len(dices)}


class Aep(Protocol):
    name = "aep"
    title = "AFLoc, KAF"
    headline = "miou"
    heading = "Mean IoU"
    citation = (
        "AFLoc, Nature Biomedical Engineering 2025 (YH0517/AFLoc 940e3d7); KAF-Ground 2026 "
        "(tahsirmunna/kaf-ground d83afc6)"
    )
    rule = (
        "cells smoothed by 1.5, central 7/8, stretched to [-1, 1], masks above 0.1 to 0.5, mean IoU; signed CNR; "
        "_sharpened: after KAF's sharpening"
    )
    flaw = 'A threshold called "0.1" is 0.55 of the stretched map, and IoU and CNR skip regions outside the crop.'
    setting = "the radiograph padded to a square of 224 or 518 pixels"
    limits = ("phrases of one finding are merged", "boxes are not rounded one by one")
    means = ("miou", "mdice", "cnr", "hit", "miou_sharpened", "cnr_sharpened")

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, float]:
        size = truth.region.shape
        crop = central(size)
        cells = smoothed(prediction.cells, prediction.sigma)
        saliency, region = prediction.on_grid(size, cells=cells)[crop], truth.region[crop]
        sharp = score(sharpened(saliency), region)
        return score(saliency, region) | {"miou_sharpened": sharp["miou"], "cnr_sharpened": sharp["cnr"]}
