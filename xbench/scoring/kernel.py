"""Measure maps and regions in one Triton kernel, one program per pair; the grid is never stored.

The arithmetic equals that of `map_measures.py`, operation by operation. Triton is only available on Linux.
"""

# mypy: disable-error-code="no-untyped-def, attr-defined, assignment, operator, arg-type, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from xbench.geometry.grid import Upsampling, View, places_on_axis
from xbench.scoring.sweep import threshold_values

BLOCK = 1024
"""Grid pixels that a program processes in one step."""

OPTIONS: dict[str, Any] = {"num_warps": 8, "enable_fp_fusion": False}
"""Compiler options: multiply and add are not fused, as on the host."""


@triton.jit
def _at(raw, cell_y_of, share_y_of, cell_x_of, share_x_of, h, w):
    """Interpolate between four cells: along x in both rows, then along y: a + s (b - a), each operation rounded."""
    cell_y, share_y, cell_x, share_x = tl.load(cell_y_of), tl.load(share_y_of), tl.load(cell_x_of), tl.load(share_x_of)
    below, beside = tl.minimum(cell_y + 1, h - 1) * w, tl.minimum(cell_x + 1, w - 1)
    upper = tl.load(raw + cell_y * w + cell_x).to(tl.float32)
    upper = (tl.load(raw + cell_y * w + beside).to(tl.float32) - upper) * share_x + upper
    lower = tl.load(raw + below + cell_x).to(tl.float32)
    lower = (tl.load(raw + below + beside).to(tl.float32) - lower) * share_x + lower
    return (lower - upper) * share_y + upper


