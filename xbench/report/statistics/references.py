"""Floors and ceilings: what useless and perfect answers score on a dataset.

The floor of chance is the expectation over many random maps, with the spread of one draw. A random map has 14 x 14
cells (those of a ViT-B/16 at 224 pixels), uniform and independent, and is enlarged bilinearly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from xbench.findings.names import MACRO
from xbench.geometry.regions import Coverage
from xbench.report.names import CEILINGS
from xbench.report.runs import Run
from xbench.report.schema import NUMBERS, Reference, RunAnalysis
from xbench.report.statistics.measures import measure
from xbench.report.statistics.sample import Sample
from xbench.scoring.numbers import dice, iou

_AGREEMENT = ("dice_best", "iou_best", "dice_cross_fitted", "iou_cross_fitted", "dice_fixed", "iou_fixed")

_CELLS = 14
_PEAKS, _MAPS = 20_000, 64
"""Draws behind the expected pointing game, which takes few pixels of each, and Dice and IoU, which take all."""
_LONGEST = 224
"""Sides of a grid in pixels; larger grids are brought to it, which does not change what 14 cells score."""


def references(run: Run, sample: Sample, runs: Sequence[RunAnalysis], folds: int) -> tuple[Reference, ...]:
    """Return the floors, then the ceilings: `runs` of references, and what needs no run of its own.

    The latter are computed from the labels and regions of `run`; `folds` are those of cross-fitting.
    """
    floors, ceilings = [_reference("Whole image", "floor", whole_image(sample), NUMBERS)], []
    if drawn := chance(run, sample):
        # F1 and accuracy depend on where probabilities lie and not on their order alone.
        keys = [key for key in NUMBERS if key not in ("f1", "accuracy")]
        floors.append(_reference("Random", "floor", drawn[0], keys, folds, drawn[1]))
    for one in runs:
        boxes = one.run.results.box_numbers.get(MACRO, {})
        if one.run.model in CEILINGS:
            ceilings.append(Reference(one.run.label, "ceiling", one.macro, one.findings, boxes=boxes))
        # A run of random maps is one draw of what stands there already.
        elif one.run.model != "random" or drawn is None:
            floors.append(Reference(one.run.label, "floor", one.macro, one.findings, boxes=boxes))
    if agreement := reader_agreement(run, sample):
        ceilings.append(_reference("Reader agreement", "ceiling", agreement, _AGREEMENT))
    return *floors, *ceilings


def _reference(
    title: str,
    kind: Literal["floor", "ceiling"],
    sample: Sample,
    keys: Iterable[str],
    folds: int = 2,
    spread: Mapping[str, float] | None = None,
) -> Reference:
    """Return a reference with some numbers; scores that do not depend on the threshold need no more than two folds."""
    measures = measure(sample, folds)
    numbers = {"": measures.macro(), **measures.findings()}
    chosen = {finding: {key: of[key] for key in keys} for finding, of in numbers.items()}
    return Reference(title, kind, chosen.pop(""), chosen, spread or {})


def whole_image(sample: Sample) -> Sample:
    """Return the sample of who finds everything in every image and marks all of it.

    With a region that takes the share a of the grid, Dice is 2a / (1 + a), IoU is a, and so is the chance that a random
    point lies in the region, for which the pointing game stands. Its probabilities are all 1: AUROC is 0.5, average
    precision and accuracy are the share of positives.
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
    """Return the sample in which a pair scores the agreement of its readers; None where no finding had several."""
    dice, iou = (sample.of_pairs(run, f"reader_{name}")[:, None] for name in ("dice", "iou"))
    several = np.flatnonzero(~np.isnan(dice))
    return replace(sample, dice=dice, iou=iou).with_pairs(several) if len(several) else None


