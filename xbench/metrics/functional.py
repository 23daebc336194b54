"""Saliency maps on the evaluation grid and the pointing game: pure functions without state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from xbench.geometry.grid import chunk_pixels, on_host, upsample
from xbench.types import TieRule

_ONE = 2**40


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
    stretched, finite = stretch(maps)
    if not finite.all():
        position = tuple((~finite).nonzero()[0].tolist())
        raise ValueError(
            f"the saliency map at position {position} has NaN or infinite values, or a range beyond float32"
        )
    return stretched


def stretch(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise maps (..., H, W), and tell which are finite (...); the values of the others mean nothing."""
    maps = maps.to(torch.float32)
    low = maps.amin((-2, -1), keepdim=True)
    span = maps.amax((-2, -1), keepdim=True) - low
    return (maps - low).div_(span.masked_fill(span == 0, 1.0)), is_finite(span[..., 0, 0])


def is_finite(span: Tensor) -> Tensor:
    """Tell whether maps of this range are finite: of a map with NaN the least and the greatest value are NaN."""
    return span < torch.inf


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
        ValueError: `ties` is not one of the three rules, the shapes differ, or a map's maximum is not finite.

    Example:
        >>> maps = torch.tensor([[[9.0, 1.0], [9.0, 0.0]]])
        >>> regions = torch.tensor([[[False, False], [True, True]]])
        >>> [pointing_hits(maps, regions, ties).item() for ties in ("share", "any", "first")]
        [0.5, 1.0, 0.0]
    """
    if ties not in get_args(TieRule):
        raise ValueError(f"ties must be one of {', '.join(map(repr, get_args(TieRule)))}, not {ties!r}")
    if maps.ndim != 3 or maps.shape != regions.shape:
        raise ValueError(f"maps and regions must both be (N, H, W), not {tuple(maps.shape)} and {tuple(regions.shape)}")
    # Comparing whole maps would cost twenty times the search for the maximum; only rows that reach it are compared.
    row_peak = maps.amax(2)
    peak = row_peak.amax(1, keepdim=True)
    if not peak.isfinite().all():
        raise ValueError(f"the maximum of map {(~peak.isfinite()).nonzero()[0, 0]} is not finite")
    pair, row = (row_peak == peak).nonzero(as_tuple=True)  # nonzero guarantees row-major order
    line, column = (maps[pair, row] == peak[pair]).nonzero(as_tuple=True)
    pair, row = pair[line], row[line]
    inside = regions[pair, row, column]
    tied = torch.bincount(pair, minlength=len(maps))
    if ties == "first":
        return inside[tied.cumsum(0) - tied].to(torch.float64)
    hits = torch.bincount(pair[inside], minlength=len(maps))
    return hits.to(torch.float64) / tied if ties == "share" else (hits > 0).to(torch.float64)


def check_inputs(saliency: Tensor, regions: Tensor, valid: Tensor, num_classes: int) -> None:
    """Check the shapes and dtypes of a batch.

    Args:
        saliency: (B, C, h, w) floating.
        regions: (B, C, H, W) bool.
        valid: (B, C) bool.
        num_classes: C.

    Raises:
        ValueError: Something does not fit; the message names the argument.
    """
    if saliency.ndim != 4 or not saliency.is_floating_point() or 0 in saliency.shape[2:]:
        raise ValueError(
            f"saliency must be a floating tensor (B, C, h, w), not {tuple(saliency.shape)} {saliency.dtype}"
        )
    if saliency.shape[1] != num_classes:
        raise ValueError(f"saliency has {saliency.shape[1]} classes, but the metric was made for {num_classes}")
    pairs = saliency.shape[:2]
    if regions.ndim != 4 or regions.dtype != torch.bool or regions.shape[:2] != pairs or 0 in regions.shape[2:]:
        raise ValueError(
            f"regions must be a bool tensor ({pairs[0]}, {pairs[1]}, H, W) beside this saliency, "
            f"not {tuple(regions.shape)} {regions.dtype}"
        )
    if valid.shape != pairs or valid.dtype != torch.bool:
        raise ValueError(
            f"valid must be a bool tensor {tuple(pairs)} beside this saliency, not {tuple(valid.shape)} {valid.dtype}"
        )


def check_pair_inputs(saliency: Tensor, regions: Tensor, classes: Tensor, num_classes: int) -> None:
    """Check the shapes and dtypes of pairs, and their classes if these are on the CPU.

    Args:
        saliency: (P, h, w) floating.
        regions: (P, H, W) bool.
        classes: (P,) int64.
        num_classes: C.

    Raises:
        ValueError: Something does not fit; the message names the argument.
    """
    if saliency.ndim != 3 or not saliency.is_floating_point() or 0 in saliency.shape[1:]:
        raise ValueError(f"saliency must be a floating tensor (P, h, w), not {tuple(saliency.shape)} {saliency.dtype}")
    pairs = len(saliency)
    if regions.ndim != 3 or regions.dtype != torch.bool or len(regions) != pairs or 0 in regions.shape[1:]:
        raise ValueError(
            f"regions must be a bool tensor ({pairs}, H, W) beside this saliency, "
            f"not {tuple(regions.shape)} {regions.dtype}"
        )
    if classes.shape != (pairs,) or classes.dtype != torch.int64:
        raise ValueError(
            f"classes must be an int64 tensor ({pairs},) beside this saliency, "
            f"not {tuple(classes.shape)} {classes.dtype}"
        )
    if on_host(classes) and pairs and not (classes.amin() >= 0 and classes.amax() < num_classes):
        raise ValueError(f"classes must lie in 0..{num_classes - 1}, the classes that the metric was made for")


def check_pairs(saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor) -> None:
    """Check that a score is defined for the chosen pairs; the others are not read.

    Args:
        saliency: (B, C, h, w) floating, raw values; or (N, h, w), those of the pairs alone.
        regions: (B, C, H, W) bool; or (N, H, W).
        rows: (N,) int64, the place of each pair's image in the batch.
        classes: (N,) int64, the class of each pair.

    Raises:
        ValueError: A chosen pair's map is not finite or its region is empty; the message names the pair.
    """
    # As float32, in which all is computed: a range within float16 need not be a float16.
    ends = [(maps.amax((1, 2)).float(), maps.amin((1, 2)).float()) for maps in _chosen(saliency, rows, classes)]
    span = torch.cat([high - low for high, low in ends])
    # On bool itself PyTorch reduces 20 times slower.
    filled = torch.cat([inside.view(torch.uint8).amax((1, 2)) for inside in _chosen(regions, rows, classes)]) > 0
    finite = is_finite(span)
    fine = finite & filled
    if not fine.all():
        pair = int((~fine).nonzero()[0, 0])
        problem = "its region is empty, yet it is valid" if finite[pair] else "its saliency has NaN or infinite values"
        raise ValueError(f"pair (image {rows[pair]} of the batch, class {classes[pair]}): {problem}")


def pairs_on_grid(saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Go through the chosen pairs in chunks that fit the cache: raw maps brought to the grid, and regions.

    Args:
        saliency: (B, C, h, w) floating, raw values; or (N, h, w), those of the pairs alone.
        regions: (B, C, H, W) bool; or (N, H, W).
        rows: (N,) int64, the place of each pair's image in the batch.
        classes: (N,) int64, the class of each pair.

    Yields:
        Maps (n, H, W) float32 and regions (n, H, W) bool; one empty chunk where N is 0.
    """
    height, width = regions.shape[-2:]
    step = maps_per_chunk(regions)
    for maps, inside in zip(_chosen(saliency, rows, classes, step), _chosen(regions, rows, classes, step), strict=True):
        yield upsample(maps, (height, width)), inside