@triton.jit(do_not_specialize=["h", "w", "table_width", "T"])
def measure_kernel(
    raw_of,  # (N, h, w) of any floating type
    logit_of,  # (N,) of any floating type
    probability_of,  # (N,)
    regions,  # all regions concatenated, uint8
    cells,  # for each axis of a grid and its view, the cell of each pixel in the view, int32
    shares,  # position between this cell and the next, float32, like `cells`
    layout_of,  # (N, 9) int64: offsets of region, rows and columns in these; H (0 without a region), W; first and end
    # row, first and end column in the view
    thresholds,  # (T,) float32
    table_of,  # (N, table_width) int64, documented in `map_measures`
    h,
    w,
    table_width,
    T,
    FIRST: tl.constexpr,  # first column of the histograms
    BINS: tl.constexpr,  # power of 2, at least T
    BLOCK: tl.constexpr,
):
    """Fill the table row of one pair."""
    pair = tl.program_id(0).to(tl.int64)
    raw, table, layout = raw_of + pair * h * w, table_of + pair * table_width, layout_of + pair * 9
    region, down, across = regions + tl.load(layout), tl.load(layout + 1), tl.load(layout + 2)
    H, W = tl.load(layout + 3).to(tl.int32), tl.load(layout + 4).to(tl.int32)
    top, bottom = tl.load(layout + 5).to(tl.int32), tl.load(layout + 6).to(tl.int32)
    left, right = tl.load(layout + 7).to(tl.int32), tl.load(layout + 8).to(tl.int32)
    # Pixels outside the view use the position of the first one inside.
    rows, lower_share, columns, right_share = cells + down, shares + down, cells + across, shares + across

    least = tl.full([BLOCK], float("inf"), tl.float32)
    greatest = tl.full([BLOCK], float("-inf"), tl.float32)
    strange = tl.zeros([BLOCK], tl.int32)
    for start in range(0, h * w, BLOCK):
        place = start + tl.arange(0, BLOCK)
        cell = tl.load(raw + place, mask=place < h * w, other=0.0).to(tl.float32)
        # NaN and infinity minus themselves are NaN, which differs from 0.
        strange += (cell - cell != 0.0).to(tl.int32)
        least = tl.minimum(least, tl.where(place < h * w, cell, float("inf")))
        greatest = tl.maximum(greatest, tl.where(place < h * w, cell, float("-inf")))
    # A range beyond float32 is also rejected.
    bad = (tl.sum(strange, 0) > 0) | (tl.max(greatest, 0) - tl.min(least, 0) == float("inf"))
    pixels = tl.where(bad, 0, H * W)

    least = tl.full([BLOCK], float("inf"), tl.float32)
    greatest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, pixels, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        y, x = pixel // W, pixel % W
        shown = (y >= top) & (y < bottom) & (x >= left) & (x < right)
        i, j = tl.where(shown, y - top, 0), tl.where(shown, x - left, 0)
        value = _at(raw, rows + i, lower_share + i, columns + j, right_share + j, h, w)
        least, greatest = tl.minimum(least, value), tl.maximum(greatest, value)
    low, high = tl.min(least, 0), tl.max(greatest, 0)
    span = high - low
    divisor = tl.zeros([BLOCK], tl.float32) + tl.where(span == 0.0, 1.0, span)

    outside_bins, inside_bins = tl.zeros([BINS], tl.int32), tl.zeros([BINS], tl.int32)
    # Separate sums per lane: coordinates in a lane stay below 2^31, a total sum may not.
    ties, hits = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    sum_y, sum_x = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
    minima, minima_inside = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.int32)
    first, last = tl.full([BLOCK], 2147483647, tl.int32), tl.full([BLOCK], -1, tl.int32)
    first_inside, last_inside = tl.full([BLOCK], 2147483647, tl.int32), tl.full([BLOCK], -1, tl.int32)
    for start in range(0, pixels, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        there = pixel < pixels
        y, x = pixel // W, pixel % W
        shown = there & (y >= top) & (y < bottom) & (x >= left) & (x < right)
        inside = tl.load(region + pixel, mask=there, other=0) != 0
        i, j = tl.where(shown, y - top, 0), tl.where(shown, x - left, 0)
        value = _at(raw, rows + i, lower_share + i, columns + j, right_share + j, h, w)
        value = tl.where(shown, value, low)  # pixels outside the view get the least value
        stretched = tl.div_rn(value - low, divisor)
        # The correct index or the next one; the comparison with the threshold decides.
        key = (stretched * (T - 1).to(tl.float32) + 0.5).to(tl.int32)
        key -= (tl.load(thresholds + key) > stretched).to(tl.int32)
        outside_bins += tl.histogram(key, BINS, mask=there & (inside == 0))
        inside_bins += tl.histogram(key, BINS, mask=there & inside)
        tied = there & (value == high)
        ties += tied.to(tl.int32)
        hits += (tied & inside).to(tl.int32)
        sum_y += tl.where(tied, y, 0).to(tl.int64)
        sum_x += tl.where(tied, x, 0).to(tl.int64)
        first, last = tl.minimum(first, tl.where(tied, pixel, 2147483647)), tl.maximum(last, tl.where(tied, pixel, -1))
        first_inside = tl.minimum(first_inside, tl.where(there & inside, pixel, 2147483647))
        last_inside = tl.maximum(last_inside, tl.where(there & inside, pixel, -1))
        lowest = shown & (value == low)
        minima += lowest.to(tl.int32)
        minima_inside += (lowest & inside).to(tl.int32)

    number, hit = tl.sum(ties, 0), tl.sum(hits, 0)
    begin, end = tl.min(first, 0), tl.max(last, 0) + 1
    region_begin, region_end = tl.min(first_inside, 0), tl.max(last_inside, 0) + 1
    distance = tl.full([BLOCK], 9223372036854775807, tl.int64)
    missed = (hit == 0) & (region_end > 0) & (pixels > 0)
    if missed:
        for start in range(begin // BLOCK * BLOCK, end, BLOCK):
            pixel = start + tl.arange(0, BLOCK)
            y, x = pixel // W, pixel % W
            shown = (pixel < pixels) & (y >= top) & (y < bottom) & (x >= left) & (x < right)
            i, j = tl.where(shown, y - top, 0), tl.where(shown, x - left, 0)
            value = _at(raw, rows + i, lower_share + i, columns + j, right_share + j, h, w)
            candidate = tl.where(shown & (value == high), pixel, 2147483647)
            peak = tl.min(candidate, 0)
            while peak < 2147483647:
                for other in range(region_begin // BLOCK * BLOCK, region_end, BLOCK):
                    pixel = other + tl.arange(0, BLOCK)
                    inside = tl.load(region + pixel, mask=pixel < region_end, other=0) != 0
                    dy = (pixel // W - peak // W).to(tl.int64) * W
                    dx = (pixel % W - peak % W).to(tl.int64) * H
                    distance = tl.where(inside, tl.minimum(distance, dy * dy + dx * dx), distance)
                candidate = tl.where(candidate == peak, 2147483647, candidate)
                peak = tl.min(candidate, 0)

    at_first = tl.load(region + begin, mask=pixels > 0, other=0) != 0
    flags = 2 * (span == 0.0).to(tl.int64) + 4 * at_first.to(tl.int64)
    tl.store(table, tl.where(bad, 1, flags))
    tl.store(table + 1, number.to(tl.int64))
    tl.store(table + 2, hit.to(tl.int64))
    tl.store(table + 3, tl.sum(sum_y, 0))
    tl.store(table + 4, tl.sum(sum_x, 0))
    tl.store(table + 5, tl.where(missed, tl.min(distance, 0), 0))
    tl.store(table + 6, tl.sum(minima, 0).to(tl.int64))
    tl.store(table + 7, tl.sum(minima_inside, 0).to(tl.int64))
    tl.store(table + 8, tl.load(logit_of + pair).to(tl.float64).to(tl.int64, bitcast=True))
    tl.store(table + 9, tl.load(probability_of + pair).to(tl.float64).to(tl.int64, bitcast=True))
    bins = tl.arange(0, BINS)
    tl.store(table + FIRST + bins, outside_bins.to(tl.int64), mask=bins < T)
    tl.store(table + FIRST + T + bins, inside_bins.to(tl.int64), mask=bins < T)


def bins(thresholds: int) -> int:
    """Return the number of bins that the kernel needs."""
    return max(128, 1 << (thresholds - 1).bit_length())


def measure(
    measures: int,
    saliency: Tensor,
    regions: Sequence[Tensor | None],
    views: Sequence[View],
    thresholds: int,
    mode: Upsampling,
    scores: tuple[Tensor, Tensor],
) -> Tensor:
    """Compute the table of `measure_on_host` in one launch; `measures` is the first column of the histograms."""
    device, (height, width) = saliency.device, saliency.shape[1:]
    width_of_table = measures + 2 * thresholds
    axes: dict[tuple[float, float, int, int], tuple[int, int, int]] = {}
    cells, shares, length = [], [], 0

    def axis(low: float, high: float, pixels: int, size: int) -> tuple[int, int, int]:
        """Return the offset of an axis in `cells`, and the first and end pixel in the view."""
        nonlocal length
        if (key := (low, high, pixels, size)) not in axes:
            first, cell, share = places_on_axis(low, high, pixels, size, mode)
            axes[key] = length, first, first + len(cell)
            cells.append(cell)
            shares.append(share)
            length += len(cell)
        return axes[key]

    layout = np.zeros((len(saliency), 9), np.int64)
    some, offset = [], 0
    for pair, (region, (left, top, right, bottom)) in enumerate(zip(regions, views, strict=True)):
        if region is not None:
            down, first_row, end_row = axis(top, bottom, region.shape[0], height)
            across, first_column, end_column = axis(left, right, region.shape[1], width)
            layout[pair] = offset, down, across, *region.shape, first_row, end_row, first_column, end_column
            some.append(region.reshape(-1).view(torch.uint8))
            offset += region.numel()
    table = torch.empty(len(saliency), width_of_table, dtype=torch.int64, device=device)
    measure_kernel[(len(saliency),)](
        saliency.contiguous(),
        *(score.contiguous() for score in scores),
        torch.cat([region.to(device, non_blocking=True) for region in some] or [table.new_zeros(1, dtype=torch.uint8)]),
        torch.from_numpy(np.concatenate([*cells, [0]]).astype(np.int32)).to(device),
        torch.from_numpy(np.concatenate([*shares, [0.0]]).astype(np.float32)).to(device),
        torch.from_numpy(layout).to(device),
        threshold_values(thresholds, device),
        table,
        height,
        width,
        width_of_table,
        thresholds,
        FIRST=measures,
        BINS=bins(thresholds),
        BLOCK=BLOCK,
        **OPTIONS,
    )
    return table.cpu()
