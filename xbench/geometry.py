"""From frames to the evaluation grid: saliency maps by interpolation, annotated regions by exact area averaging.

Everything is scored on one grid, the whole radiograph resized to (H, W), 224 x 224 unless configured. A model's own
preprocessing (stretch, crop, pad) is described by its view: the rectangle of the radiograph that the model input shows,
as fractions of width and height.
"""

from __future__ import annotations

from typing import Any, Literal

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["FULL_VIEW", "Upsampling", "region_on_grid", "saliency_on_grid", "upsample"]

Upsampling = Literal["bilinear", "nearest", "corners"]
"""How maps are enlarged: bilinear between the centres of cells, as everywhere unless a model says otherwise; every cell
repeated; or bilinear with the outermost cells' centres on the outermost pixels' centres (`align_corners=True`)."""

FULL_VIEW = (0.0, 0.0, 1.0, 1.0)
"""The view of a model that sees the whole radiograph, stretched."""


def upsample(saliency: Tensor, size: tuple[int, int], mode: Upsampling = "bilinear") -> Tensor:
    """Bring maps that cover the whole radiograph to the evaluation grid: bilinearly, with `align_corners=False`.

    `mode` says otherwise for the few models whose authors do. Maps of the grid's size come back as they are. A constant
    map stays constant. Half-precision maps become float32 first: interpolating in bfloat16 moves Dice in the second
    decimal.

    Args:
        saliency: (N, h, w) or (B, C, h, w), any floating dtype, raw values.
        size: Height and width of the grid in pixels.
        mode: How to enlarge them. A grid pixel on the border of two cells, `nearest`, gets the value of either.

    Returns:
        The maps as (N, H, W) or (B, C, H, W) float32.

    Raises:
        ValueError: `saliency` is not a floating tensor of three or four dimensions.

    Example:
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
    # PyTorch's result depends in its last bit on the number of channels and on the memory format. As one channel each,
    # a pair's map is the same beside any other findings and in any batch.
    flat = maps.reshape(-1, 1, *maps.shape[-2:])
    grid = F.interpolate(flat, size=size, **_INTERPOLATE[mode])
    return _keep_constant(grid[:, 0], flat[:, 0]).reshape(*maps.shape[:-2], *size)


def saliency_on_grid(saliency: Tensor, views: Tensor, size: tuple[int, int], mode: Upsampling = "bilinear") -> Tensor:
    """Bring raw maps from the frame of the model input to the evaluation grid.

    A map that covers the whole radiograph is upsampled. Otherwise each grid pixel whose centre lies in the view takes
    the bilinear value at its place, and every other one, which the model was never shown, the least value among those.
    In the other modes it takes what upsampling to the view's share of the grid would give it.

    Args:
        saliency: (N, h, w), any floating dtype.
        views: (N, 4) float, each (left, top, right, bottom) as fractions of the radiograph.
        size: (H, W) of the grid.
        mode: How to enlarge the maps.

    Returns:
        (N, H, W) float32.
    """
    full = (views == views.new_tensor(FULL_VIEW)).all(dim=1)
    if full.all():
        return upsample(saliency, size, mode)
    maps = saliency.to(torch.float32)
    if full.any():
        on_grid = maps.new_empty(len(maps), *size)
        on_grid[full] = upsample(maps[full], size, mode)
        on_grid[~full] = saliency_on_grid(maps[~full], views[~full], size, mode)
        return on_grid
    x, x_seen = _positions_in_view(views[:, 0], views[:, 2], size[1], mode)
    y, y_seen = _positions_in_view(views[:, 1], views[:, 3], size[0], mode)
    places = torch.stack([x[:, None, :].expand(-1, size[0], -1), y[:, :, None].expand(-1, -1, size[1])], dim=-1)
    on_grid = F.grid_sample(maps[:, None], places, padding_mode="border", **_GRID_SAMPLE[mode])[:, 0]
    seen = y_seen[:, :, None] & x_seen[:, None, :]
    least = on_grid.masked_fill(~seen, torch.inf).amin(dim=(1, 2), keepdim=True)
    return _keep_constant(torch.where(seen, on_grid, least), maps)


_INTERPOLATE: dict[Upsampling, dict[str, Any]] = {
    "bilinear": {"mode": "bilinear", "align_corners": False},
    # PyTorch's plain `nearest` measures from the corners of pixels and shifts maps that it does not enlarge evenly.
    "nearest": {"mode": "nearest-exact"},
    "corners": {"mode": "bilinear", "align_corners": True},
}

_GRID_SAMPLE: dict[Upsampling, dict[str, Any]] = {
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "nearest": {"mode": "nearest", "align_corners": False},
    "corners": {"mode": "bilinear", "align_corners": True},
}


def _keep_constant(on_grid: Tensor, maps: Tensor) -> Tensor:
    """Undo, in place, the rounding noise that interpolation makes of a constant map and min-max would blow up."""
    low = maps.amin((1, 2))
    constant = maps.amax((1, 2)) == low
    on_grid[constant] = low[constant, None, None]
    return on_grid


def _positions_in_view(low: Tensor, high: Tensor, count: int, mode: Upsampling) -> tuple[Tensor, Tensor]:
    """Place the centres of `count` grid pixels in views [low, high] (N,): in [-1, 1] inside, and whether inside."""
    centres = (torch.arange(count, device=low.device, dtype=low.dtype) + 0.5) / count
    share = (centres - low[:, None]) / (high - low)[:, None]
    seen = (share >= 0) & (share <= 1)
    if mode == "corners":
        # From the centre of the view's first pixel to that of its last, half a pixel from either edge.
        pixels = (high - low)[:, None] * count
        share = (share * pixels - 0.5) / (pixels - 1).clamp(min=1e-6)
    return 2 * share - 1, seen


def region_on_grid(region: NDArray[np.bool_], size: tuple[int, int], gamma: float = 0.5) -> NDArray[np.bool_]:
    """Bring an annotated region from its own frame to the evaluation grid.

    A grid pixel belongs to the region when the region covers at least the share `gamma` of it. A region too small to
    reach that anywhere keeps the pixels that it covers most, so no annotated lesion is lost. Coverage is counted in
    integers and therefore exact: a pixel covered by exactly `gamma` always belongs. On a grid of its own size a region
    stays as it is.

    Args:
        region: (h, w) bool, in the frame of the annotation.
        size: (H, W) of the grid.
        gamma: Least covered share, in (0, 1].

    Returns:
        (H, W) bool, with at least one pixel set where `region` has one.
    """
    if region.shape == size:
        return region.copy()
    covered = _covered_area(region, size)
    # Divided, not multiplied: a quotient rounds to the same float64 as the decimal fraction that gamma was given as.
    on_grid = covered / region.size >= gamma
    if not on_grid.any() and covered.any():
        on_grid = covered == covered.max()
    return on_grid


def _covered_area(region: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.int64]:
    """Count the area of `region` (h, w) in each of H x W equal cells, in units of 1 / (H W) pixel: (H, W) int64.

    The summed-area table of a mask is bilinear within a pixel, so reading it at the corners of the cells, which lie at
    whole multiples of 1 / H and 1 / W, takes integer weights and is exact. A full cell counts h * w.
    """
    table = cv2.integral(region.view(np.uint8)).astype(np.int64)
    for axis, count in enumerate(size):
        cells = region.shape[axis]
        whole, part = np.divmod(np.arange(count + 1) * cells, count)
        part = part.reshape(-1, *[1] * (1 - axis))
        upper = table.take(np.minimum(whole + 1, cells), axis)
        table = table.take(whole, axis) * (count - part) + upper * part
    return np.diff(np.diff(table, axis=0), axis=1)
