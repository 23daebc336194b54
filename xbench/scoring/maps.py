"""Measures of a map and its region without a threshold: ranks, mass and contrast.

docs/numbers.md defines them and their chance levels. Every function takes one map on the evaluation grid, not
normalized, and its region; undefined values are NaN. Sums over pixels run in float64, row by row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Map = NDArray[np.floating[Any]]
Region = NDArray[np.bool_]

TOLERANCE = 15 / 224
"""Tolerance of the pointing game as a share of the grid's shorter side: 15 pixels of Zhang et al., IJCV 2018."""


def cnr(saliency: Map, region: Region, *, absolute: bool = False, sample: bool = False) -> float:
    """Return the contrast-to-noise ratio (mean inside - mean outside) / root of the sum of both variances.

    `absolute` drops the sign, as in BioViL's paper, so that inverted maps score as well; `sample` uses sample
    variances. NaN if nothing is inside or outside, or nothing varies.

    Examples:
        >>> cnr(np.array([[3.0, 5.0, 1.0, 1.0]]), np.array([[True, True, False, False]]))
        3.0
    """
    inside, outside = (saliency[part].astype(np.float64) for part in (region, ~region))
    if min(len(inside), len(outside)) <= sample:
        return math.nan
    variance = float(inside.var(ddof=int(sample)) + outside.var(ddof=int(sample)))
    if variance == 0:
        return math.nan
    contrast = float(inside.mean() - outside.mean()) / math.sqrt(variance)
    return abs(contrast) if absolute else contrast


def rank_accuracy(saliency: Map, region: Region) -> float:
    """Return the share of the region among the |R| highest pixels; tied pixels share the last places.

    After Arras et al., Information Fusion 2022. Independent of thresholds and scale. Chance level: the region's share
    of the grid. NaN without a region.

    Examples:
        >>> rank_accuracy(np.array([[9.0, 1.0, 1.0, 0.0]]), np.array([[True, True, False, False]]))
        0.75
    """
    size = int(np.count_nonzero(region))
    if not size:
        return math.nan
    values = saliency.ravel()
    cut = np.partition(values, len(values) - size)[len(values) - size]
    above, tied = saliency > cut, saliency == cut
    certain, tied_inside = int(np.count_nonzero(above & region)), int(np.count_nonzero(tied & region))
    all_tied = int(np.count_nonzero(tied))
    places_left = size - int(np.count_nonzero(above))
    return (certain * all_tied + places_left * tied_inside) / (size * all_tied)


def mass_accuracy(saliency: Map, region: Region) -> float:
    """Return the share of a map's sum that lies in the region ("energy pointing game", Wang et al. 2020).

    Negative values count as 0, so the result depends on the zero of the scale. NaN if undefined.

    Examples:
        >>> mass_accuracy(np.array([[3.0, -5.0, 1.0]]), np.array([[True, True, False]]))
        0.75
    """
    values = np.maximum(saliency, 0, dtype=np.float64)
    total = values.sum()
    return float(values[region].sum() / total) if total > 0 and region.any() else math.nan


def pixel_ranking(saliency: Map, region: Region) -> tuple[float, float]:
    """Return how well a map ranks the region's pixels above the others: AUROC, and average precision.

    AUROC: share of pairs of a pixel inside and one outside in which the inner one is higher, ties counting one half.
    Average precision: sum of (recall gained) x precision over distinct values from the top. Chance levels: 1/2 and the
    region's share of the grid. NaN if nothing is inside, or nothing outside.

    Examples:
        >>> pixel_ranking(np.array([[3.0, 2.0, 2.0, 1.0]]), np.array([[True, False, True, False]]))
        (0.875, 0.8333333333333333)
    """
    inside, outside = np.sort(saliency[region]), np.sort(saliency[~region])
    if not len(inside) or not len(outside):
        return math.nan, math.nan
    values, gained = np.unique(inside, return_counts=True)
    below, not_above = (np.searchsorted(outside, values, side) for side in ("left", "right"))
    gained, tied, higher = gained[::-1], (not_above - below)[::-1], (len(outside) - not_above)[::-1]
    # For each pixel inside: twice the pixels outside below it, plus the tied ones. Python's integers do not overflow.
    right = 2 * len(inside) * len(outside) - int((gained * (2 * higher + tied)).sum())
    found = np.cumsum(gained)
    precision = found / (found + higher + tied)
    return right / (2 * len(inside) * len(outside)), math.fsum((gained * precision).tolist()) / len(inside)


def pointing_with_tolerance(saliency: Map, region: Region, tolerance: float) -> float:
    """Return the share of tied maxima within `tolerance` pixels of the region; 0 pixels give the pointing game.

    Examples:
        >>> pointing_with_tolerance(np.array([[0.0, 0.0, 1.0]]), np.array([[True, False, False]]), 2)
        1.0
    """
    from scipy.ndimage import distance_transform_edt

    if not region.any():
        return math.nan
    highest = saliency == saliency.max()
    near = distance_transform_edt(~region)[highest] <= tolerance if tolerance else region[highest]
    return int(np.count_nonzero(near)) / len(near)
