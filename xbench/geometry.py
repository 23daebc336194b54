"""From frames to the evaluation grid: saliency maps by interpolation, annotated regions by exact area averaging.

Everything is scored on one grid, the whole radiograph resized to (H, W), 224 x 224 unless configured. A model's own
preprocessing (stretch, crop, pad) is described by its view: the rectangle of the radiograph that the model input shows,
as fractions of width and height.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from xbench.coverage import Coverage

__all__ = ["FULL_VIEW", "Upsampling", "on_host", "region_on_grid", "saliency_on_grid", "seen_on_grid", "upsample"]

Upsampling = Literal["bilinear", "nearest", "corners"]
"""How maps are enlarged: bilinear between the centres of cells, as everywhere unless a model says otherwise; every cell
repeated; or bilinear with the outermost cells' centres on the outermost pixels' centres (`align_corners=True`)."""

FULL_VIEW = (0.0, 0.0, 1.0, 1.0)
"""The view of a model that sees the whole radiograph, stretched."""


def on_host(tensor: Tensor) -> bool:
    """Whether looking at values of `tensor` is free: elsewhere the host would have to wait for the accelerator."""
    return tensor.is_cpu


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

    The host never waits for an accelerator. Views belong on the CPU, even of maps that are elsewhere: then maps that
    cover the whole radiograph are known to without a look at the accelerator. Views that are there too cost more work.

    Args:
        saliency: (N, h, w), any floating dtype.
        views: (N, 4) float, each (left, top, right, bottom) as fractions of the radiograph.
        size: (H, W) of the grid.
        mode: How to enlarge the maps.

    Returns:
        (N, H, W) float32.
    """
    full = torch.stack([edges == edge for edges, edge in zip(views.unbind(1), FULL_VIEW, strict=True)]).all(dim=0)
    maps = saliency.to(torch.float32)
    if on_host(views):
        if full.all():
            return upsample(saliency, size, mode)
        if not full.any():
            return _view_on_grid(maps, views.to(maps.device, non_blocking=True), size, mode)
        if on_host(maps):
            on_grid = maps.new_empty(len(maps), *size)
            on_grid[full] = upsample(maps[full], size, mode)
            on_grid[~full] = _view_on_grid(maps[~full], views[~full], size, mode)
            return on_grid
    # A few kilobytes: CUDA takes copies of up to 64 KB along with the command and does not wait.
    full, views = full.to(maps.device, non_blocking=True), views.to(maps.device, non_blocking=True)
    return torch.where(full[:, None, None], upsample(maps, size, mode), _view_on_grid(maps, views, size, mode))


def seen_on_grid(views: Tensor, size: tuple[int, int], device: torch.device) -> Tensor:
    """Tell which pixels of the evaluation grid a model was shown, those whose centre lies in its view.

    Args:
        views: (N, 4) float32 on the CPU, as `saliency_on_grid` takes them.
        size: (H, W) of the grid.
        device: Where the result is wanted.

    Returns:
        (N, H, W) bool.
    """
    (_, x_seen), (_, y_seen) = (
        _positions_in_view(views[:, edge], views[:, edge + 2], size[1 - edge], "bilinear") for edge in (0, 1)
    )
    x_seen, y_seen = (seen.to(device, non_blocking=True) for seen in (x_seen, y_seen))
    return y_seen[:, :, None] & x_seen[:, None, :]


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


def _view_on_grid(maps: Tensor, views: Tensor, size: tuple[int, int], mode: Upsampling) -> Tensor:
    """Maps (N, h, w) float32 of views (N, 4) that may show only a part of the radiograph, on the grid: (N, H, W)."""
    x, x_seen = _positions_in_view(views[:, 0], views[:, 2], size[1], mode)
    y, y_seen = _positions_in_view(views[:, 1], views[:, 3], size[0], mode)
    places = torch.stack([x[:, None, :].expand(-1, size[0], -1), y[:, :, None].expand(-1, -1, size[1])], dim=-1)
    on_grid = F.grid_sample(maps[:, None], places, padding_mode="border", **_GRID_SAMPLE[mode])[:, 0]
    seen = y_seen[:, :, None] & x_seen[:, None, :]
    least = on_grid.masked_fill(~seen, torch.inf).amin(dim=(1, 2), keepdim=True)
    return _keep_constant(torch.where(seen, on_grid, least), maps)


def _keep_constant(on_grid: Tensor, maps: Tensor) -> Tensor:
    """Undo, possibly in place, the rounding noise that interpolation makes of a constant map and min-max blows up."""
    low = maps.amin((1, 2))
    constant = maps.amax((1, 2)) == low
    if not on_host(maps):
        return torch.where(constant[:, None, None], low[:, None, None], on_grid)
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
    return Coverage.of(region, size).at(gamma)
