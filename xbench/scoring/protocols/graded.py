"""RadZero (NeurIPS 2025) and ChEX (ECCV 2024): masks of probabilities, and of stretched maps, at fixed thresholds.

Follows deepnoid-ai/RadZero 656ae5f and philip-mueller/chex c3f5d78.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.maps import Map, Region

CHEX_THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)
ALARM_THRESHOLDS = {"probability": tuple(k / 100 for k in range(101)), "cosine": tuple(k / 50 - 1 for k in range(101))}
RADZERO_THRESHOLDS = tuple(k / 100 for k in range(101))

Counts = NDArray[np.int64]


def sigmoid(logits: Map) -> NDArray[np.float32]:
    """Return the probabilities of logits, computed in float64 and rounded to float32.

    The last bit decides at a threshold, and in float32 it would depend on how a library was built.
    """
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)


def count_above(saliency: Map, region: Region, thresholds: Sequence[float]) -> tuple[Counts, Counts]:
    """Count the pixels above each threshold, and those of them in the region (T,), compared in float32."""
    limits = np.array(thresholds, np.float32)
    values = [np.sort(part.astype(np.float32, copy=False)) for part in (saliency.ravel(), saliency[region])]
    mask, overlap = (len(part) - np.searchsorted(part, limits, "right") for part in values)
    return mask, overlap


def pooled_iou(mask: NDArray[Any], overlap: NDArray[Any], region: NDArray[Any]) -> NDArray[np.float64]:
    """Return ChEX's IoU at each threshold: all overlaps (N, T) over all unions, NaN if these are empty (T,)."""
    together = overlap.sum(0).astype(np.float64)
    union = (mask + region[:, None] - overlap).sum(0).astype(np.float64)
    ious: NDArray[np.float64] = np.divide(together, union, out=np.full(len(union), np.nan), where=union > 0)
    return ious


def best_dice(mask: NDArray[Any], overlap: NDArray[Any], region: NDArray[Any]) -> tuple[float, int]:
    """Return RadZero's largest mean Dice of positives and the place of its threshold, the lowest of equals."""
    dice = 2 * overlap.astype(np.float64) / (mask + region[:, None])
    means = [math.fsum(column) / len(column) for column in dice.T.tolist()]
    return max(means), means.index(max(means))
