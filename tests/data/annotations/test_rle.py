from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from official.siim import encode_relative_rle

from xbench.data.annotations.rle import decode_relative_rle
from xbench.errors import UserError


def decode_slowly(row: str, height: int, width: int) -> np.ndarray:
    """One pixel after the other, as the competition's own script does it."""
    mask = np.zeros((height, width), bool)
    numbers = [int(number) for number in row.split()]
    position = 0
    for offset, length in zip(numbers[::2], numbers[1::2], strict=True):
        position += offset
        for place in range(position, position + length):
            mask[place % height, place // height] = True
        position += length
    return mask


@st.composite
def encodings(draw: st.DrawFn) -> tuple[list[str], int, int]:
    height, width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        left, numbers = height * width, []
        while left and (not numbers or draw(st.booleans())):
            # 0 is a run that touches the one before.
            offset = draw(st.just(0) | st.integers(0, left - 1))
            numbers += [offset, draw(st.integers(1, left - offset))]
            left -= sum(numbers[-2:])
        rows.append(" ".join(map(str, numbers)))
    return rows, height, width


@given(encodings())
def test_union_equals_a_plain_loop(case):
    rows, height, width = case
    expected = np.zeros((height, width), bool)
    for row in rows:
        expected |= decode_slowly(row, height, width)
    mask = decode_relative_rle(rows, height, width)
    assert mask.dtype == bool
    assert mask.flags.c_contiguous
    np.testing.assert_array_equal(mask, expected)


@given(st.integers(0, 2**30), st.integers(2, 40), st.integers(2, 40))
def test_round_trip(seed, height, width):
    mask = np.random.default_rng(seed).random((height, width)) < 0.4
    mask[0, 0] = True
    np.testing.assert_array_equal(decode_relative_rle([encode_relative_rle(mask)], height, width), mask)


def test_runs_that_touch():
    rows = ["0 1 0 2 3 1 0 5", "2 1 0 1 0 1", "0 12"]
    for chosen in (rows[:1], rows[:2], rows):
        expected = np.logical_or.reduce([decode_slowly(row, 4, 3) for row in chosen])
        np.testing.assert_array_equal(decode_relative_rle(chosen, 4, 3), expected)


def test_order_of_rows_and_repeats_do_not_matter():
    rows = ["0 3", "5 2 1 1", "1 4"]
    expected = decode_relative_rle(rows, 4, 3)
    np.testing.assert_array_equal(decode_relative_rle([*rows[::-1], rows[0]], 4, 3), expected)


def test_the_last_pixel_can_be_reached_but_not_passed():
    assert decode_relative_rle(["11 1"], 4, 3)[3, 2]
    with pytest.raises(UserError, match="runs to pixel 13 of an image of 12"):
        decode_relative_rle(["0 1", "11 2"], 4, 3)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("", "whole numbers"),
        ("1 2 3", "3 numbers"),
        ("-1", "whole numbers"),
        ("3 -1", "whole numbers"),
        ("1 2.0", "whole numbers"),
        ("1 two", "whole numbers"),
        ("1_0 1", "whole numbers"),
        ("\u0661 \u0662", "whole numbers"),
        ("nan 1", "whole numbers"),
        ("1 0", "no pixels"),
        ("0 99999999999999999999999", "whole numbers"),
        ("4294967296 1", "runs to pixel"),
        ("1 " + "9" * 5000, "whole numbers"),
    ],
)
def test_malformed_rows(row, said):
    with pytest.raises(UserError, match=said) as caught:
        decode_relative_rle(["0 1", row], 4, 3)
    assert len(str(caught.value)) < 200


@given(st.text(alphabet="0123456789 -.,x\n", max_size=20))
def test_any_text_decodes_or_is_refused(text):
    with contextlib.suppress(UserError):
        assert decode_relative_rle([text], 7, 5).shape == (7, 5)
