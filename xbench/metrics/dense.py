"""Maps and hits of all pairs alike, valid or not: what accelerators are scored with.

Choosing pairs, or refusing one, takes a look at their values, and for that the host would have to wait until the
accelerator has caught up. So nothing here is chosen or refused: shapes and steps follow from the shapes of the input
alone, what does not count gets its weight of zero at the end, and what is to be refused is marked. The numbers are the
same to the bit as those of the ways that look.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from xbench.geometry.grid import upsample
from xbench.metrics.functional import is_finite, maps_per_chunk
from xbench.types import TieRule


@contextmanager
def in_any_order() -> Iterator[None]:
    """A context for sums of whole numbers, which are the same in any order, whatever PyTorch is asked to guarantee.

    Asked for deterministic algorithms, it sorts on CUDA before it adds, and makes the host wait to check the indices.
    """
    asked = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(asked)


def all_on_grid(saliency: Tensor, regions: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All pairs in chunks that bound the memory: raw maps brought to the regions' grid, regions, and what is finite.

    Args:
        saliency: (P, h, w) floating, raw values.
        regions: (P, H, W) bool.

    Yields:
        Maps (n, H, W) float32, regions (n, H, W) bool and whether each raw map is finite (n,) bool; one empty chunk
        where P is 0.
    """
    step = maps_per_chunk(regions)
    height, width = regions.shape[1:]
    for raw, inside in zip(saliency.split(step), regions.split(step), strict=True):
        maps = raw.to(torch.float32)
        yield upsample(maps, (height, width)), inside, is_finite(maps.amax((1, 2)) - maps.amin((1, 2)))


def dense_hits(maps: Tensor, regions: Tensor, ties: TieRule) -> Tensor:
    """Pointing game of each pair, as `pointing_hits` has it; anything in [0, 1] or NaN where a map has NaN.

    Args:
        maps: (N, H, W) float32 on the evaluation grid, not normalised.
        regions: (N, H, W) bool.
        ties: The rule for tied maxima.

    Returns:
        (N,) float64.
    """
    pixels, inside = maps.flatten(1), regions.flatten(1)
    at_peak = pixels == pixels.amax(1, keepdim=True)
    if ties == "first":
        # The first of equal values is no promise of argmax on CUDA.
        last = pixels.shape[1] - 1
        places = torch.arange(last + 1, dtype=torch.int32, device=maps.device)
        first = places.expand_as(at_peak).masked_fill(~at_peak, last).amin(1, keepdim=True)
        return inside.gather(1, first.long())[:, 0].to(torch.float64)
    hits = (at_peak & inside).sum(1)
    return hits.to(torch.float64) / at_peak.sum(1) if ties == "share" else (hits > 0).to(torch.float64)
