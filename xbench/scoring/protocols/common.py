"""Pure functions on the grid that several protocols share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring import numbers
from xbench.scoring.maps import Map, Region

Mask = NDArray[np.bool_]

HUNDREDTHS = tuple(k / 100 for k in range(101))
SIZES = {"small": 0.0, "medium": 0.01, "large": 0.05}  # least share of the radiograph of a lesion of each size


def stretched(saliency: Map, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
    """Return (m - min) / (max - min), by default in float32 like most scorers; zeros for a constant map."""
    values = saliency.astype(dtype, copy=False)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def probabilities(saliency: NDArray[np.float32], scale: str) -> NDArray[np.float32]:
    """Return the probabilities of a map of logits, from float64, because the last bit may decide at a threshold."""
    if scale != "logit":
        return saliency
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-saliency.astype(np.float64)))).astype(np.float32)


def dice_and_iou(mask: Mask, region: Region) -> tuple[float, float]:
    """Return Dice and IoU of a mask and a region; NaN if both are empty."""
    pixels = [np.array(np.count_nonzero(part)) for part in (mask, mask & region, region)]
    return float(numbers.dice(*pixels)), float(numbers.iou(*pixels))


def first_maximum(saliency: Map) -> tuple[int, int]:
    """Return row and column of the maximum, the first in row-major order if tied."""
    row, column = divmod(int(np.argmax(saliency)), saliency.shape[1])
    return row, column


def count_above(
    saliency: Map, region: Region, thresholds: Sequence[float]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the pixels above each threshold, and those of them in the region (T,), compared in float32."""
    limits = np.array(thresholds, np.float32)
    values = [np.sort(part.astype(np.float32, copy=False)) for part in (saliency.ravel(), saliency[region])]
    mask, overlap = (len(part) - np.searchsorted(part, limits, "right") for part in values)
    return mask, overlap


def best_dice(mask: NDArray[Any], overlap: NDArray[Any], region: NDArray[Any]) -> tuple[float, int]:
    """Return the largest mean Dice (N, T) of pairs and the index of its threshold, the lowest if tied."""
    dice = numbers.dice(mask, overlap, region[:, None])
    means = [math.fsum(column) / len(column) for column in dice.T.tolist()]
    return max(means), means.index(max(means))


def components(mask: Mask) -> list[Mask]:
    """Return the 8-connected parts of a mask (H, W), in the row-major order of their first pixels."""
    from scipy.ndimage import label

    labels, count = label(mask, np.ones((3, 3)))
    return [labels == number for number in range(1, count + 1)]


def mask_overlaps(detected: Sequence[Mask], lesions: Sequence[Mask]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the IoU, and the covered share of each lesion, of D detected masks and L lesions, each (D, L)."""
    if not len(detected) or not len(lesions):
        return (none := np.zeros((len(detected), len(lesions)))), none
    # One mask at a time: a matrix product would occupy all cores in each of several processes.
    shared = np.array([[np.count_nonzero(one & other) for other in lesions] for one in detected], np.float64)
    sizes = [np.array([np.count_nonzero(mask) for mask in masks]) for masks in (detected, lesions)]
    return np.nan_to_num(numbers.iou(sizes[0][:, None], shared, sizes[1])), shared / np.maximum(sizes[1], 1)


def sizes_of(areas: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index in `SIZES` of lesions that cover these shares of the radiograph."""
    return np.digitize(areas, [*SIZES.values()][1:])
