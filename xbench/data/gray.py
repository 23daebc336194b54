"""Limits and the step to 8 bits, shared by the decoders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_PIXELS = 2**27
"""Larger images are refused before memory is allocated."""

MAX_DECODED = 2 * MAX_PIXELS  # bytes, 16 bits a pixel
NOT_OURS_TO_GUESS = "and which one to score is ambiguous"


class RefusalError(Exception):
    """A file cannot be decoded; the message is a sentence about the reason."""


def distinct(stored: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.integer]]:
    """Return the distinct values, so that tags are applied to each once, and the index of each pixel's value."""
    if stored.itemsize > 2:
        levels, places = np.unique(stored, return_inverse=True)
        return levels.astype(np.float64), places.reshape(stored.shape)
    unsigned = np.dtype(f"u{stored.itemsize}")
    codes = np.ascontiguousarray(stored).view(unsigned)
    occurs = np.zeros(256**stored.itemsize, np.bool_)
    occurs[codes] = True
    levels = np.arange(len(occurs), dtype=unsigned).view(stored.dtype)[occurs]
    return levels.astype(np.float64), (np.cumsum(occurs) - 1).astype(unsigned)[codes]


def check_size(height: int, width: int, pixel: int = 1) -> None:
    """Raise a RefusalError for too many pixels; `pixel` is the bytes of each."""
    if height * width > MAX_PIXELS:
        raise RefusalError(f"it claims {width} x {height} pixels, more than the {MAX_PIXELS} that are read")
    if height * width * pixel > MAX_DECODED:
        claimed = f"{width} x {height} pixels of {pixel} bytes"
        raise RefusalError(f"it claims {claimed}, more than the {MAX_DECODED} bytes that are read")


def stretch(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return values stretched to 0 to 255; zeros if all are equal."""
    low, high = values.min(), values.max()
    if not np.isfinite(high - low):
        raise RefusalError("its values are not finite numbers")
    if high == low:
        return np.zeros(values.shape, np.uint8)
    gray: NDArray[np.float64] = np.rint((values - low) * 255 / (high - low))
    return gray.astype(np.uint8)
