"""What several protocols share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.maps import Map, Region

Mask = NDArray[np.bool_]


def stretched(saliency: Map, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
    """Return (m - min) / (max - min), in float32 as most scorers do; of a constant map all zeros."""
    values = saliency.astype(dtype, copy=False)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def iou(mask: Mask, region: Region) -> float:
    """Return the intersection over the union of a mask and a region; NaN if both are empty."""
    union = int(np.count_nonzero(mask | region))
    return int(np.count_nonzero(mask & region)) / union if union else math.nan


def first_maximum(saliency: Map) -> tuple[int, int]:
    """Return row and column of the maximum, the first of several in row-major order."""
    row, column = divmod(int(np.argmax(saliency)), saliency.shape[1])
    return row, column
