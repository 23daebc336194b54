"""Maps in tensors on the evaluation grid."""

import numpy as np
import torch

from xbench.geometry.grid import maps_on_grid


def saliency_on_grid(saliency: torch.Tensor, views, size, mode="bilinear") -> torch.Tensor:
    """Raw maps (N, h, w), each with a view of its own, as (N, H, W) float32."""
    maps = zip(saliency.float().numpy(), views, strict=True)
    return torch.from_numpy(np.reshape([maps_on_grid(one, view, size, mode) for one, view in maps], (-1, *size)))
