"""Grounding against the lesion: its size, its place, and whether it was recognised."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xbench.report.runs import Run
from xbench.report.schema import NEAR, AreaBin, PositionCell, Quadrants
from xbench.report.statistics.measures import Group, Measures
from xbench.report.statistics.sample import Sample

__all__ = ["area_bins", "area_groups", "position_cells", "position_groups", "quadrants"]

_BINS, _PAIRS_IN_A_BIN, _SIDE = 10, 10, 3


def area_groups(sample: Sample) -> tuple[Group, ...]:
    """Return the pairs by decile of their regions' area, smallest first.

    Fewer than 100 pairs make fewer bins of about ten. Regions of one size stay together, so that bins may differ in
    number, and there may be fewer.
    """
    bins = min(_BINS, max(1, len(sample.area) // _PAIRS_IN_A_BIN))
    if not len(sample.area):
        return ()
    edges = np.quantile(sample.area, np.arange(1, bins) / bins)
    place = np.searchsorted(edges, sample.area)
    numbers = ("pointing_game", "dice_fixed", "dice_cross_fitted")
    return tuple(Group(np.flatnonzero(place == bin_), numbers) for bin_ in np.unique(place))


def area_bins(measures: Measures, groups: tuple[Group, ...]) -> tuple[AreaBin, ...]:
    """Return the scores by area.

    Args:
        measures: Of the run; its first groups are these.
        groups: From `area_groups`.
    """
    bins = []
    for group, scores in zip(groups, measures.groups, strict=False):
        area = measures.sample.area[group.pairs]
        bins.append(
            AreaBin(
                low=float(area.min()),
                high=float(area.max()),
                count=len(area),
                scores=scores,
                whole_image=float((2 * area / (1 + area)).mean()),
            )
        )
    return tuple(bins)


def position_groups(sample: Sample, run: Run) -> tuple[Group, ...]:
    """Return the pairs by the cell of a 3 x 3 division of the image that their region's centre of mass lies in.

    Nine groups row by row, or none without a pair.
    """
    if not len(sample.hit):
        return ()
    cell = _cells(_of_pairs(sample, run, run.images.region_x), _of_pairs(sample, run, run.images.region_y))
    return tuple(Group(np.flatnonzero(cell == place), ("pointing_game", "dice_fixed")) for place in range(_SIDE**2))


def position_cells(measures: Measures, groups: tuple[Group, ...], run: Run) -> tuple[PositionCell, ...]:
    """Return the scores by position, nine cells row by row; none without pairs.

    Args:
        measures: Of the run; its last groups are these.
        groups: From `position_groups`.
        run: The run.
    """
    if not groups:
        return ()
    peak = _cells(*(_of_pairs(measures.sample, run, place) for place in (run.images.peak_x, run.images.peak_y)))
    return tuple(
        PositionCell(
            row=place // _SIDE,
            column=place % _SIDE,
            count=len(group.pairs),
            scores=scores,
            peaks=float((peak == place).mean()),
        )
        for place, (group, scores) in enumerate(zip(groups, measures.groups[-len(groups) :], strict=True))
    )


def quadrants(sample: Sample, run: Run) -> dict[str, Quadrants]:
    """Return by finding how recognition and grounding go together; only findings with both labels and a scored pair.

    Args:
        sample: Of the run.
        run: The run.
    """
    found = {}
    near = _of_pairs(sample, run, run.images.peak_distance) <= NEAR
    for column, finding in enumerate(sample.findings):
        threshold = _youden(sample.labels[:, column], sample.probabilities[:, column])
        pairs = np.flatnonzero(sample.pair_column == column)
        if threshold is None or not len(pairs):
            continue
        recognised = sample.probabilities[sample.pair_image[pairs], column] >= threshold
        grounded = sample.hit[pairs] >= 0.5
        found[finding] = Quadrants(
            threshold=threshold,
            both=float((recognised & grounded).mean()),
            near_miss=float((recognised & ~grounded & near[pairs]).mean()),
            elsewhere=float((recognised & ~grounded & ~near[pairs]).mean()),
            grounded_only=float((~recognised & grounded).mean()),
            neither=float((~recognised & ~grounded).mean()),
            count=len(pairs),
        )
    return found


def _youden(labels: NDArray[np.int8], probabilities: NDArray[np.float64]) -> float | None:
    """The lowest probability p of an image at which the sensitivity and specificity of `>= p` have the largest sum."""
    positive, negative = np.sort(probabilities[labels == 1]), np.sort(probabilities[labels == 0])
    if not len(positive) or not len(negative):
        return None
    candidates = np.unique(np.concatenate([positive, negative]))
    missed = np.searchsorted(positive, candidates)
    rejected = np.searchsorted(negative, candidates)
    # In whole numbers, so that ties are ties.
    return float(candidates[(rejected * len(positive) - missed * len(negative)).argmax()])


def _of_pairs(sample: Sample, run: Run, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of the run's images and findings as those of the sample's pairs (P,)."""
    row_of = {image_id: row for row, image_id in enumerate(run.images.image_ids)}
    rows = np.array([row_of[sample.image_ids[image]] for image in sample.pair_image], dtype=np.int64)
    return values[rows, sample.pair_column]


def _cells(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.int64]:
    row, column = (np.clip((place * _SIDE).astype(np.int64), 0, _SIDE - 1) for place in (y, x))
    return row * _SIDE + column
