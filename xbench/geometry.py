"""From frames to the evaluation grid: saliency maps by interpolation, annotated regions by exact area averaging.

Everything is scored on one grid, the whole radiograph resized to (H, W), 224 x 224 unless configured. A model's own
preprocessing (stretch, crop, pad) is described by its view: the rectangle of the radiograph that the model input shows,
as fractions of width and height.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["FULL_VIEW", "region_on_grid", "saliency_on_grid"]

FULL_VIEW = (0.0, 0.0, 1.0, 1.0)
"""The view of a model that sees the whole radiograph, stretched."""


def saliency_on_grid(saliency: Tensor, views: Tensor, size: tuple[int, int]) -> Tensor:
    """Bring raw maps from the frame of the model input to the evaluation grid.

    A map that covers the whole radiograph is upsampled bilinearly (`align_corners=False`). Otherwise each grid pixel
    whose centre lies in the view takes the bilinear value at its place, and every other one, which the model was never
    shown, the least value among those.

    Args:
        saliency: (N, h, w) float.
        views: (N, 4) float, each (left, top, right, bottom) as fractions of the radiograph.
        size: (H, W) of the grid.

    Returns:
        (N, H, W) float32.
    """
    maps = saliency.float()
    if not len(maps):
        return maps.new_zeros(0, *size)
    full = (views == views.new_tensor(FULL_VIEW)).all(dim=1)
    if full.all():
        return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
    if full.any():
        on_grid = maps.new_empty(len(maps), *size)
        on_grid[full] = saliency_on_grid(maps[full], views[full], size)
        on_grid[~full] = saliency_on_grid(maps[~full], views[~full], size)
        return on_grid
    x, x_seen = _positions_in_view(views[:, 0], views[:, 2], size[1])
    y, y_seen = _positions_in_view(views[:, 1], views[:, 3], size[0])
    places = torch.stack([x[:, None, :].expand(-1, size[0], -1), y[:, :, None].expand(-1, -1, size[1])], dim=-1)
    on_grid = F.grid_sample(maps[:, None], places, mode="bilinear", padding_mode="border", align_corners=False)[:, 0]
    seen = y_seen[:, :, None] & x_seen[:, None, :]
    least = on_grid.masked_fill(~seen, torch.inf).amin(dim=(1, 2), keepdim=True)
    return torch.where(seen, on_grid, least)


def _positions_in_view(low: Tensor, high: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Place the centres of `count` grid pixels in views [low, high] (N,): in [-1, 1] inside, and whether inside."""
    centres = (torch.arange(count, device=low.device, dtype=low.dtype) + 0.5) / count
    share = (centres - low[:, None]) / (high - low)[:, None]
    return 2 * share - 1, (share >= 0) & (share <= 1)


def region_on_grid(region: NDArray[np.bool_], size: tuple[int, int], gamma: float = 0.5) -> NDArray[np.bool_]:
    """Bring an annotated region from its own frame to the evaluation grid.

    A grid pixel belongs to the region when the region covers at least the share `gamma` of it. A region too small to
    reach that anywhere keeps the pixels that it covers most, so no annotated lesion is lost. Coverage is counted in
    integers and therefore exact: a pixel covered by exactly `gamma` always belongs.

    Args:
        region: (h, w) bool, in the frame of the annotation.
        size: (H, W) of the grid.
        gamma: Least covered share, in (0, 1].

    Returns:
        (H, W) bool, with at least one pixel set where `region` has one.
    """
    covered = _covered_area(region, size)
    on_grid = covered >= gamma * region.size
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
