"""The measures of a map and its region in one Triton kernel, a program a pair: nothing of the grid is ever stored.

The arithmetic is that of docs/numbers.md, operation by operation, so that the results are those of the plain PyTorch
form to the bit. A module of its own because Triton is only there on Linux.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOT_FINITE, CONSTANT = 1, 2
"""Flags in the measures of a pair."""

MEASURES = 8
"""Flags, tied maxima, those inside, sums of their rows and columns, first of them, tied minima seen, those inside."""


@triton.jit
def _at(raw, cell_y, share_y, cell_x, share_x, h, w):
    """Values between four cells: along x in both rows, then along y; a + s (b - a), each operation rounded."""
    below, beside = tl.minimum(cell_y + 1, h - 1) * w, tl.minimum(cell_x + 1, w - 1)
    upper = tl.load(raw + cell_y * w + cell_x)
    upper = (tl.load(raw + cell_y * w + beside) - upper) * share_x + upper
    lower = tl.load(raw + below + cell_x)
    lower = (tl.load(raw + below + beside) - lower) * share_x + lower
    return (lower - upper) * share_y + upper


@triton.jit
def measure_kernel(
    raw_of,  # (P, h, w) float32
    region_of,  # (P, H, W) uint8
    seen_of,  # (P, 4) int32: first and last + 1 row, then column, that the view of the pair shows
    rows_of,  # (P, H) int32, cell of each grid row
    down_of,  # (P, H) float32, share of the way to the next
    columns_of,  # (P, W) int32
    across_of,  # (P, W) float32
    thresholds_of,  # (T,) float32
    counts_of,  # (P, 2, BINS) int32, pixels by the highest threshold that they reach, outside and inside
    measures_of,  # (P, MEASURES) int64
    h,
    w,
    H,
    W,
    T,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pair = tl.program_id(0).to(tl.int64)
    raw, region = raw_of + pair * h * w, region_of + pair * H * W
    rows, down, columns, across = rows_of + pair * H, down_of + pair * H, columns_of + pair * W, across_of + pair * W
    seen, measures = seen_of + pair * 4, measures_of + pair * 8
    top, bottom, left, right = tl.load(seen), tl.load(seen + 1), tl.load(seen + 2), tl.load(seen + 3)

    low, high = float("inf"), float("-inf")
    strange = 0
    for start in range(0, h * w, BLOCK):
        place = start + tl.arange(0, BLOCK)
        cells = tl.load(raw + place, mask=place < h * w, other=0.0)
        # Of NaN and infinity the difference from itself is NaN, which is not equal to 0.
        strange += tl.sum((cells - cells != 0.0).to(tl.int32), 0)
    for start in range(0, H * W, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        y, x = pixel // W, pixel % W
        shown = (y >= top) & (y < bottom) & (x >= left) & (x < right)
        y, x = tl.where(shown, y, top), tl.where(shown, x, left)
        value = _at(raw, tl.load(rows + y), tl.load(down + y), tl.load(columns + x), tl.load(across + x), h, w)
        low, high = tl.minimum(low, tl.min(value, 0)), tl.maximum(high, tl.max(value, 0))
    span = high - low
    constant = span == 0.0
    # As the plain form: a range beyond float32 is not finite either.
    bad = (strange > 0) | (span == float("inf"))
    divisor = tl.where(constant | bad, 1.0, span)

    outside_bins, inside_bins = tl.zeros([BINS], tl.int32), tl.zeros([BINS], tl.int32)
    ties, hits, sum_y, sum_x, minima, minima_inside = 0, 0, 0, 0, 0, 0
    first = H * W
    for start in range(0, H * W, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        there = pixel < H * W
        y, x = pixel // W, pixel % W
        shown = there & (y >= top) & (y < bottom) & (x >= left) & (x < right)
        inside = tl.load(region + pixel, mask=there, other=0) != 0
        i, j = tl.where(shown, y, top), tl.where(shown, x, left)
        value = _at(raw, tl.load(rows + i), tl.load(down + i), tl.load(columns + j), tl.load(across + j), h, w)
        value = tl.where(shown, value, low)  # what the model never saw is its least value
        share = tl.where(bad, 0.0, tl.div_rn(value - low, tl.zeros_like(value) + divisor))
        # Half to even: any rounding would do, the right index or one above it, which the threshold settles.
        key = (share * (T - 1).to(tl.float32) + 0.5).to(tl.int32)
        key = tl.minimum(key, T - 1)
        key -= (tl.load(thresholds_of + key) > share).to(tl.int32)
        outside_bins += tl.histogram(key, BINS, mask=there & ~inside)
        inside_bins += tl.histogram(key, BINS, mask=there & inside)
        tied = there & (value == high)
        ties += tl.sum(tied.to(tl.int32), 0)
        hits += tl.sum((tied & inside).to(tl.int32), 0)
        sum_y += tl.sum(tl.where(tied, y, 0), 0)
        sum_x += tl.sum(tl.where(tied, x, 0), 0)
        first = tl.minimum(first, tl.min(tl.where(tied, pixel, H * W), 0))
        least = shown & (value == low)
        minima += tl.sum(least.to(tl.int32), 0)
        minima_inside += tl.sum((least & inside).to(tl.int32), 0)

    bins = tl.arange(0, BINS)
    counts = counts_of + pair * 2 * BINS
    tl.store(counts + bins, outside_bins)
    tl.store(counts + BINS + bins, inside_bins)
    tl.store(measures, (bad.to(tl.int32) + 2 * constant.to(tl.int32)).to(tl.int64))
    tl.store(measures + 1, ties)
    tl.store(measures + 2, hits)
    tl.store(measures + 3, sum_y)
    tl.store(measures + 4, sum_x)
    tl.store(measures + 5, first)
    tl.store(measures + 6, minima)
    tl.store(measures + 7, minima_inside)
