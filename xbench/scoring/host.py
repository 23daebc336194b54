"""The measures of a map and its region on the host, compiled by numba: of the grid only peaks are ever stored.

The arithmetic is that of docs/numbers.md, operation by operation: numba multiplies and adds apart and rounds as IEEE
754 asks, for nothing here is compiled with `fastmath`. A module of its own because loading numba takes a moment.
"""

# numba's compiler finds the types of values, not mypy.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

LANES = 4
"""Neighboring pixels count apart: a processor waits where it adds to the number that it has just added to."""


def compiled(types: str) -> Any:
    """Compile a function for these types, or load it from numba's cache; it runs without Python's lock."""

    def compile_(function: Any) -> Any:
        try:
            return njit(types, nogil=True, cache=True)(function)
        except Exception:  # no folder to write to, a full disk, a damaged file: the cache only saves seconds
            return njit(types, nogil=True)(function)

    return compile_


@njit
def _line(wide, cell, share, line):
    """Lay one row of pixels between two rows of cells: a + s (b - a), each operation rounded."""
    below = min(cell + 1, len(wide) - 1)
    for x in range(len(line)):
        line[x] = wide[cell, x] + share * (wide[below, x] - wide[cell, x])


@njit
def _count(line, low, divisor, inside, counts, keys):
    """Count one row of pixels by the highest threshold that they reach, those in the region T places further."""
    thresholds = counts.shape[1] // 2
    steps = np.float32(thresholds - 1)
    for x in range(len(line)):
        value = (line[x] - low) / divisor
        # The right index or one above it, which the threshold itself settles.
        key = np.int32(value * steps + np.float32(0.5))
        keys[x] = key - (np.float32(key) / steps > value) + thresholds * inside[x]
    for x in range(len(line)):
        counts[x % LANES, keys[x]] += 1


@njit
def _border(pixels):
    """Rows and columns (K, 2) of pixels (H, W) with a neighbor left, right, above or below that is not one of them."""
    height, width = pixels.shape
    places = np.empty((pixels.sum(), 2), np.int64)
    found = 0
    for y in range(height):
        some = False
        for x in range(width):
            some |= pixels[y, x]
        for x in range(width if some else 0):
            if pixels[y, x] and not (
                0 < y < height - 1
                and 0 < x < width - 1
                and (pixels[y - 1, x] & pixels[y + 1, x] & pixels[y, x - 1] & pixels[y, x + 1])
            ):
                places[found] = y, x
                found += 1
    return places[:found]


@compiled("int64(int64[:, ::1], boolean[:, ::1])")
def least_distance(tied, region):
    """Do what `map_measures.least_distance` does."""
    height, width = region.shape
    # The nearest pixel of a region to one outside it lies on its border.
    border = _border(region)
    least = np.iinfo(np.int64).max
    for y, x in tied:
        if region[y, x]:
            return 0
        for other in range(len(border)):
            down, across = (border[other, 0] - y) * width, (border[other, 1] - x) * height
            least = min(least, down * down + across * across)
    return least


@compiled("void(float32[:, ::1], boolean[:, ::1], int64[::1])")
def count(pixels, region, histogram):
    """Count pixels (H, W) in [0, 1] into a histogram (2 T,), as `sweep.histograms` describes it."""
    counts, keys = np.zeros((LANES, len(histogram)), np.int32), np.empty(pixels.shape[1], np.int32)
    for y in range(len(pixels)):
        _count(pixels[y], np.float32(0), np.float32(1), region[y], counts, keys)
    histogram[:] = counts.sum(0)


@compiled(
    "UniTuple(int64, 8)(float32[:, ::1], boolean[:, ::1], int64, int64[::1], float32[::1], int64, int64[::1], "
    "float32[::1], int64[::1])"
)
def measure(cells, region, top, rows, lower_share, left, columns, right_share, histogram):
    """Measure a map (h, w), all finite, against its region (H, W).

    `top` is the first row of pixels that the view shows; of each row that it shows, `rows` has the cell and
    `lower_share` the share of the way to the next one. So it is with `left` and columns. Fills the histogram (2 T,) and
    returns the first columns of the table of `map_measures`.
    """
    height, width = region.shape
    bottom, right = top + len(rows), left + len(columns)
    wide = np.empty((len(cells), len(columns)), np.float32)
    for y in range(len(cells)):
        for x in range(len(columns)):
            cell = cells[y, columns[x]]
            beside = cells[y, min(columns[x] + 1, cells.shape[1] - 1)]
            wide[y, x] = cell + right_share[x] * (beside - cell)

    line = np.empty(width, np.float32)
    lowest, highest = np.full(len(columns), np.inf, np.float32), np.full(len(columns), -np.inf, np.float32)
    for y in range(len(rows)):
        _line(wide, rows[y], lower_share[y], line[left:right])
        # Of each column: a processor compares many columns at once.
        for x in range(len(columns)):
            lowest[x], highest[x] = min(lowest[x], line[left + x]), max(highest[x], line[left + x])
    low, high = lowest.min(), highest.max()
    span = high - low

    counts, keys = np.zeros((LANES, len(histogram)), np.int32), np.empty(width, np.int32)
    peak = np.zeros(region.shape, np.bool_)
    tied = tied_inside = sum_y = sum_x = minima = minima_inside = 0
    first_inside = False
    for y in range(height):
        if top <= y < bottom:
            _line(wide, rows[y - top], lower_share[y - top], line[left:right])
            for x in range(left, right):
                minima += line[x] == low
                minima_inside += (line[x] == low) & region[y, x]
            line[:left] = line[right:] = low  # what the model never saw is its least value
        else:
            line[:] = low
        _count(line, low, span if span > 0 else np.float32(1), region[y], counts, keys)
        here = 0
        for x in range(width):
            here += line[x] == high
        for x in range(width if here else 0):
            if line[x] == high:
                first_inside = region[y, x] if tied == 0 else first_inside
                tied, sum_y, sum_x = tied + 1, sum_y + y, sum_x + x
                tied_inside += region[y, x]
                peak[y, x] = True
    histogram[:] = counts.sum(0)
    missed = tied_inside == 0 and histogram[len(histogram) // 2 :].sum() > 0
    distance = least_distance(_border(peak), region) if missed else 0
    return 2 * (span == 0) + 4 * first_inside, tied, tied_inside, sum_y, sum_x, distance, minima, minima_inside
