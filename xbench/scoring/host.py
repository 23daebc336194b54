"""Measure maps and regions on the host, compiled by numba; the grid is never stored.

The arithmetic equals that of `map_measures.py`, operation by operation, because `fastmath` is off. Loading numba takes
time.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


def compiled(types: str) -> Any:
    """Compile a function for these types, or load it from numba's cache; it releases the GIL."""

    def compile_(function: Any) -> Any:
        try:
            return njit(types, nogil=True, cache=True)(function)
        except Exception:  # an unwritable folder, full disk or damaged file; the cache only saves seconds
            return njit(types, nogil=True)(function)

    return compile_


@njit
def _line(wide, cell, share, line):
    """Interpolate a row of pixels between two rows of cells: a + s (b - a), each operation rounded."""
    below = min(cell + 1, len(wide) - 1)
    for x in range(len(line)):
        line[x] = wide[cell, x] + share * (wide[below, x] - wide[cell, x])


@njit
def _count(line, low, divisor, inside, histograms, keys):
    """Count a row of pixels by the highest threshold that they reach, those in the region T bins further.

    Neighbors go to different ones of the four histograms (4, 2 T), because adding to a bin waits for the last addition.
    Unsigned keys spare the check for negative indices.
    """
    thresholds = np.int32(histograms.shape[1] // 2)
    steps = np.float32(thresholds - 1)
    for x in range(len(line)):
        value = (line[x] - low) / divisor
        # The correct index or the next one; the comparison with the threshold decides.
        key = np.int32(value * steps + np.float32(0.5))
        keys[x] = np.uint32(key - np.int32(np.float32(key) / steps > value) + thresholds * np.int32(inside[x]))
    whole = len(line) // 4 * 4
    for x in range(0, whole, 4):
        histograms[0, keys[x]] += np.int32(1)
        histograms[1, keys[x + 1]] += np.int32(1)
        histograms[2, keys[x + 2]] += np.int32(1)
        histograms[3, keys[x + 3]] += np.int32(1)
    for x in range(whole, len(line)):
        histograms[0, keys[x]] += np.int32(1)


@njit
def _count_own(line, limits, inside, histogram):
    """Count a row of pixels by the highest limit that they reach, those in the region T bins further."""
    key = -1
    for x in range(len(line)):
        # Start at the neighbor's limit, which is close.
        while key + 1 < len(limits) and limits[key + 1] <= line[x]:
            key += 1
        while key >= 0 and limits[key] > line[x]:
            key -= 1
        if key >= 0:
            histogram[key + len(limits) * inside[x]] += 1


@njit
def _border(pixels):
    """Return rows and columns (K, 2) of the pixels (H, W) with a direct neighbor that is not one of them."""
    height, width = pixels.shape
    of_row = np.zeros(height, np.int32)
    for y in range(height):
        for x in range(width):
            of_row[y] += pixels[y, x]
    places, found = np.empty((of_row.sum(), 2), np.int64), 0
    for y in range(height):
        for x in range(width if of_row[y] else 0):
            if pixels[y, x] and not (
                0 < y < height - 1
                and 0 < x < width - 1
                and (pixels[y - 1, x] & pixels[y + 1, x] & pixels[y, x - 1] & pixels[y, x + 1])
            ):
                places[found, 0], places[found, 1] = y, x
                found += 1
    return places[:found]


@compiled("int64(boolean[:, ::1], boolean[:, ::1])")
def least_distance(peak, region):
    """Return the least (dx H)^2 + (dy W)^2 from a peak to a disjoint region (H, W); 0 if that is empty."""
    height, width = region.shape
    one, other = _border(peak), _border(region)
    least = np.iinfo(np.int64).max
    for i in range(len(one)):
        for j in range(len(other)):
            down, across = (one[i, 0] - other[j, 0]) * width, (one[i, 1] - other[j, 1]) * height
            least = min(least, down * down + across * across)
    return least if len(other) else 0


@njit
def _widened(cells, columns, right_share):
    """Interpolate rows of cells (h, w) at the columns of pixels in the view."""
    wide = np.empty((len(cells), len(columns)), np.float32)
    for y in range(len(cells)):
        for x in range(len(columns)):
            cell = cells[y, columns[x]]
            beside = cells[y, min(columns[x] + 1, cells.shape[1] - 1)]
            wide[y, x] = cell + right_share[x] * (beside - cell)
    return wide


@njit
def _extremes(wide, rows, lower_share):
    """Return the extremes in the view: between rows of cells a column is monotonic, so its ends are its extremes."""
    line = np.empty(wide.shape[1], np.float32)
    lowest, highest = np.full(len(line), np.inf, np.float32), np.full(len(line), -np.inf, np.float32)
    for y in range(len(rows)):
        if y in (0, len(rows) - 1) or rows[y - 1] != rows[y] or rows[y + 1] != rows[y]:
            _line(wide, rows[y], lower_share[y], line)
            for x in range(len(line)):
                lowest[x], highest[x] = min(lowest[x], line[x]), max(highest[x], line[x])
    return lowest.min(), highest.max()


@compiled("void(float32[:, ::1], boolean[:, ::1], int64[::1])")
def count(pixels, region, histogram):
    """Count pixels (H, W) in [0, 1] in a histogram (2 T,) for `sweep.reached`."""
    histograms, keys = np.zeros((4, len(histogram)), np.int32), np.empty(pixels.size, np.uint32)
    _count(pixels.ravel(), np.float32(0), np.float32(1), region.ravel(), histograms, keys)
    histogram += histograms.sum(0)


@compiled(
    "UniTuple(int64, 8)(float32[:, ::1], boolean[:, ::1], int64, int64[::1], float32[::1], int64, int64[::1], "
    "float32[::1], int64[::1], float32[::1], int64[::1])"
)
def measure(cells, region, top, rows, lower_share, left, columns, right_share, histogram, limits, own):
    """Measure a finite map (h, w) against its region (H, W); return the first columns of the table of `map_measures`.

    `top` is the first row of pixels in the view; for each row in the view, `rows` is its cell and `lower_share` the
    position between this cell and the next. `left` and the arguments after it are the same for columns. Fill the
    histogram (2 T,), and `own` (2 L,) for L ascending limits of the raw values.
    """
    height, width = region.shape
    right = left + len(columns)
    wide, line = _widened(cells, columns, right_share), np.empty(width, np.float32)
    shown = line[left:right]
    low, high = _extremes(wide, rows, lower_share)
    span = high - low

    histograms, keys = np.zeros((4, len(histogram)), np.int32), np.empty(width, np.uint32)
    peak = np.zeros(region.shape, np.bool_)
    tied = tied_inside = sum_y = sum_x = minima = minima_inside = 0
    first_inside = False
    for y in range(height):
        if top <= y < top + len(rows):
            _line(wide, rows[y - top], lower_share[y - top], shown)
            here = np.int32(0)
            for x in range(len(shown)):
                here += np.int32(shown[x] == low)
            minima += int(here)
            for x in range(len(shown) if here else 0):
                minima_inside += (shown[x] == low) & region[y, left + x]
            line[:left] = line[right:] = low  # pixels outside the view get the least value
        else:
            line[:] = low
        _count(line, low, span if span > 0 else np.float32(1), region[y], histograms, keys)
        if len(limits):
            _count_own(line, limits, region[y], own)
        here = np.int32(0)
        for x in range(width):
            here += np.int32(line[x] == high)
        for x in range(width if here else 0):
            if line[x] == high:
                first_inside = region[y, x] if tied == 0 else first_inside
                tied, sum_y, sum_x = tied + 1, sum_y + y, sum_x + x
                tied_inside += region[y, x]
                peak[y, x] = True
    histogram += histograms.sum(0)
    distance = 0 if tied_inside else least_distance(peak, region)
    return 2 * (span == 0) + 4 * first_inside, tied, tied_inside, sum_y, sum_x, distance, minima, minima_inside


@compiled(
    "int64(float32[:, ::1], int64, int64[::1], float32[::1], int64, int64[::1], float32[::1], boolean[:, ::1], "
    "float32[::1], uint8[:, ::1], int64[:, ::1])"
)
def levels(cells, top, rows, lower_share, left, columns, right_share, region, limits, grid, above):
    """Fill a grid (H, W) with 255 (m - min) / (max - min) of a map (h, w), rounded down; arguments as in `measure`.

    Add to `above` (2, T) how many values exceed each limit, in all and in the region; return the first maximum's place.
    """
    height, width = grid.shape
    wide, line, first = _widened(cells, columns, right_share), np.empty(width, np.float32), -1
    low, high = _extremes(wide, rows, lower_share)
    divisor = high - low if high > low else np.float32(1)
    shown = line[left : left + len(columns)]
    for y in range(height):
        line[:] = low
        if top <= y < top + len(rows):
            _line(wide, rows[y - top], lower_share[y - top], shown)
        here, some, level, inside = 0, False, grid[y], region[y]
        for x in range(width if first < 0 else 0):
            here += line[x] == high
        if here:
            first = y * width + line.argmax()
        for x in range(width):
            line[x] = (line[x] - low) / divisor
            level[x] = np.int32(np.float32(255) * line[x])
            some |= inside[x]
        for limit in range(len(limits)):
            exceeds = both = np.int32(0)
            for x in range(width):
                exceeds += np.int32(line[x] > limits[limit])
            for x in range(width if some else 0):
                both += np.int32((line[x] > limits[limit]) & inside[x])
            above[0, limit] += exceeds
            above[1, limit] += both
    return first
