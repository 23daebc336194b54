"""CheXlocalize (Saporta et al., Nature Machine Intelligence 2022): Otsu and tuned masks, two slices of IoU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.geometry.grid import places_on_grid
from xbench.scoring.maps import Region
from xbench.scoring.numbers import iou
from xbench.scoring.protocols import base
from xbench.scoring.protocols.base import Group, Number, PairTruth, PairView, Protocol, Table, Tuned
from xbench.scoring.protocols.common import Mask

RULES = ("otsu", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8")
"""Rules for masks: Otsu's threshold, and the candidates for tuning."""
_LIMITS = np.array(RULES[1:], np.float32)
# A reused buffer, because allocating millions of pixels takes as long as using them.
_room: Callable[..., Any] = lru_cache(maxsize=1)(np.empty)


def otsu_mask(levels: NDArray[np.uint8]) -> Mask:
    """Return where levels (H, W) exceed Otsu's threshold, with holes filled and single pixels removed, in place."""
    import cv2

    cv2.threshold(levels, 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU, dst=levels)
    outlines, _ = cv2.findContours(levels, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    levels[:] = 0
    cv2.drawContours(levels, [outline for outline in outlines if len(outline) > 1], -1, 1, cv2.FILLED)
    return levels.view(np.bool_)


def count(prediction: PairView, region: Region) -> dict[str, float]:
    """Count the pixels of each mask (`mask_` and `overlap_` by rule) and of the region, and whether the map hits.

    Maps are scaled to (m - min) / max of that, in float32; masks of a constant map are empty.
    """
    from xbench.scoring.host import levels

    room, above = _room(region.shape, np.uint8), np.zeros((2, len(_LIMITS)), np.int64)
    cells = np.ascontiguousarray(prediction.cells, np.float32)
    places = places_on_grid(prediction.crop, region.shape, cells.shape, "bilinear")
    first = levels(cells, *places, region, _LIMITS, room, above)
    mask, size = otsu_mask(room), int(np.count_nonzero(region))
    counts = [(int(np.count_nonzero(mask)), int(np.count_nonzero(mask & region)) if size else 0), *above.T.tolist()]
    found: dict[str, float] = {"pixels": region.size, "region": size}
    for rule, (pixels, overlap) in zip(RULES, counts, strict=True):
        found[f"mask_{rule}"], found[f"overlap_{rule}"] = pixels, overlap
    found["hit"] = float(region.flat[first]) if size else math.nan
    return found


def ious(group: Group, rule: str, empty: NDArray[np.bool_] | None = None, full: bool = False) -> NDArray[np.float64]:
    """Return IoU (N,) by the mask of a rule, emptied where `empty`; NaN if either side (`full`: both) is empty."""
    region = group["region"].astype(np.float64)
    mask, overlap = (
        np.where(False if empty is None else empty, 0, group[f"{name}_{rule}"]).astype(np.float64)
        for name in ("mask", "overlap")
    )
    return np.where(full | ((mask > 0) & (region > 0)), iou(mask, overlap, region), np.nan)


def cutoffs_of(finding: str) -> tuple[float, ...]:
    """Return candidate cutoffs of the probability; without 0 for Lung Lesion, like the authors."""
    return tuple(k / 10 for k in range(finding == "Lung Lesion", 9))


def tuned_threshold(group: Group) -> str | None:
    """Return the rule with the largest mean IoU of one finding's true positives, the lowest if tied."""
    means = {rule: base.mean(ious(group, rule)) for rule in RULES[1:]}
    known = {rule: value for rule, value in means.items() if value is not None}
    return max(known, key=lambda rule: known[rule]) if known else None


def tuned_cutoff(group: Group) -> float | None:
    """Return the probability cutoff with the largest mean IoU, rounded to three digits, of Otsu masks on the full set.

    Tuning uses masks where p is above the cutoff, although the cutoff is applied as at least.
    """
    p = group["probability"]
    if np.isnan(p).any():
        return None
    means = {cutoff: base.mean(ious(group, "otsu", ~(p > cutoff), full=True)) for cutoff in cutoffs_of(group.finding)}
    known = {cutoff: round(value, 3) for cutoff, value in means.items() if value is not None}
    return max(known, key=lambda cutoff: known[cutoff]) if known else None


class CheXlocalize(Protocol):
    name = "chexlocalize"
    title = "CheXlocalize"
    headline = "iou"
    heading = "IoU"
    citation = "Saporta et al., Nature Machine Intelligence 2022 (rajpurkarlab/cheXlocalize 2a79492)"
    rule = (
        "stretched maps, Otsu's threshold with holes filled; IoU of true positives and of the full set; first "
        "maximum in the region; precision, recall and specificity of all pixels of a finding; _tuned and _cutoff: "
        "threshold and probability cutoff of each finding, tuned on the run of --tune"
    )
    flaw = (
        "One name, mIoU, for two numbers that differ by a factor of 3 to 6: over true positives, and over all images."
    )
    setting = "the image's own pixels (--data.grid native)"
    in_setting = "native"
    limits = ("the human benchmark is a separate run, made by `score`",)
    negatives = True

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, float]:
        return count(prediction, truth.region)

    def tune(self, groups: Sequence[Group]) -> Tuned:
        return {group.finding: {"threshold": tuned_threshold(group), "cutoff": tuned_cutoff(group)} for group in groups}

    def read_tuning(self, paths: Sequence[Path], findings: Sequence[str]) -> Tuned:
        from xbench.predictions.chexlocalize import read_tuned

        return read_tuned(paths, findings, RULES[1:], cutoffs_of)

    def derive(self, group: Group, tuned: Mapping[str, Any] | None) -> Table:
        outside = group["pixels"] - group["region"]
        columns: Table = {"outside": outside, "clear_otsu": outside - group["mask_otsu"] + group["overlap_otsu"]}
        rules: dict[str, tuple[str | None, NDArray[np.bool_] | None]] = {"iou": ("otsu", None)}
        if tuned is not None:
            rule, cutoff = tuned["threshold"], tuned["cutoff"]
            empty = None if cutoff is None else group["probability"] < cutoff
            rules["iou_tuned"] = rule, None
            rules["iou_cutoff"] = None if cutoff is None else "otsu", empty
            rules["iou_tuned_cutoff"] = None if cutoff is None else rule, empty
        for name, (which, empty) in rules.items():
            for full in (False, True):
                values = np.full(len(group), np.nan) if which is None else ious(group, which, empty, full)
                columns[name + "_full" * full] = values
        return columns

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        slices = [name for name in groups[0].columns if name.startswith("iou")]
        numbers = {name: base.mean_of(groups, name) for name in (*slices, "hit")}
        ratios = {
            "precision": ("overlap_otsu", "mask_otsu"),
            "recall": ("overlap_otsu", "region"),
            "specificity": ("clear_otsu", "outside"),
        }
        return numbers | {name: base.ratio_of_sums(groups, *parts) for name, parts in ratios.items()}
