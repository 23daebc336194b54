"""Saliency maps on the evaluation grid, and the rules for scoring them.

The evaluation grid is the whole radiograph resized to (H, W), 224 x 224 by default. A view describes a model's
preprocessing (stretch, crop, pad). Needs torch only for tensors.
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
"""How to enlarge maps: bilinear between the centers of cells; each cell repeated; or bilinear with the centers of the
outermost cells on the centers of the outermost pixels (`align_corners=True`)."""

View = tuple[float, float, float, float]
"""Part of a radiograph that a model sees: left, top, right, bottom as fractions of its width and height.

Below 0 or above 1 where the input is padded. Plain numbers, because a precision plug-in would round tensors.
"""

FULL_VIEW = (0.0, 0.0, 1.0, 1.0)
"""View of the whole radiograph, stretched."""

MAX_THRESHOLDS = 100_001

TieRule = Literal["share", "any", "first"]
"""How to score a maximum that several pixels share; see `pointing_hits`."""

MapScale = Literal["cosine", "logit", "probability", "attention", "none"]
"""What the values of raw maps are: cosines in [-1, 1], logits, probabilities in [0, 1], shares of attention (sum to 1
with what the map leaves out), or values that do not compare between maps."""


@dataclass(frozen=True)
class Rules:
    """How to score maps against annotated regions."""

    grid: tuple[int, int] | Literal["native"] = (224, 224)  # height and width, or the pixels of each image
    upsampling: Upsampling = "bilinear"
    gamma: float = 0.5  # least share of a grid pixel that a region must cover
    thresholds: int = 101  # number of thresholds k / (thresholds - 1); odd, so that 0.5 is one of them
    ties: TieRule = "share"
    scale: MapScale = "none"  # of the raw maps; logits and probabilities are also thresholded without normalization


def upsample(saliency: Tensor, size: tuple[int, int], mode: Upsampling = "bilinear") -> Tensor:
    """Resize maps (N, h, w) or (B, C, h, w) of the whole radiograph to the grid `size` (H, W); return float32.

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
    """Resize raw maps (..., h, w) of one view to (..., H, W) on the evaluation grid `size` (H, W).

    A grid pixel whose center lies in the view takes the value at its place. All other pixels take the least of these
    values, because the model did not see them. Interpolation between cells a and b is a + w (b - a) in float32, first
    along x, then along y (`xbench/scoring/map_measures.py` lists the operations). So no pixel exceeds its neighboring
    cells, equal cells stay exactly equal, and a map does not depend on the rest of the batch.
    """
    y, rows, lower_share, x, columns, right_share = places_on_grid(view, size, maps.shape[-2:], mode)
    for axis, cells, share in ((-1, columns, right_share), (-2, rows, lower_share[:, None])):
        before, after = maps.take(cells, axis), maps.take(np.minimum(cells + 1, maps.shape[axis] - 1), axis)
        # Separate multiplication and addition, never fused.
        maps = (after - before) * share + before
    on_grid = np.empty((*maps.shape[:-2], *size), np.float32)
    on_grid[...] = maps.min((-2, -1), keepdims=True)
    on_grid[..., y : y + len(rows), x : x + len(columns)] = maps
    return on_grid


def places_on_grid(view: View, size: Sequence[int], cells: Sequence[int], mode: Upsampling) -> tuple[Any, ...]:
    """Return `places_on_axis` of y, then of x, for a grid (H, W) and cells (h, w)."""
    left, top, right, bottom = map(float, view)
    return *places_on_axis(top, bottom, size[0], cells[0], mode), *places_on_axis(left, right, size[1], cells[1], mode)


@lru_cache(maxsize=1024)
def places_on_axis(
    low: float, high: float, pixels: int, cells: int, mode: Upsampling
) -> tuple[int, NDArray[np.int64], NDArray[np.float32]]:
    """Map the P grid pixels of one axis that a view [low, high] shows to its cells.

    Return the first pixel whose center lies in the view, the cell at or before each center (P,), and the fraction of
    the way to the next cell, a multiple of 2**-24 (P,). Computed in float64 on the CPU, so that all devices agree.
    """
    first, last = max(0, math.ceil(pixels * low - 0.5)), min(pixels - 1, math.floor(pixels * high - 0.5))
    if first > last:
        # A view thinner than a pixel may contain no center: take the pixel around it.
        first = last = min(max(0, math.floor(pixels * (low + high) / 2)), pixels - 1)
    # In half pixels, which are integers if the view is the whole radiograph.
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
