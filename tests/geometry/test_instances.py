"""Annotated items: what is kept of them draws the pixels that were annotated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pycocotools import mask as coco
from scipy import ndimage

from xbench.data.annotations.shapes import Box, CocoPolygon, FractionBox, Parts, Polygon, RelativeRLE
from xbench.geometry.instances import Instance, connected_parts, runs_of

MASKS = hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12))
NUMBERS = st.floats(-4, 16, width=16)
POINTS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=7)
SHAPES = st.one_of(
    st.builds(Box, *[st.integers(-3, 12)] * 4),
    st.builds(FractionBox, *[st.floats(-0.5, 1.5)] * 4),
    st.builds(Polygon.of, POINTS),
    st.builds(CocoPolygon.of, POINTS),
)


@given(MASKS)
def test_run_lengths_are_those_of_coco_and_give_the_mask_back(mask):
    runs = runs_of(mask)
    encoded = coco.frPyObjects({"counts": runs.astype(int).tolist(), "size": [*mask.shape]}, *mask.shape)
    assert encoded["counts"] == coco.encode(np.asfortranarray(mask, np.uint8))["counts"]
    np.testing.assert_array_equal(Instance("mask", mask.shape, runs).draw(), mask)


@given(SHAPES | st.builds(Parts, st.tuples(SHAPES, SHAPES)), st.integers(9, 13), st.integers(9, 13))
def test_an_item_has_the_pixels_of_its_shape(shape, height, width):
    item = shape.instance(height, width, "R1")
    np.testing.assert_array_equal(item.draw(), shape.draw(height, width))
    again = Instance.checked(item.kind, [*item.frame], item.coordinates, item.reader, item.outline)
    assert again == item and again.reader == "R1"


def test_a_run_length_encoded_row_is_an_item():
    row = RelativeRLE("1 1 6 1")
    np.testing.assert_array_equal(row.instance(3, 3).draw(), row.draw(3, 3))


@given(MASKS)
def test_connected_parts_are_those_of_scipy(mask):
    labels, count = ndimage.label(mask, np.ones((3, 3)))
    parts = [part.draw() for part in connected_parts(mask)]
    assert {part.tobytes() for part in parts} == {(labels == part).tobytes() for part in range(1, count + 1)}
    assert len(parts) == count


@pytest.mark.parametrize(
    ("kind", "frame", "numbers"),
    [
        ("box", [4, 4], [0, 0, 2]),
        ("box", [4, 4], [0, 0, 2.5, 2]),
        ("polygon", [4, 4], [0, 0, 2]),
        ("polygon", [4, 4], []),
        ("polygon", [4, 4], [0, float("nan")]),
        ("mask", [4, 4], [3, 4]),
        ("mask", [4, 4], [20, -4]),
        ("circle", [4, 4], [0, 0, 2, 2]),
        ("box", [0, 4], [0, 0, 2, 2]),
        ("box", [4], [0, 0, 2, 2]),
        ("mask", [2**20, 2**20], [2.0**40]),
    ],
)
def test_what_no_run_writes_is_refused(kind, frame, numbers):
    with pytest.raises(ValueError, match="item"):
        Instance.checked(kind, frame, np.array(numbers, np.float64), "", True)


@given(SHAPES, st.integers(9, 13), st.integers(9, 13))
def test_the_box_around_an_item_is_that_of_its_pixels(shape, height, width):
    item = shape.instance(height, width, "")
    rows, columns = (drawn := item.draw()).any(1).nonzero()[0], drawn.any(0).nonzero()[0]
    expected = drawn.any() and (
        columns[0] / width,
        rows[0] / height,
        (columns[-1] + 1) / width,
        (rows[-1] + 1) / height,
    )
    assert item.box() == (expected or None)
