"""Saliency maps on the evaluation grid, and the rules by which they are scored.

Everything is scored on one grid, the whole radiograph resized to (H, W), 224 x 224 unless configured. A model's own
preprocessing (stretch, crop, pad) is described by its view: the rectangle of the radiograph that the model input shows,
as fractions of width and height. Needs torch for tensors alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
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

MAX_THRESHOLDS = 100_001

TieRule = Literal["share", "any", "first"]
"""What counts when several pixels share the maximum of a map; `pointing_hits` describes the three."""

MapScale = Literal["cosine", "logit", "probability", "attention", "none"]
"""What the values of a model's raw maps are: cosines in [-1, 1], raw scores whose sigmoid is a probability,
probabilities in [0, 1], shares of attention that sum to 1 with what the map leaves out, or nothing that compares
between maps."""


@dataclass(frozen=True)
class Rules:
    """How maps are scored against annotated regions."""

    grid: tuple[int, int] | Literal["native"] = (224, 224)  # height and width, or the pixels of each image
    upsampling: Upsampling = "bilinear"
    gamma: float = 0.5  # share of a grid pixel that a region covers at least
    thresholds: int = 101  # how many k / (thresholds - 1) the sweep has; odd, so that 0.5 is one of them
    ties: TieRule = "share"
    scale: MapScale = "none"  # of the raw maps; those of logits and probabilities are thresholded as they are, too


def upsample(saliency: Tensor, size: tuple[int, int], mode: Upsampling = "bilinear") -> Tensor:
    """Bring maps that cover the whole radiograph to the evaluation grid, as `maps_on_grid` does.

    Raw maps (N, h, w) or (B, C, h, w) of any floating dtype become float32, `size` being (H, W) of the grid.

    Examples:
        >>> import torch
        >>> upsample(torch.tensor([[[0.0, 1.0]]]), (1, 4))
        tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
    """
    if saliency.ndim not in (3, 4) or not saliency.is_floating_point():
        raise ValueError(
            "saliency must be a floating tensor of shape (N, h, w) or (B, C, h, w), "
            f"not {tuple(saliency.shape)} {saliency.dtype}"
        )
    import torch

    maps = saliency.detach().float()
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    return torch.from_numpy(maps_on_grid(maps.cpu().numpy(), FULL_VIEW, size, mode)).to(maps.device)


def maps_on_grid(
    maps: NDArray[np.float32], view: View, size: tuple[int, int], mode: Upsampling = "bilinear"
) -> NDArray[np.float32]:
    """Bring raw maps of one view from the frame of the model input to the evaluation grid.

    Each grid pixel whose centre lies in the view takes the value at its place, and every other one, which the model was
    never shown, the least value among those. A value between two cells a and b is a + w (b - a) in float32, first
    along x, then along y (`xbench/scoring/map_measures.py` has each operation). So a pixel between equal cells has
    exactly their value, no pixel lies beyond the cells around it, and a map does not depend on what else is in the
    batch. Maps (..., h, w) become (..., H, W), `size` being (H, W) of the grid.
    """
    y, rows, lower_share, x, columns, right_share = places_on_grid(view, size, maps.shape[-2:], mode)
    for axis, cells, share in ((-1, columns, right_share), (-2, rows, lower_share[:, None])):
        before, after = maps.take(cells, axis), maps.take(np.minimum(cells + 1, maps.shape[axis] - 1), axis)
        # Multiplied and added apart, never fused.
        maps = (after - before) * share + before
    on_grid = np.empty((*maps.shape[:-2], *size), np.float32)
    on_grid[...] = maps.min((-2, -1), keepdims=True)
    on_grid[..., y : y + len(rows), x : x + len(columns)] = maps
    return on_grid


def places_on_grid(view: View, size: Sequence[int], cells: Sequence[int], mode: Upsampling) -> tuple[Any, ...]:
    """Place the pixels of a grid (H, W) that a view shows among its cells (h, w): `places_on_axis` of y, then of x."""
    left, top, right, bottom = map(float, view)
    return *places_on_axis(top, bottom, size[0], cells[0], mode), *places_on_axis(left, right, size[1], cells[1], mode)


@lru_cache(maxsize=1024)
def places_on_axis(
    low: float, high: float, pixels: int, cells: int, mode: Upsampling
) -> tuple[int, NDArray[np.int64], NDArray[np.float32]]:
    """Place the P grid pixels of one axis that a view [low, high] shows among its cells.

    In float64, on the host, so that all devices use the same places: the first pixel whose centre lies in the view,
    the cell at or before the centre of each (P,), and the share of the way from there to the next cell, a multiple of
    2**-24 in [0, 1) (P,).
    """
    first, last = max(0, math.ceil(pixels * low - 0.5)), min(pixels - 1, math.floor(pixels * high - 0.5))
    if first > last:
        # No centre lies in a view thinner than a pixel: the pixel that it lies in shows it.
        first = last = min(max(0, math.floor(pixels * (low + high) / 2)), pixels - 1)
    # In half pixels, which are whole numbers for the whole radiograph.
    inside = 2.0 * np.arange(first, last + 1) + 1 - 2 * pixels * low
    length = 2 * pixels * (high - low)
    if mode == "corners":
        place = (inside - 1) * (cells - 1) / (length - 2) if length > 2 else np.zeros_like(inside)
    elif mode == "nearest":
        place = np.floor(inside * cells / length)
    else:
        place = inside * cells / length - 0.5
    place = np.rint(place.clip(0, cells - 1) * 2**24) / 2**24
    cell = np.floor(place)
    return first, cell.astype(np.int64), (place - cell).astype(np.float32)
