"""Saliency maps on the evaluation grid: stretched to [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor


def normalise(maps: Tensor) -> Tensor:
    """Stretch maps to [0, 1]: (M - min) / (max - min) over the last two dimensions.

    The division is a real one, without an epsilon, so the maximum is exactly 1 and the mask at threshold 1 is never
    empty. A constant map becomes all zeros.

    Args:
        maps: (..., H, W) floating maps on the evaluation grid.

    Returns:
        (..., H, W) float32 in [0, 1].

    Raises:
        ValueError: A map has a value that is not finite, or a range beyond float32.

    Examples:
        >>> normalise(torch.tensor([[[1.0, 2.0, 5.0]], [[7.0, 7.0, 7.0]]]))
        tensor([[[0.0000, 0.2500, 1.0000]],
        <BLANKLINE>
                [[0.0000, 0.0000, 0.0000]]])
    """
    maps = maps.to(torch.float32)
    low = maps.amin((-2, -1), keepdim=True)
    span = maps.amax((-2, -1), keepdim=True) - low
    # Of a map with NaN the least and the greatest value are NaN, which compares as false.
    finite = span[..., 0, 0] < torch.inf
    if not finite.all():
        position = tuple((~finite).nonzero()[0].tolist())
        raise ValueError(
            f"the saliency map at position {position} has NaN or infinite values, or a range beyond float32"
        )
    return (maps - low).div_(span.masked_fill(span == 0, 1.0))