def chance(run: Run, sample: Sample) -> tuple[Sample, dict[str, float]] | None:
    """Score random maps on the regions of a run; None if it did not keep those of all its pairs.

    The sample returned has every pair's expected hit, Dice and IoU and all probabilities alike. With it come the
    standard deviations of macro `pointing_game`, `dice_fixed` and `iou_fixed` between runs of one map for every pair.
    """
    if not run.pictured or not len(sample.hit):
        return None
    rows = run.rows
    place_of = {
        (rows.image_ids[rows.image[row]], rows.queries[rows.query[row]]): place for place, row in enumerate(sample.row)
    }
    # Not those of the sample, which has one of a model that answers.
    thresholds = len(run.results.grounding.thresholds)
    hit = np.full(len(sample.hit), np.nan)
    expected = {name: np.full((len(hit), thresholds), np.nan) for name in ("dice", "iou")}
    variances = {name: np.full(len(hit), np.nan) for name in ("dice", "iou")}
    maps_of = lru_cache(maxsize=None)(_Maps)
    for image_id, finding, region in run.stored.regions():
        if (place := place_of.get((image_id, finding))) is None:
            continue
        height, width = (min(side, _LONGEST) for side in region.shape)
        on_grid, maps = Coverage.of(region, (height, width)).at(0.5), maps_of(height, width, thresholds)
        hit[place] = maps.density[on_grid].sum()
        for name, scores in zip(expected, maps.scores(on_grid), strict=True):
            expected[name][place], variances[name][place] = scores.mean(0), scores.var(0)[thresholds // 2]
    if np.isnan(hit).any():
        return None
    alike = np.ones_like(sample.probabilities)
    drawn = replace(sample, hit=hit, dice=expected["dice"], iou=expected["iou"], probabilities=alike, chances=True)
    spreads = {"pointing_game": hit * (1 - hit), "dice_fixed": variances["dice"], "iou_fixed": variances["iou"]}
    # Of means over findings of means over pairs, which vary independently.
    _, column, count = np.unique(sample.pair_column, return_inverse=True, return_counts=True)
    totals = {name: np.bincount(column, variance) / count**2 for name, variance in spreads.items()}
    return drawn, {name: float(np.sqrt(total.sum()) / len(count)) for name, total in totals.items()}


class _Maps:
    """Random maps on a grid (H, W), with the share of the maps whose maximum is at each pixel as `density` (H, W)."""

    def __init__(self, height: int, width: int, thresholds: int) -> None:
        self.density = peak_density((height, width), _PEAKS)
        cells = np.random.default_rng(1).random((_MAPS, _CELLS, _CELLS))
        maps = np.stack([_enlarged(one, _places(height), _places(width)).ravel() for one in cells], 1)
        low, high = maps.min(0), maps.max(0)
        # The highest threshold that a pixel reaches, of each map apart.
        reached = np.floor((maps - low) / (high - low) * (thresholds - 1)).astype(np.int64)
        self._thresholds = thresholds
        self._keys = reached + thresholds * np.arange(_MAPS)
        self._mask = self._at_least(self._keys)

    def scores(self, region: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return Dice and IoU of each map at each threshold, (maps, T), on a region (H, W)."""
        overlap, area = self._at_least(self._keys.take(np.flatnonzero(region), axis=0)), region.sum()
        return dice(self._mask, overlap, area), iou(self._mask, overlap, area)

    def _at_least(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
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
    """Place the centres of grid pixels among those of the cells, (pixels,)."""
    return ((np.arange(pixels) + 0.5) * _CELLS / pixels - 0.5).clip(0, _CELLS - 1)


def _enlarged(
    cells: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Bilinear values of cells (..., h, w) at rows (R,) and columns (C,), as (..., R, C)."""
    for axis, places in ((-2, rows[:, None]), (-1, columns)):
        before = np.minimum(np.floor(places), _CELLS - 2).astype(np.int64)
        first, second = (np.take(cells, cell.ravel(), axis) for cell in (before, before + 1))
        cells = first + (places - before) * (second - first)
    return cells
