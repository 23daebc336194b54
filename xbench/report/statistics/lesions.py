"""Relate grounding to the size and place of the lesion, and to recognition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xbench.report.runs import Run
from xbench.report.schema import NEAR, AreaBin, PositionCell, Quadrants
from xbench.report.statistics.measures import Measures
from xbench.report.statistics.sample import Sample
from xbench.scoring.numbers import youden


def area_bins(measures: Measures) -> tuple[AreaBin, ...]:
    """Return the scores by decile of the regions' area, smallest first.

    Fewer than 100 pairs make fewer bins of about ten. Regions of one size stay together, so bins may differ in number.
    """
    area = measures.sample.area
    if not len(area):
        return ()
    count = min(10, max(1, len(area) // 10))
    place = np.searchsorted(np.quantile(area, np.arange(1, count) / count), area)
    # One mask has no thresholds to choose from.
    numbers = ("pointing_game", "dice_fixed", "dice_cross_fitted")[: 2 if measures.sample.one_mask else 3]
    bins = []
    for pairs in (np.flatnonzero(place == bin_) for bin_ in np.unique(place)):
        scores = measures.means(pairs, numbers)
        whole_image = float((2 * area[pairs] / (1 + area[pairs])).mean())
        bins.append(AreaBin(float(area[pairs].min()), float(area[pairs].max()), len(pairs), scores, whole_image))
    return tuple(bins)


def position_cells(measures: Measures, run: Run) -> tuple[PositionCell, ...]:
    """Return scores by the ninth of the image with the region's center of mass, row by row; empty without pairs."""
    sample = measures.sample
    if not len(sample.hit):
        return ()

    def cell_of(name: str) -> NDArray[np.int64]:
        # NaN, without a peak, is in no cell.
        column, row = (np.clip(np.floor(run.rows[f"{name}_{axis}"][sample.row] * 3), None, 2) for axis in "xy")
        return np.asarray(np.nan_to_num(3 * row + column, nan=-1), np.int64)

    region, peak = cell_of("region"), cell_of("peak")
    cells = []
    for place in range(9):
        pairs = np.flatnonzero(region == place)
        scores = measures.means(pairs, ("pointing_game", "dice_fixed"))
        cells.append(PositionCell(*divmod(place, 3), len(pairs), scores, float((peak == place).mean())))
    return tuple(cells)


def quadrants(sample: Sample, run: Run) -> dict[str, Quadrants]:
    """Return by finding how recognition and grounding go together, if it has both labels and a scored pair."""
    found = {}
    near = run.rows["peak_distance"][sample.row] <= NEAR
    for column, finding in enumerate(sample.findings):
        scores, pairs = sample.probabilities[:, column], np.flatnonzero(sample.pair_column == column)
        best = youden(sample.labels[:, column], scores)
        # A model without scores, or with one for all images, recognizes nothing.
        if best is None or not np.ptp(scores) > 0 or not len(pairs):
            continue
        recognized = scores[sample.pair_image[pairs]] >= best[1]
        grounded = sample.hit[pairs] >= 0.5
        shares = {"both": recognized & grounded, "grounded_only": ~recognized & grounded}
        shares |= {"near_miss": recognized & ~grounded & near[pairs], "neither": ~recognized & ~grounded}
        shares |= {"elsewhere": recognized & ~grounded & ~near[pairs]}
        means = {name: float(which.mean()) for name, which in shares.items()}
        found[finding] = Quadrants(best[1], **means, count=len(pairs))
    return found
