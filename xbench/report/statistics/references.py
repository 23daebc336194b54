"""Floors and ceilings: the scores of useless and perfect answers on a dataset.

The floor of chance is the expectation over many random maps, with the spread of one draw. A random map has 14 x 14
cells (those of a ViT-B/16 at 224 pixels), uniform and independent, enlarged bilinearly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import isclose
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.findings.names import MACRO
from xbench.geometry.regions import Coverage
from xbench.report.names import CEILINGS
from xbench.report.runs import Run
from xbench.report.schema import NUMBERS, Bound, Estimate, Reference, RunAnalysis
from xbench.report.statistics.intervals import Floats
from xbench.report.statistics.measures import measure
from xbench.report.statistics.sample import Sample
from xbench.scoring.interventions import keys_of
from xbench.scoring.numbers import dice, iou

_AGREEMENT = ("dice_best", "iou_best", "dice_cross_fitted", "iou_cross_fitted", "dice_fixed", "iou_fixed")
_CELLS = 14
_PEAKS, _MAPS = 20_000, 64
"""Draws for the expected pointing game, which reads few pixels of each, and for Dice and IoU, which read all."""
_BLOCK = 8
_LONGEST = 224
"""Largest side of a grid in pixels; larger grids are shrunk, because 14 cells score the same there."""


def references(run: Run, sample: Sample, runs: Sequence[RunAnalysis], folds: int) -> tuple[Reference, ...]:
    """Return the floors, then the ceilings: `runs` of references, and those that need no run of their own.

    The latter are computed from the labels and regions of `run`; `folds` are those of cross-fitting.
    """
    floors, ceilings = [_reference("Whole image", "floor", whole_image(sample), NUMBERS)], []
    if drawn := chance(run, sample):
        # F1 and accuracy depend on more than the order of probabilities.
        keys = [key for key in NUMBERS if key not in ("f1", "accuracy")]
        floors.append(replace(_reference("Random", "floor", drawn[0], keys, folds), spread=drawn[1]))
    for one in runs:
        boxes = one.run.results.box_numbers.get(MACRO, {})
        if one.run.model in CEILINGS:
            ceilings.append(Reference(one.run.label, "ceiling", one.macro, one.findings, boxes=boxes))
        elif one.run.model == "whole_image":
            # Areas of regions, whose interval needs no allowance for unseen hits.
            own = {name: _with_limits(of, floors[0].findings.get(name, {})) for name, of in one.findings.items()}
            floors.append(Reference(one.run.label, "floor", _with_limits(one.macro, floors[0].macro), own, boxes=boxes))
        # A run of random maps is one draw of the floor above.
        elif one.run.model != "random" or drawn is None:
            floors.append(Reference(one.run.label, "floor", one.macro, one.findings, boxes=boxes))
    if agreement := reader_agreement(run, sample):
        ceilings.append(_reference("Reader agreement", "ceiling", agreement, _AGREEMENT))
    return *floors, *ceilings


def _with_limits(numbers: Mapping[str, Estimate], others: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return numbers with the intervals of others that have the same value."""

    def of(key: str, own: Estimate) -> Estimate:
        other = others.get(key, own)
        same = None not in (own.value, other.value) and isclose(own.value or 0.0, other.value or 0.0, abs_tol=1e-9)
        return other if same else own

    return {key: of(key, own) for key, own in numbers.items()}


def _reference(title: str, kind: Bound, sample: Sample, keys: Iterable[str], folds: int = 2) -> Reference:
    """Return a reference with some numbers; scores that ignore thresholds need no more than two folds."""
    measures = measure(sample, folds)
    numbers = {"": measures.macro(), **measures.findings()}
    chosen = {finding: {key: of[key] for key in keys} for finding, of in numbers.items()}
    return Reference(title, kind, chosen.pop(""), chosen)


def whole_image(sample: Sample) -> Sample:
    """Return the sample of a model that finds everything in every image and marks all of it.

    With a region of share a of the grid, Dice is 2a / (1 + a), IoU is a, and the pointing game is a, the chance that a
    random point hits. All probabilities are 1, so AUROC is 0.5, and average precision and accuracy are the share of
    positives.
    """
    area = sample.area
    return replace(
        sample,
        probabilities=np.ones_like(sample.probabilities),
        hit=area,
        dice=dice(np.ones_like(area), area, area)[:, None],
        iou=area[:, None],
        chances=True,
    )


def reader_agreement(run: Run, sample: Sample) -> Sample | None:
    """Return the sample in which a pair scores the agreement of its readers; None without any."""
    dice, iou = (run.rows[f"reader_{name}"][sample.row][:, None] for name in ("dice", "iou"))
    several = np.flatnonzero(~np.isnan(dice))
    return replace(sample, dice=dice, iou=iou).with_pairs(several) if len(several) else None


