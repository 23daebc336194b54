"""Saliency maps on the evaluation grid.

Everything is scored on one grid, the whole radiograph resized to (H, W), 224 x 224 unless configured. A model's own
preprocessing (stretch, crop, pad) is described by its view: the rectangle of the radiograph that the model input shows,
as fractions of width and height.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Upsampling = Literal["bilinear", "nearest", "corners"]
"""How maps are enlarged: bilinear between the centres of cells, as everywhere unless a model says otherwise; every cell
repeated; or bilinear with the outermost cells' centres on the outermost pixels' centres (`align_corners=True`)."""

View = tuple[float, float, float, float]
"""Part of a radiograph that a model input shows: left, top, right, bottom as fractions of its width and height.

Below 0 or above 1 where the input is padded. Plain numbers, so that no precision plug-in rounds them with the images.
"""

FULL_VIEW = (0.0, 0.0, 1.0, 1.0)
"""The view of a model that sees the whole radiograph, stretched."""


def chunk_pixels(device: torch.device) -> int:
    """Return how many pixels to handle at a time: a CPU core's cache full (measured), or an accelerator full."""
    return 4 * 224**2 if device.type == "cpu" else 2**22


def upsample(saliency: Tensor, size: tuple[int, int], mode: Upsampling = "bilinear") -> Tensor:
    """Bring maps that cover the whole radiograph to the evaluation grid, as `saliency_on_grid` does.

    Maps of the grid's size come back as they are.

    Args:
        saliency: (N, h, w) or (B, C, h, w), any floating dtype, raw values.
        size: Height and width of the grid in pixels.
        mode: How to enlarge them, into (N, H, W) or (B, C, H, W) float32.

    Examples:
        >>> upsample(torch.tensor([[[0.0, 1.0]]]), (1, 4))
        tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
    """
    if saliency.ndim not in (3, 4) or not saliency.is_floating_point():
        raise ValueError(
            "saliency must be a floating tensor of shape (N, h, w) or (B, C, h, w), "
            f"not {tuple(saliency.shape)} {saliency.dtype}"
        )
    maps = saliency.to(torch.float32)
    if maps.shape[-2:] == torch.Size(size):
        return maps
    on_grid = maps.new_empty(*maps.shape[:-2], *size)
    _lay(maps.flatten(0, -3), FULL_VIEW, on_grid.flatten(0, -3), mode)
    return on_grid


def saliency_on_grid(
    saliency: Tensor, views: Iterable[Sequence[float]], size: tuple[int, int], mode: Upsampling = "bilinear"
) -> Tensor:
    """Bring raw maps from the frame of the model input to the evaluation grid.

    Each grid pixel whose centre lies in the view takes the value at its place, and every other one, which the model was
    never shown, the least value among those. A value between two cells a and b is a + w (b - a) in float32, first
    along x, then along y; docs/numbers.md has it operation by operation. So a pixel between equal cells has exactly
    their value, no pixel lies beyond the cells around it, and a map does not depend on what else is in the batch.
    Half-precision maps become float32 first: interpolating in bfloat16 moves Dice in the second decimal.

    Args:
        saliency: (N, h, w), any floating dtype; a range within float32.
        views: N times (left, top, right, bottom) as fractions of the radiograph.
        size: (H, W) of the grid.
        mode: How to enlarge the maps, into (N, H, W) float32.
    """
    maps = saliency.to(torch.float32)
    on_grid = maps.new_empty(len(maps), *size)
    start = 0
    for view, same in groupby(tuple(map(float, view)) for view in views):
        stop = start + len(list(same))
        _lay(maps[start:stop], view, on_grid[start:stop], mode)
        start = stop
    return on_grid


@torch.no_grad()
def _lay(maps: Tensor, view: Sequence[float], on_grid: Tensor, mode: Upsampling) -> None:
    """Fill `on_grid` (N, H, W) with maps (N, h, w) float32 of one view, without gradients."""
    if maps.shape == on_grid.shape and tuple(view) == FULL_VIEW:
        on_grid.copy_(maps)  # what follows would do the same
        return
    left, top, right, bottom = view
    (height, width), device = on_grid.shape[1:], maps.device
    x, *across = places_on_grid(left, right, width, maps.shape[2], mode)
    y, *down = places_on_grid(top, bottom, height, maps.shape[1], mode)
    columns, right_share, rows, lower_share = (torch.from_numpy(part).to(device) for part in (*across, *down))
    step = max(1, chunk_pixels(device) // max(1, height * width))
    for some, target in zip(maps.split(step), on_grid.split(step), strict=True):
        wide = _between(some, 2, columns, right_share)
        if (len(rows), len(columns)) == (height, width):
            _between(wide, 1, rows, lower_share[:, None], out=target)
        else:
            shown = _between(wide, 1, rows, lower_share[:, None])
            target.copy_(shown.amin((1, 2), keepdim=True).expand_as(target))
            target[:, y, x] = shown


def _between(maps: Tensor, axis: int, cells: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
    """Values a + w (b - a) between each of `cells` and the next one, multiplied and added apart, never fused."""
    steps = maps.diff(dim=axis, append=maps.narrow(axis, maps.shape[axis] - 1, 1))
    values = torch.index_select(steps, axis, cells, out=out)
    return values.mul_(weights).add_(maps.index_select(axis, cells))


def _seen(low: float, high: float, pixels: int) -> slice:
    """The grid pixels of one axis whose centres lie in a view [low, high]."""
    first, last = max(0, math.ceil(pixels * low - 0.5)), min(pixels - 1, math.floor(pixels * high - 0.5))
    if first > last:
        # No centre lies in a view thinner than a pixel: the pixel that it lies in shows it.
        first = last = min(max(0, math.floor(pixels * (low + high) / 2)), pixels - 1)
    return slice(first, last + 1)


@lru_cache(maxsize=1024)
def places_on_grid(
    low: float, high: float, pixels: int, cells: int, mode: Upsampling
) -> tuple[slice, NDArray[np.int64], NDArray[np.float32]]:
    """Place the P grid pixels of one axis that a view [low, high] shows among its cells.

    In float64, on the host, so that all devices use the same places: the pixels that are shown, the cell at or before
    the centre of each (P,), and the share of the way from there to the next cell, a multiple of 2**-24 in [0, 1) (P,).
    """
    seen = _seen(low, high, pixels)
    # In half pixels, which are whole numbers for the whole radiograph.
    inside = 2.0 * np.arange(seen.start, seen.stop) + 1 - 2 * pixels * low
    length = 2 * pixels * (high - low)
    if mode == "corners":
        place = (inside - 1) * (cells - 1) / (length - 2) if length > 2 else np.zeros_like(inside)
    elif mode == "nearest":
        place = np.floor(inside * cells / length)
    else:
        place = inside * cells / length - 0.5
    place = np.rint(place.clip(0, cells - 1) * 2**24) / 2**24
    cell = np.floor(place)
    return seen, cell.astype(np.int64), (place - cell).astype(np.float32)
