"""Saliency maps on the evaluation grid and the pointing game: pure functions without state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from xbench.geometry.grid import chunk_pixels, upsample
from xbench.types import TieRule


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

    Example:
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


def pointing_hits(maps: Tensor, regions: Tensor, ties: TieRule = "share") -> Tensor:
    """Score the pointing game of each pair: does the maximum of the raw map lie in the region?

    Several pixels often share the maximum (saliency from attention or ReLU saturates), and then `ties` decides:
    `"share"` gives the share of the tied pixels that lie in the region, `"any"` 1 if at least one does (the scripts of
    MedKLIP), `"first"` looks at the first of them in row-major order alone (CheXlocalize). After Zhang et al.,
    "Top-down Neural Attention by Excitation Backprop", IJCV 2018.

    Args:
        maps: (N, H, W) float32 maps on the evaluation grid, not normalised.
        regions: (N, H, W) bool.
        ties: The rule for tied maxima.

    Returns:
        (N,) float64 in [0, 1].

    Raises:
        ValueError: `ties` is no rule, the shapes differ, or a map's maximum is not finite.

    Example:
        >>> maps = torch.tensor([[[9.0, 1.0], [9.0, 0.0]]])
        >>> regions = torch.tensor([[[False, False], [True, True]]])
        >>> [pointing_hits(maps, regions, ties).item() for ties in ("share", "any", "first")]
        [0.5, 1.0, 0.0]
    """
    check_ties(ties)
    if maps.ndim != 3 or maps.shape != regions.shape:
        raise ValueError(f"maps and regions must both be (N, H, W), not {tuple(maps.shape)} and {tuple(regions.shape)}")
    pair, row, column = highest_places(maps)
    inside = regions[pair, row, column]
    tied = torch.bincount(pair, minlength=len(maps))
    if ties == "first":
        return inside[tied.cumsum(0) - tied].to(torch.float64)
    hits = torch.bincount(pair[inside], minlength=len(maps))
    return hits.to(torch.float64) / tied if ties == "share" else (hits > 0).to(torch.float64)


def highest_places(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where maps (N, H, W) are highest: map, row and column of every tied place (K,) int64, in this order.

    Raises:
        ValueError: A map's maximum is not finite.
    """
    # Comparing whole maps would cost twenty times the search for the maximum; only rows that reach it are compared.
    row_peak = maps.amax(2)
    peak = row_peak.amax(1, keepdim=True)
    if not peak.isfinite().all():
        raise ValueError(f"the maximum of map {(~peak.isfinite()).nonzero()[0, 0]} is not finite")
    pair, row = (row_peak == peak).nonzero(as_tuple=True)  # nonzero guarantees row-major order
    line, column = (maps[pair, row] == peak[pair]).nonzero(as_tuple=True)
    return pair[line], row[line], column


def check_ties(ties: TieRule) -> None:
    """Check that `ties` is one of the three rules."""
    if ties not in get_args(TieRule):
        raise ValueError(f"ties must be one of {', '.join(map(repr, get_args(TieRule)))}, not {ties!r}")


def on_grid(saliency: Tensor, regions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Go through raw maps (N, h, w) and regions (N, H, W) in chunks that fit the cache, at least one.

    Yields:
        Maps (n, H, W) float32 brought to the regions' grid, and regions (n, H, W) bool.
    """
    step = maps_per_chunk(regions)
    for raw, inside in zip(saliency.split(step), regions.split(step), strict=True):
        yield upsample(raw.contiguous(), (regions.shape[1], regions.shape[2])), inside.contiguous()


def maps_per_chunk(maps: Tensor) -> int:
    """Return how many of these maps (..., H, W) are handled at a time."""
    return max(1, chunk_pixels(maps.device) // maps.shape[-2:].numel())
