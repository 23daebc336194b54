"""Rankings of the pixels of all images together, from histograms of maps on one declared scale."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.metrics.exact import LIMBS, KeepsShape, add_exactly, rounded
from xbench.metrics.maps import Map, counted_pairs, ranking_from_counts

LEVELS = 65_536


def levels(saliency: Map, scale: tuple[float, float], count: int = LEVELS) -> NDArray[np.int64]:
    """Return the nearest of `count` levels between the ends of a scale for each pixel; what lies beyond takes an end.

    Examples:
        >>> levels(np.array([[-9.0, 0.24, 0.26, 1.0]]), (0.0, 1.0), 3)
        array([[0, 0, 1, 2]])
    """
    low, high = scale
    steps = (saliency.astype(np.float64) - low) / (high - low) * (count - 1)
    nearest: NDArray[np.int64] = np.rint(steps.clip(0, count - 1)).astype(np.int64)
    return nearest


def pooled_ranking(outside: NDArray[np.int64], inside: NDArray[np.int64]) -> tuple[float, float]:
    """Return AUROC and average precision of pixels by their levels, both as `pixel_ranking` defines them.

    Args:
        outside: Pixels outside of the regions by level, the lowest first (L,).
        inside: Pixels inside (L,).

    Returns:
        Ties within a level count one half. NaN if nothing is inside, or nothing outside.
    """
    total = int(outside.sum())
    occur = np.flatnonzero(inside)[::-1]
    if not total or not len(occur):
        return math.nan, math.nan
    higher = total - np.cumsum(outside)
    return ranking_from_counts(inside[occur], outside[occur], higher[occur], total)


class PooledRanking(KeepsShape):
    """AUROC and average precision of the pixels of all images of a class together.

    Whether the maps of images without the finding count makes two different numbers: call them so. Maps must share a
    scale that means the same on every image; after a stretch to [0, 1] image by image they do not.

    The state is a histogram of 65,536 levels in whole numbers, so neither order nor processes change a bit.

    Args:
        num_classes: C, the number of findings, at least 1.
        scale: Lowest and highest value of the maps; what lies beyond counts as these.

    Examples:
        >>> metric = PooledRanking(1, (0.0, 4.0))
        >>> metric.update(torch.tensor([[[[3.0, 2.0, 2.0, 1.0]]]]), torch.tensor([[[[True, False, True, False]]]]),
        ...               torch.tensor([[True]]))
        >>> metric.compute()["pixel_auroc"]
        tensor([0.8750], dtype=torch.float64)
    """

    outside: Tensor
    inside: Tensor

    def __init__(self, num_classes: int, scale: tuple[float, float]) -> None:
        super().__init__()
        if num_classes < 1 or not -math.inf < scale[0] < scale[1] < math.inf:
            raise ValueError(f"there must be a class and a scale that rises, not {num_classes} and {scale}")
        self.scale = scale
        for name in ("outside", "inside"):
            self.add_state(name, torch.zeros(num_classes, LEVELS, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, saliency: Tensor, regions: Tensor, counted: Tensor) -> None:
        """Add maps.

        Args:
            saliency: (B, C, h, w) floating.
            regions: (B, C, H, W) bool on the evaluation grid, empty where the finding is absent.
            counted: (B, C) bool, which pairs count.
        """
        for column, on_grid, region in counted_pairs(saliency, regions, counted):
            level = levels(on_grid, self.scale)
            for state, part in ((self.outside, level[~region]), (self.inside, level[region])):
                state[column] += torch.from_numpy(np.bincount(part, minlength=LEVELS)).to(self.device)

    def compute(self) -> dict[str, Tensor]:
        """Return `pixel_auroc` and `pixel_ap` (C,) float64, NaN for a class without pixels of both kinds."""
        found = [
            pooled_ranking(outside, inside)
            for outside, inside in zip(self.outside.cpu().numpy(), self.inside.cpu().numpy(), strict=True)
        ]
        auroc, average_precision = torch.tensor(found, dtype=torch.float64).to(self.device).T
        return {"pixel_auroc": auroc.clone(), "pixel_ap": average_precision.clone()}


class RegionOverlap(KeepsShape):
    """Area under the per-region overlap curve (AUPRO) per class.

    At each of L thresholds on a declared scale (the pixels of at least this level) the overlap is the mean over all
    connected parts of the regions (pixels connect to eight neighbours) of the share that the mask covers, and the
    false-positive rate is the share of all pixels outside of regions in the mask, those of images without the finding
    among them. The area is that under straight lines through the points, up to a rate of `limit`, over `limit`. After
    Bergmann et al., IJCV 2021.

    Args:
        num_classes: C, the number of findings, at least 1.
        scale: Lowest and highest value of the maps.
        count: L, the number of levels.
        limit: The largest false-positive rate.
    """

    covered: Tensor
    parts: Tensor
    outside: Tensor

    def __init__(self, num_classes: int, scale: tuple[float, float], count: int = 256, limit: float = 0.3) -> None:
        super().__init__()
        if num_classes < 1 or not scale[0] < scale[1] or count < 2 or not 0 < limit <= 1:
            raise ValueError("there must be a class, a scale that rises, two levels, and a limit in (0, 1]")
        self.scale, self.levels, self.limit = scale, count, limit
        self.add_state("covered", torch.zeros(num_classes, count, LIMBS, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("parts", torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("outside", torch.zeros(num_classes, count, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, saliency: Tensor, regions: Tensor, counted: Tensor) -> None:
        """Add maps, as `PooledRanking.update` does."""
        from scipy.ndimage import label

        for column, on_grid, region in counted_pairs(saliency, regions, counted):
            level = levels(on_grid, self.scale, self.levels)
            outside = np.bincount(level[~region], minlength=self.levels)
            self.outside[column] += torch.from_numpy(outside).to(self.device)
            components, number = label(region, np.ones((3, 3)))
            self.parts[column] += number
            pixels = np.bincount(components[region] * self.levels + level[region], minlength=(number + 1) * self.levels)
            for part in pixels.reshape(number + 1, self.levels)[1:]:
                for place in np.flatnonzero(part):
                    add_exactly(self.covered[column, place], part[place] / part.sum())

    def compute(self) -> dict[str, Tensor]:
        """Return `aupro` (C,) float64 in [0, 1], NaN for a class without a region or without pixels outside."""
        found = [
            self._area(covered, int(parts), outside.cpu().numpy())
            for covered, parts, outside in zip(self.covered, self.parts, self.outside, strict=True)
        ]
        return {"aupro": torch.tensor(found, dtype=torch.float64).to(self.device)}

    def _area(self, covered: Tensor, parts: int, outside: NDArray[np.int64]) -> float:
        total = int(outside.sum())
        if not parts or not total:
            return math.nan
        overlap = np.cumsum([0.0, *(rounded(gained) / parts for gained in covered.flip(0))])
        rate = np.cumsum([0, *outside[::-1]]) / total
        inner = rate < self.limit
        x = np.append(rate[inner], self.limit)
        y = np.append(overlap[inner], np.interp(self.limit, rate, overlap))
        return float(np.trapezoid(y, x)) / self.limit
