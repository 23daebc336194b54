from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from lightning.fabric.utilities import move_data_to_device

from xbench.geometry.regions import Coverage

SIDES = st.tuples(st.integers(1, 9), st.integers(1, 9))


def shares(region: np.ndarray, size: tuple[int, int]) -> list[list[Fraction]]:
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


def parts(region: np.ndarray) -> list[np.ndarray]:
    left, found = {tuple(place) for place in np.argwhere(region).tolist()}, []
    while left:
        part, waiting = np.zeros_like(region), [left.pop()]
        while waiting:
            y, x = waiting.pop()
            part[y, x] = True
            near = {(y + down, x + across) for down in (-1, 0, 1) for across in (-1, 0, 1)} & left
            left -= near
            waiting += near
        found.append(part)
    return found


@settings(max_examples=150)
@given(SIDES.flatmap(lambda shape: arrays.arrays(np.bool_, shape)), SIDES, st.integers(1, 100))
def test_any_gamma_by_fractions(region, size, percent):
    covered = shares(region, size)
    expected = np.array([[share >= Fraction(percent, 100) for share in row] for row in covered])
    for part in parts(region):
        own = np.array(shares(part, size))
        expected |= own == own.max()
    expected = expected.tolist()
    coverage = Coverage.of(region, size)
    assert coverage.at(percent / 100).tolist() == expected
    assert coverage.shape == size and len(coverage.partial) == sum(0 < share < 1 for row in covered for share in row)
    again = Coverage(coverage.shape, coverage.whole, coverage.partial, coverage.share, coverage.kept).checked()
    assert again == coverage == pickle.loads(pickle.dumps(coverage))
    # As part of a batch that goes to a device.
    (moved,) = move_data_to_device([coverage], "cpu")
    assert moved == coverage


def test_a_mask_of_255_covers_what_one_of_1_does():
    mask = np.zeros((9, 7), np.uint8)
    mask[2:6, 1:5] = 255
    assert Coverage.of(mask.view(np.bool_), (4, 5)) == Coverage.of(mask > 0, (4, 5))


def test_what_a_file_keeps_must_be_covered():
    region = np.zeros((100, 100), np.bool_)
    region[39:41, 10:13] = region[90, 90] = True
    coverage = Coverage.of(region, (10, 10))
    assert np.argwhere(coverage.at(0.5)).tolist() == [[3, 1], [4, 1], [9, 9]]
    for kept in ([9], []):
        with pytest.raises(ValueError, match="region keeps"):
            parts = coverage.shape, coverage.whole, coverage.partial, coverage.share
            Coverage(*parts, np.array(kept, np.uint32)).checked()


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
        Coverage(*parts, np.zeros(0, np.uint32)).checked()