def chance(run: Run, sample: Sample) -> tuple[Sample, dict[str, float]] | None:
    """Score random maps on the regions of a run; None if it did not keep all of them.

    Return a sample with every pair's expected hit, Dice and IoU and equal probabilities, and the standard deviations of
    macro `pointing_game`, `dice_fixed` and `iou_fixed` between runs of one map for every pair.
    """
    if not run.pictured or not len(sample.hit):
        return None
    keys = keys_of(run.rows)
    place_of = {keys[row]: place for place, row in enumerate(sample.row)}
    # Not those of the sample, which has one for boxes.
    thresholds = len(run.results.grounding.thresholds)
    hit = np.full(len(sample.hit), np.nan)
    expected = {name: np.full((len(hit), thresholds), np.nan) for name in ("dice", "iou")}
    fixed = {name: np.full((len(hit), _MAPS), np.nan) for name in expected}
    maps_of = lru_cache(maxsize=None)(_Maps)
    for image_id, finding, region in run.stored.regions():
        if (place := place_of.get((image_id, finding))) is None:
            continue
        size = height, width = min(region.shape[0], _LONGEST), min(region.shape[1], _LONGEST)
        on_grid = region if region.shape == size else Coverage.of(region, size).at(0.5)
        hit[place], *of_maps = maps_of(height, width, thresholds).scores(on_grid)
        for name, scores in zip(expected, of_maps, strict=True):
            expected[name][place], fixed[name][place] = scores.mean(0), scores[:, thresholds // 2]
    if np.isnan(hit).any():
        return None
    variances = {name: sum((of.T - expected[name][:, thresholds // 2]) ** 2) / _MAPS for name, of in fixed.items()}
    alike = np.ones_like(sample.probabilities)
    drawn = replace(sample, hit=hit, dice=expected["dice"], iou=expected["iou"], probabilities=alike, chances=True)
    spreads = {"pointing_game": hit * (1 - hit), "dice_fixed": variances["dice"], "iou_fixed": variances["iou"]}
    # Pairs vary independently; numbers are means over findings of means over pairs.
    _, column, count = np.unique(sample.pair_column, return_inverse=True, return_counts=True)
    totals = {name: np.bincount(column, variance) / count**2 for name, variance in spreads.items()}
    return drawn, {name: float(np.sqrt(total.sum()) / len(count)) for name, total in totals.items()}


class _Maps:
    """Random maps on a grid (H, W), with pixels counted by map and by the highest threshold that they reach.

    Blocks of pixels are counted once; of a region, only the pixels outside whole blocks are.
    """

    def __init__(self, height: int, width: int, thresholds: int) -> None:
        cells = np.random.default_rng(1).random((_MAPS, _CELLS, _CELLS))
        maps = _enlarged(cells, _places(height), _places(width)).reshape(_MAPS, -1)
        low, high = maps.min(1, keepdims=True), maps.max(1, keepdims=True)
        reached = ((maps - low) / (high - low) * (thresholds - 1)).astype(np.int32)
        self._keys = (reached + thresholds * np.arange(_MAPS, dtype=np.int32)[:, None]).T.copy()
        # The share of the maps whose maximum is at each pixel.
        self._density = peak_density((height, width), _PEAKS).ravel()
        row, column = np.arange(height) // _BLOCK, np.arange(width) // _BLOCK
        self._block = np.add.outer(row * (column[-1] + 1), column).ravel()
        self._sizes, bins = np.bincount(self._block), _MAPS * thresholds
        counts = np.bincount((self._keys + self._block[:, None] * bins).ravel(), minlength=len(self._sizes) * bins)
        # 16 bits hold all pixels of a grid.
        self._of_blocks = counts.astype(np.uint16).reshape(-1, bins)
        self._mask = self._at_least(self._of_blocks.sum(0))

    def scores(self, region: NDArray[np.bool_]) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Return the chance of a hit, and Dice and IoU of each map at each threshold, (maps, T), on a region (H, W)."""
        places = np.flatnonzero(region)
        block, area = self._block[places], np.asarray(len(places))
        whole = np.bincount(block, minlength=len(self._sizes)) == self._sizes
        keys = self._keys[places[~whole[block]]].astype(np.int64)
        counts = self._of_blocks[whole].sum(0, dtype=np.uint16)
        overlap = self._at_least(counts + np.bincount(keys.ravel(), minlength=len(counts)))
        return self._density[places].sum(), dice(self._mask, overlap, area), iou(self._mask, overlap, area)

    def _at_least(self, counts: NDArray[Any]) -> NDArray[np.float64]:
        return counts.astype(np.float64).reshape(_MAPS, -1)[:, ::-1].cumsum(1)[:, ::-1]


def peak_density(size: tuple[int, int], draws: int, seed: int = 0) -> NDArray[np.float64]:
    """Return the share of the maxima of random maps at each pixel of the grid (H, W).

    Between four centers of cells a bilinear map is monotonic along either axis, so only the outermost four pixels there
    can be highest. Beyond the outermost centers pixels tie. Flipping gives four maps for one.
    """
    axes = [_places(side) for side in size]
    places = [np.unique(axis, return_inverse=True, return_counts=True) for axis in axes]
    # The first or the last between two cells.
    changes = [np.diff(np.floor(distinct), prepend=-1, append=_CELLS) > 0 for distinct, _, _ in places]
    ends = [np.flatnonzero(change[:-1] | change[1:]) for change in changes]
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
    """Place the centers of grid pixels among those of the cells (pixels)."""
    return ((np.arange(pixels) + 0.5) * _CELLS / pixels - 0.5).clip(0, _CELLS - 1)


def _enlarged(cells: Floats, rows: Floats, columns: Floats) -> Floats:
    """Return bilinear values of cells (..., h, w) at rows (R) and columns (C), as (..., R, C)."""
    for axis, places in ((-2, rows[:, None]), (-1, columns)):
        before = np.minimum(np.floor(places), _CELLS - 2).astype(np.int64)
        first, second = (np.take(cells, cell.ravel(), axis) for cell in (before, before + 1))
        cells = first + (places - before) * (second - first)
    return cells