def maps_per_chunk(maps: Tensor) -> int:
    """Return how many of these maps (..., H, W) are handled at a time."""
    return max(1, chunk_pixels(maps.device) // maps.shape[-2:].numel())


def to_fixed_point(values: Tensor) -> Tensor:
    """Round fractions in [0, 1] to int64 multiples of 2**-40, whose sum is the same in any order."""
    return (values * _ONE).round().to(torch.int64)


def from_fixed_point(total: Tensor, count: Tensor) -> Tensor:
    """Return the mean of `count` fractions with the fixed-point sum `total`, as float64; NaN where `count` is 0."""
    return total.to(torch.float64) / _ONE / count


def _chosen(tensor: Tensor, rows: Tensor, classes: Tensor, step: int | None = None) -> Iterator[Tensor]:
    """The chosen pairs of a (B, C, h, w) tensor, or all of a (N, h, w) one, as (n, h, w) chunks, at least one."""
    step = step or maps_per_chunk(tensor)
    if tensor.ndim == 3:
        for chunk in tensor.split(step):
            yield chunk.contiguous()
        return
    flat = tensor.flatten(0, 1)
    for pairs in (rows * tensor.shape[1] + classes).split(step):
        # index_select copies whole maps where indexing goes pixel by pixel, five times as long.
        yield flat.index_select(0, pairs)
