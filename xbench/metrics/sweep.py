"""Pixel counts of binarised saliency maps at every threshold, exactly, in one pass over the pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xbench.metrics.functional import check_pairs, chunk_pixels, normalise, pairs_on_grid

__all__ = ["MAX_THRESHOLDS", "PixelCounts", "check_thresholds", "count_pixels", "sweep_pairs", "threshold_values"]

MAX_THRESHOLDS = 100_001


@dataclass(frozen=True)
class PixelCounts:
    """Sizes of the mask M >= t, of its overlap with the region and of the region, in pixels of the grid.

    Args:
        mask: (N, T) int64.
        overlap: (N, T) int64.
        region: (N,) int64.
    """

    mask: Tensor
    overlap: Tensor
    region: Tensor

    def dice(self) -> Tensor:
        """Dice 2 |B and R| / (|B| + |R|) as (N, T) float64; NaN where both are empty."""
        return 2 * self.overlap.to(torch.float64) / (self.mask + self.region[:, None])

    def iou(self) -> Tensor:
        """IoU |B and R| / |B or R| as (N, T) float64; NaN where both are empty."""
        return self.overlap.to(torch.float64) / (self.mask + self.region[:, None] - self.overlap)


def threshold_values(thresholds: int = 101, device: torch.device | str = "cpu") -> Tensor:
    """Thresholds t_k = k / (T - 1) as (T,) float32, each the float32 nearest to the fraction.

    `torch.linspace(0, 1, 101)` misses that by an ulp at 20 of its 101 values.

    Args:
        thresholds: T, at least 2.
        device: Where the result is wanted; it is computed on the CPU in any case.

    Raises:
        ValueError: `thresholds` is out of range.

    Example:
        >>> threshold_values(5)
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    check_thresholds(thresholds)
    return (torch.arange(thresholds, dtype=torch.float64) / (thresholds - 1)).to(torch.float32).to(device)


def count_pixels(maps: Tensor, regions: Tensor, thresholds: int = 101) -> PixelCounts:
    """Counts of `maps >= t` and `(maps >= t) & regions` for every threshold, as a comparison at each would give them.

    Args:
        maps: (N, H, W) float32 in [0, 1].
        regions: (N, H, W) bool.
        thresholds: T, the number of evenly spaced thresholds from 0 to 1.

    Raises:
        ValueError: Shapes, dtypes or the number of thresholds do not fit, or a value lies outside [0, 1].

    Example:
        >>> maps = torch.tensor([[[0.0, 0.5], [0.75, 1.0]]])
        >>> counts = count_pixels(maps, maps > 0.6, thresholds=3)
        >>> counts.mask, counts.overlap, counts.region
        (tensor([[4, 3, 1]]), tensor([[2, 2, 1]]), tensor([2]))
        >>> counts.dice()
        tensor([[0.6667, 0.8000, 0.6667]], dtype=torch.float64)
    """
    check_thresholds(thresholds)
    if maps.ndim != 3 or maps.shape != regions.shape or maps.dtype != torch.float32 or regions.dtype != torch.bool:
        raise ValueError(
            "maps must be float32 and regions bool, both (N, H, W), "
            f"not {tuple(maps.shape)} {maps.dtype} and {tuple(regions.shape)} {regions.dtype}"
        )
    if maps.numel() and not (maps.amin() >= 0 and maps.amax() <= 1):
        raise ValueError("maps must lie in [0, 1]: bring them there with normalise()")
    return _reached(_histograms(maps, regions, threshold_values(thresholds, maps.device)))


@torch.no_grad()
def sweep_pairs(saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor, thresholds: int) -> PixelCounts:
    """Counts for chosen pairs, their raw maps upsampled to the regions' grid and normalised on the way.

    Args:
        saliency: (B, C, h, w) floating, raw values; or (N, h, w), those of the pairs alone.
        regions: (B, C, H, W) bool; or (N, H, W).
        rows: (N,) int64, the place of each pair's image in the batch.
        classes: (N,) int64, the class of each pair.
        thresholds: T.

    Raises:
        ValueError: A chosen pair's map is not finite or its region is empty.
    """
    check_pairs(saliency, regions, rows, classes)
    values = threshold_values(thresholds, saliency.device)
    chunks = pairs_on_grid(saliency, regions, rows, classes)
    return _reached(torch.cat([_histograms(normalise(maps), inside, values) for maps, inside in chunks]))


def check_thresholds(thresholds: int) -> None:
    """Refusal of a number of thresholds that is no whole number from 2 to `MAX_THRESHOLDS`."""
    if not isinstance(thresholds, int) or not 2 <= thresholds <= MAX_THRESHOLDS:
        raise ValueError(f"thresholds must be a whole number from 2 to {MAX_THRESHOLDS:,}, not {thresholds!r}")


def _histograms(maps: Tensor, regions: Tensor, values: Tensor) -> Tensor:
    """Pixels by the highest threshold they reach, first outside the region, then inside: (N, 2 T) int64."""
    number = len(values)
    maps, regions = maps.flatten(1), regions.flatten(1)
    counts = torch.zeros(len(maps), 2 * number, dtype=torch.int64, device=maps.device)
    pixels = chunk_pixels(maps.device)
    step = max(1, pixels // max(1, maps.shape[1]))
    # bincount is the fastest on the narrowest keys; floats become bytes twice as fast by way of 16 bits.
    short = torch.int16 if 2 * number <= 2**15 else torch.int32
    narrow = torch.uint8 if 2 * number <= 2**8 else short
    for start in range(0, len(maps), step):
        rows = slice(start, start + step)
        for piece, inside in zip(maps[rows].split(pixels, 1), regions[rows].split(pixels, 1), strict=True):
            key = _highest_threshold(piece, values, exact_division=piece.is_cpu).to(short).to(narrow)
            _add_occurrences(counts[rows], key.add_(inside, alpha=number))
    return counts


def _reached(histograms: Tensor) -> PixelCounts:
    """Counts at each threshold: the pixels whose highest threshold is this or a later one."""
    outside, inside = histograms.unflatten(1, (2, -1)).flip(-1).cumsum(-1).flip(-1).unbind(1)
    return PixelCounts(outside + inside, inside, inside[:, 0])


def _highest_threshold(maps: Tensor, values: Tensor, exact_division: bool) -> Tensor:
    """Index of the highest threshold that each pixel reaches, as a float32 tensor like `maps`.

    The rounded product is the right index or one above it, for the product errs by far less than half a step; one
    comparison with the threshold itself settles which. CPUs divide as IEEE 754 asks, so k / n there *is* the
    threshold; CUDA multiplies by a reciprocal, so elsewhere it is looked up.
    """
    steps = len(values) - 1
    index = (maps * steps).round_()
    threshold = index / steps if exact_division else values[index.long()]
    return index.sub_(threshold.gt_(maps))


def _add_occurrences(counts: Tensor, key: Tensor) -> None:
    """Adds to each row of `counts` (N, bins) how often each bin occurs in that row of the integer keys (N, P)."""
    bins = counts.shape[1]
    if key.is_cpu:
        for count, row in zip(counts, key, strict=True):
            count += torch.bincount(row, minlength=bins)
        return
    # bincount makes the host wait for an accelerator; adding ones does not, and whole numbers add up in any order.
    flat = (key + bins * torch.arange(len(key), device=key.device)[:, None]).flatten()
    counts.view(-1).scatter_add_(0, flat, torch.ones_like(flat))
