"""Pixel counts of binarised saliency maps at every threshold, exactly, in one pass over the pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from xbench.geometry.grid import chunk_pixels, on_host
from xbench.metrics.dense import all_on_grid, in_any_order
from xbench.metrics.functional import check_pairs, normalise, pairs_on_grid, stretch

MAX_THRESHOLDS = 100_001

_CACHED = 2 * 224**2
"""Pixels counted at a time on a CPU (measured): several arrays of them must stay in the cache of a core."""


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
        """Return Dice 2 |B and R| / (|B| + |R|) as (N, T) float64; NaN where both are empty."""
        return 2 * self.overlap.to(torch.float64) / (self.mask + self.region[:, None])

    def iou(self) -> Tensor:
        """Return IoU |B and R| / |B or R| as (N, T) float64; NaN where both are empty."""
        return self.overlap.to(torch.float64) / (self.mask + self.region[:, None] - self.overlap)


def threshold_values(thresholds: int = 101, device: torch.device | str = "cpu") -> Tensor:
    """Return the thresholds t_k = k / (T - 1) as (T,) float32, each the float32 nearest to the fraction.

    `torch.linspace(0, 1, 101)` misses that by an ulp at 20 of its 101 values.

    Args:
        thresholds: T, at least 2.
        device: Where the result is wanted.

    Raises:
        ValueError: `thresholds` is out of range.

    Example:
        >>> threshold_values(5)
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    check_thresholds(thresholds)
    # On the device itself, for copying there makes the host wait. CUDA's quotient may be an ulp of float64 off, which
    # does not matter: k / n with n up to 2**17 keeps more than 2**-42 of itself from the middle between two float32.
    return (torch.arange(thresholds, dtype=torch.float64, device=device) / (thresholds - 1)).to(torch.float32)


def count_pixels(maps: Tensor, regions: Tensor, thresholds: int = 101) -> PixelCounts:
    """Count the pixels of `maps >= t` and of `(maps >= t) & regions` at every threshold, exactly.

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
    """Count for chosen pairs, whose raw maps are brought to the regions' grid and normalised.

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


@torch.no_grad()
def sweep_all(saliency: Tensor, regions: Tensor, thresholds: int) -> tuple[PixelCounts, Tensor]:
    """Count for all pairs as `sweep_pairs` does, but without reading their values on the host: for accelerators.

    Args:
        saliency: (P, h, w) floating, raw values.
        regions: (P, H, W) bool.
        thresholds: T.

    Returns:
        Counts of P pairs, and whether each map is finite (P,) bool; the counts of one that is not mean nothing.
    """
    values = threshold_values(thresholds, saliency.device)
    histograms, finite = [], []
    for maps, inside, raw_is_finite in all_on_grid(saliency, regions):
        stretched, is_stretched = stretch(maps)
        histograms.append(_histograms(stretched, inside, values))
        finite.append(raw_is_finite & is_stretched)
    return _reached(torch.cat(histograms)), torch.cat(finite)


def check_thresholds(thresholds: int) -> None:
    """Check that the number of thresholds is a whole number from 2 to `MAX_THRESHOLDS`."""
    if not isinstance(thresholds, int) or not 2 <= thresholds <= MAX_THRESHOLDS:
        raise ValueError(f"thresholds must be a whole number from 2 to {MAX_THRESHOLDS:,}, not {thresholds!r}")


def _histograms(maps: Tensor, regions: Tensor, values: Tensor) -> Tensor:
    """Pixels by the highest threshold they reach, first outside the region, then inside: (N, 2 T) int64."""
    if not on_host(maps):
        return _scattered_histograms(maps, regions, values)
    number = len(values)
    counts = torch.zeros(len(maps), 2 * number, dtype=torch.int64)
    # bincount is the fastest on the narrowest keys; floats become bytes twice as fast by way of 16 bits.
    short = torch.int16 if 2 * number <= 2**15 else torch.int32
    narrow = torch.uint8 if 2 * number <= 2**8 else short
    # Adding bytes to bytes is twice as fast as adding bool to them.
    for rows, piece, inside in _pieces(maps, regions.view(torch.uint8), _CACHED):
        key = _highest_threshold(piece, values).to(short).to(narrow).add_(inside, alpha=number)
        for count, row in zip(counts[rows], key, strict=True):
            count += torch.bincount(row, minlength=2 * number)
    return counts


def _scattered_histograms(maps: Tensor, regions: Tensor, values: Tensor) -> Tensor:
    """The same where bincount would make the host wait.

    Fewer and simpler passes over the pixels than on CPUs, where a search in the thresholds costs more than they do. It
    compares with the thresholds themselves, so no division has to be exact, which CUDA's by a number is not.
    """
    bins = len(values) + 1  # by the number of thresholds reached: 0 to T, whatever the value, NaN included
    counts = torch.zeros(len(maps), 2 * bins, dtype=torch.int64, device=maps.device)
    one = torch.ones((), dtype=torch.int64, device=maps.device)
    for rows, piece, inside in _pieces(maps, regions, chunk_pixels(maps.device)):
        key = torch.bucketize(piece, values, right=True).add_(inside, alpha=bins)
        with in_any_order():
            counts[rows].scatter_add_(1, key, one.expand_as(key))
    histograms: Tensor = counts.unflatten(1, (2, bins))[:, :, 1:].flatten(1)
    return histograms


def _pieces(maps: Tensor, regions: Tensor, pixels: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Maps and regions (N, H, W), `pixels` at a time: which maps, and some of their pixels as (n, P) each."""
    maps, regions = maps.flatten(1), regions.flatten(1)
    step = max(1, pixels // max(1, maps.shape[1]))
    for start in range(0, len(maps), step):
        rows = slice(start, start + step)
        for piece, inside in zip(maps[rows].split(pixels, 1), regions[rows].split(pixels, 1), strict=True):
            yield rows, piece, inside


def _reached(histograms: Tensor) -> PixelCounts:
    """Counts at each threshold: the pixels whose highest threshold is this or a later one."""
    outside, inside = histograms.unflatten(1, (2, -1)).flip(-1).cumsum(-1).flip(-1).unbind(1)
    return PixelCounts(outside + inside, inside, inside[:, 0])


def _highest_threshold(maps: Tensor, values: Tensor) -> Tensor:
    """Index of the highest threshold that each pixel reaches, as a float32 tensor like `maps`, which is on the CPU.

    The rounded product is the right index or one above it, for the product errs by far less than half a step; one
    comparison with the threshold itself settles which. CPUs divide as IEEE 754 asks, so k / n *is* the threshold.
    """
    steps = len(values) - 1
    index = (maps * steps).round_()
    return index.sub_((index / steps).gt_(maps))
