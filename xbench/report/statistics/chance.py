"""What maps of pure chance score on the regions of a run: expectations over many draws, and the spread of one.

A random map has 14 x 14 cells (those of a ViT-B/16 at 224 pixels), uniform and independent, and is enlarged bilinearly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xbench.geometry.coverage import Coverage
from xbench.report.runs import Run
from xbench.report.statistics.sample import Sample
from xbench.runs.maps import saved_regions

__all__ = ["Chance", "chance", "peak_density"]

_CELLS = 14
_PEAKS, _MAPS = 20_000, 64
"""Draws behind the expected pointing game, which takes few pixels of each, and Dice and IoU, which take all."""
_LONGEST = 224
"""Sides of a grid in pixels; larger grids are brought to it, for what 14 cells score does not depend on that."""


@dataclass(frozen=True)
class Chance:
    """What random maps score.

    Attributes:
        sample: Every pair with its expected hit, Dice and IoU; all probabilities alike.
        spread: Standard deviation of the macro number in a run that draws one map for every pair, by key of `NUMBERS`:
            `pointing_game`, `dice_fixed` and `iou_fixed`.
    """

    sample: Sample
    spread: Mapping[str, float]


def chance(run: Run, sample: Sample) -> Chance | None:
    """Score random maps on the regions of a run; None if it did not keep those of all its pairs.

    Args:
        run: Its regions are read one after the other.
        sample: Of the run.
    """
    if not run.pictured or not len(sample.hit):
        return None
    place_of = {
        (sample.image_ids[image], sample.findings[column]): place
        for place, (image, column) in enumerate(zip(sample.pair_image, sample.pair_column, strict=True))
    }
    found = {name: np.full(sample.dice.shape, np.nan) for name in ("dice", "iou", "dice_variance", "iou_variance")}
    hit = np.full(len(sample.hit), np.nan)
    maps: dict[tuple[int, int], _Maps] = {}
    for image_id, finding, region in saved_regions(run.folder):
        place = place_of.get((image_id, finding))
        if place is None:
            continue
        height, width = (min(side, _LONGEST) for side in region.shape)
        on_grid = Coverage.of(region, (height, width)).at(0.5)
        drawn = maps.get((height, width)) or maps.setdefault(
            (height, width), _Maps(height, width, sample.dice.shape[1])
        )
        hit[place] = drawn.density[on_grid].sum()
        for name, scores in zip(("dice", "iou"), drawn.scores(on_grid), strict=True):
            found[name][place], found[f"{name}_variance"][place] = scores.mean(0), scores.var(0)
    if np.isnan(hit).any():
        return None
    variances = {
        "pointing_game": hit * (1 - hit),
        "dice_fixed": found["dice_variance"][:, sample.fixed],
        "iou_fixed": found["iou_variance"][:, sample.fixed],
    }
    expected = replace(
        sample,
        hit=hit,
        dice=found["dice"],
        iou=found["iou"],
        probabilities=np.ones_like(sample.probabilities),
        chances=True,
    )
    return Chance(expected, {key: _deviation(sample, variance) for key, variance in variances.items()})


def _deviation(sample: Sample, variance: NDArray[np.float64]) -> float:
    """Standard deviation of the mean over findings of means over pairs that vary independently, by (P,)."""
    count = np.bincount(sample.pair_column)
    total = np.bincount(sample.pair_column, variance)[count > 0]
    return float(np.sqrt((total / count[count > 0] ** 2).sum()) / (count > 0).sum())


class _Maps:
    """Random maps on a grid (H, W).

    Attributes:
        density: Share of the maps whose maximum is at a pixel (H, W); tied places share it.
    """

    density: NDArray[np.float64]

    def __init__(self, height: int, width: int, thresholds: int) -> None:
        self.density = peak_density((height, width), _PEAKS)
        cells = np.random.default_rng(1).random((_MAPS, _CELLS, _CELLS))
        maps = np.stack([_enlarged(one, _places(height), _places(width)).ravel() for one in cells], 1)
        low, high = maps.min(0), maps.max(0)
        # The highest threshold that a pixel reaches, of each map apart.
        reached = np.floor((maps - low) / (high - low) * (thresholds - 1)).astype(np.int32)
        self._thresholds = thresholds
        self._keys = reached + thresholds * np.arange(_MAPS, dtype=np.int32)
        self._mask = self._at_least(self._keys)

    def scores(self, region: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return Dice and IoU of each map at each threshold, (maps, T), on a region (H, W)."""
        overlap, area = self._at_least(self._keys[region.ravel()]), region.sum()
        return 2 * overlap / (self._mask + area), overlap / (self._mask + area - overlap)

    def _at_least(self, keys: NDArray[np.int32]) -> NDArray[np.int64]:
        counts = np.bincount(keys.ravel(), minlength=_MAPS * self._thresholds).reshape(_MAPS, -1)
        return counts[:, ::-1].cumsum(1)[:, ::-1]


def peak_density(size: tuple[int, int], draws: int, seed: int = 0) -> NDArray[np.float64]:
    """Return where the maxima of random maps lie: the share of them at each pixel of the grid (H, W).

    Between four centres of cells a bilinear map rises or falls along either axis, so of the pixels there one of the
    outermost four is the highest: only those are looked at. Beyond the outermost centres pixels tie. Turning maps over
    gives four for one.
    """
    axes = [_places(side) for side in size]
    places = [np.unique(axis, return_inverse=True, return_counts=True) for axis in axes]
    ends = [_ends(distinct) for distinct, _, _ in places]
    rows, columns = (distinct[end] for (distinct, _, _), end in zip(places, ends, strict=True))
    counts = np.zeros(len(rows) * len(columns))
    random = np.random.default_rng(seed)
    for start in range(0, draws, 500):
        cells = random.random((min(500, draws - start), _CELLS, _CELLS))
        highest = _enlarged(cells, rows, columns).reshape(len(cells), -1).argmax(1)
        counts += np.bincount(highest, minlength=len(counts))
    of_places = np.zeros([len(distinct) for distinct, _, _ in places])
    of_places[np.ix_(*ends)] = counts.reshape(len(rows), len(columns)) / draws
    (_, row, tied_rows), (_, column, tied_columns) = places
    density = (of_places / np.outer(tied_rows, tied_columns))[np.ix_(row, column)]
    return (density + density[::-1] + density[:, ::-1] + density[::-1, ::-1]) / 4


def _places(pixels: int) -> NDArray[np.float64]:
    """Place the centres of grid pixels among those of the cells, (pixels,)."""
    return ((np.arange(pixels) + 0.5) * _CELLS / pixels - 0.5).clip(0, _CELLS - 1)


def _ends(places: NDArray[np.float64]) -> NDArray[np.int64]:
    """Which of ascending places are the first or the last between two cells."""
    cell = np.floor(places)
    changes = np.diff(cell, prepend=-1, append=_CELLS) > 0
    return np.flatnonzero(changes[:-1] | changes[1:])


def _enlarged(
    cells: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Bilinear values of cells (..., h, w) at rows (R,) and columns (C,), as (..., R, C)."""
    for axis, places in ((-2, rows[:, None]), (-1, columns)):
        before = np.minimum(np.floor(places), _CELLS - 2).astype(np.int64)
        first, second = (np.take(cells, cell.ravel(), axis) for cell in (before, before + 1))
        cells = first + (places - before) * (second - first)
    return cells
