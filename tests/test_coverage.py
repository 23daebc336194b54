"""Regions kept as exact shares are, at every gamma, the regions themselves."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from lightning.fabric.utilities import move_data_to_device

from xbench.coverage import Coverage

SIDES = st.tuples(st.integers(1, 9), st.integers(1, 9))


def shares(region: np.ndarray, size: tuple[int, int]) -> list[list[Fraction]]:
    """Share of each grid pixel that a region covers, by fractions of overlapping rectangles."""

    def overlap(pixel: int, pixels: int, cell: int, cells: int) -> Fraction:
        low = max(Fraction(pixel, pixels), Fraction(cell, cells))
        high = min(Fraction(pixel + 1, pixels), Fraction(cell + 1, cells))
        return max(Fraction(0), high - low) * cells

    (h, w), (height, width) = region.shape, size
    return [
        [
            sum(
                (overlap(y, h, row, height) * overlap(x, w, column, width) for y, x in np.argwhere(region).tolist()),
                Fraction(0),
            )
            for column in range(width)
        ]
        for row in range(height)
    ]


@settings(max_examples=50)
@given(SIDES.flatmap(lambda shape: arrays.arrays(np.bool_, shape)), SIDES, st.integers(1, 100))
def test_any_gamma_by_fractions(region, size, percent):
    covered = shares(region, size)
    expected = [[share >= Fraction(percent, 100) for share in row] for row in covered]
    most = max(share for row in covered for share in row)
    if most > 0 and not np.any(expected):
        expected = [[share == most for share in row] for row in covered]
    coverage = Coverage.of(region, size)
    assert coverage.at(percent / 100).tolist() == expected
    assert coverage.shape == size and len(coverage.partial) == sum(0 < share < 1 for row in covered for share in row)
    again = Coverage.checked(coverage.shape, coverage.whole, coverage.partial, coverage.share)
    assert again == coverage == pickle.loads(pickle.dumps(coverage))
    # As part of a batch that goes to a device.
    (moved,) = move_data_to_device([coverage], "cpu")
    assert moved == coverage


@given(SIDES.flatmap(lambda shape: arrays.arrays(np.bool_, shape)), st.floats(0.001, 1))
def test_a_region_on_its_own_grid_stays_as_it_is(region, gamma):
    assert np.array_equal(Coverage.of(region, region.shape).at(gamma), region)


NONE = np.zeros(0, np.uint32), np.zeros(0)


@pytest.mark.parametrize(
    "parts",
    [
        ((0, 8), np.zeros(0, np.uint8), *NONE),
        ((8, 8), np.zeros(7, np.uint8), *NONE),
        ((8, 8), np.zeros(9, np.uint8), *NONE),
        ((8, 8), np.zeros(8, np.uint8), np.array([64], np.uint32), np.array([0.5])),
        ((8, 8), np.zeros(8, np.uint8), np.array([3], np.uint32), np.array([1.5])),
        ((8, 8), np.zeros(8, np.uint8), np.array([3], np.uint32), np.array([0.0])),
        ((8, 8), np.zeros(8, np.uint8), np.array([3], np.uint32), np.array([np.nan])),
        ((8, 8), np.zeros(8, np.uint8), np.array([3, 4], np.uint32), np.array([0.5])),
    ],
    ids=["no pixel", "bits missing", "bits too many", "off the grid", "above 1", "0", "nan", "lengths differ"],
)
def test_what_no_region_gives_is_refused(parts):
    with pytest.raises(ValueError, match="region"):
        Coverage.checked(*parts)


def test_coverages_differ_in_every_part():
    region = np.eye(5, dtype=bool)
    coverage = Coverage.of(region, (4, 4))
    assert coverage != Coverage.of(region, (4, 3)) and coverage != Coverage.of(~region, (4, 4))
    assert coverage != Coverage(coverage.shape, coverage.whole, coverage.partial, coverage.share + 1e-9)
    assert coverage != Coverage(coverage.shape, coverage.whole, coverage.partial + 1, coverage.share)
    assert coverage != "coverage"
