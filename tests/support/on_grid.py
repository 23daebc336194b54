"""Maps in tensors on the evaluation grid."""

import numpy as np
import torch

from xbench.geometry.grid import maps_on_grid


def saliency_on_grid(saliency: torch.Tensor, views, size, mode="bilinear") -> torch.Tensor:
    maps = zip(saliency.float().numpy(), views, strict=True)
    return torch.from_numpy(np.reshape([maps_on_grid(one, view, size, mode) for one, view in maps], (-1, *size)))
