from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageDraw
from pycocotools import mask as coco
from scipy import ndimage

from xbench.geometry.shapes import FRACTIONS, UNKNOWN, Shape, connected_parts, runs_of, union
from xbench.runtime.errors import UserError

MASKS = hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12))
SIDES = st.integers(1, 24)
EDGES = st.integers(-40, 40)
NUMBERS = st.floats(-4, 16, width=16)


def box(*edges, size=UNKNOWN):
    return Shape("box", size, np.array(edges, np.float64))


SHAPES = st.one_of(
    st.builds(box, *[st.integers(-3, 12)] * 4),
    st.builds(box, *[st.floats(-0.5, 1.5)] * 4, size=st.just(FRACTIONS)),
    st.builds(Shape.from_points, st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=7), st.booleans()),
)


def plain_box(left, top, right, bottom, height, width):
    mask = np.zeros((height, width), bool)
    for y in range(height):
        for x in range(width):
            mask[y, x] = left <= x < right and top <= y < bottom
    return mask


@given(EDGES, EDGES, EDGES, EDGES, SIDES, SIDES)
def test_boxes_are_half_open_and_cut_off(left, top, right, bottom, height, width):
    shape = box(left, top, right, bottom).on(height, width)
    np.testing.assert_array_equal(shape.draw(), plain_box(left, top, right, bottom, height, width))
    if left < right and top < bottom:
        columns, rows = {*range(left, right)}, {*range(top, bottom)}
        assert shape.leaves() == (not columns <= {*range(width)} or not rows <= {*range(height)})


COORDINATES = st.floats(-0.9, 30).map(lambda x: round(x, 3))


@given(COORDINATES, COORDINATES, COORDINATES, COORDINATES)
def test_fractions_of_pixels_are_cut_off(a, b, c, d):
    c, d = abs(c), abs(d)
    # As the scripts of MedKLIP and MAVL: mask[y : y + h, x : x + w] of whole numbers.
    expected = [int(a), int(b), int(a) + int(c), int(b) + int(d)]
    shape = Shape.from_corner_and_size(a, b, c, d)
    assert (shape.kind, shape.size, shape.coordinates.tolist()) == ("box", UNKNOWN, expected)
    x0, x1, y0, y1 = min(a, b), max(a, b), min(c, d), max(c, d)
    shape = Shape.from_corners(x0, y0, x1, y1, "R1")
    assert shape.coordinates.tolist() == [int(x0), int(y0), int(x1), int(y1)] and shape.reader == "R1"
    assert not np.signbit(shape.coordinates[shape.coordinates == 0]).any()


BAD = [float("nan"), float("inf"), -float("inf"), 1e7, -1e7, 10**400, -(10**400), "3", None, True, [1], {}]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad)[:8])
@pytest.mark.parametrize("place", range(4))
def test_coordinates_that_are_no_pixels(bad, place):
    numbers = [1, 1, 5, 5]
    numbers[place] = bad
    for make in (Shape.from_corners, Shape.from_corner_and_size):
        with pytest.raises((UserError, TypeError)):
            make(*numbers)
    with pytest.raises((UserError, TypeError)):
        Shape.from_points([numbers[:2], numbers[2:], (1, 5)])


def test_boxes_that_end_before_they_begin():
    for corners in ((5, 0, 4, 9), (0, 5, 9, 4)):
        with pytest.raises(UserError, match="ends before it begins"):
            Shape.from_corners(*corners)
    for sizes in ((-1, 1), (1, -0.5)):
        with pytest.raises(UserError, match="negative side"):
            Shape.from_corner_and_size(0, 0, *sizes)
    assert not Shape.from_corners(3, 3, 3, 9).on(10, 10).draw().any()
    assert not Shape.from_corner_and_size(3, 3, 0.9, 5).on(10, 10).draw().any()


def plain_polygon(points, height, width):
    canvas = Image.new("1", (width, height))
    ImageDraw.Draw(canvas).polygon([(x, y) for x, y in points], outline=1, fill=1)
    return np.array(canvas)


@given(st.lists(st.tuples(st.floats(-10, 40), st.floats(-10, 40)), min_size=2, max_size=9), SIDES, SIDES)
def test_polygons_are_those_of_pillow(points, height, width):
    polygon = Shape.from_points(points).on(height, width)
    drawn = polygon.draw()
    assert (drawn.shape, drawn.dtype) == ((height, width), np.bool_)
    np.testing.assert_array_equal(drawn, plain_polygon(points, height, width))
    assert polygon.leaves() != all(0 <= x <= width and 0 <= y <= height for x, y in points)


def drawn(points, height, width):
    return Shape.from_points(points).on(height, width).draw()


def test_polygons_with_their_outline():
    np.testing.assert_array_equal(drawn([[2, 3], [6, 3], [6, 5], [2, 5]], 8, 9), plain_box(2, 3, 7, 6, 8, 9))
    assert np.argwhere(drawn([[2, 3]], 6, 6)).tolist() == [[3, 2]]
    assert np.argwhere(drawn([[1, 2], [4, 2]], 6, 6)).tolist() == [[2, x] for x in range(1, 5)]
    with pytest.raises(UserError, match="no points"):
        Shape.from_points([])


@given(MASKS)
def test_run_lengths_are_those_of_coco_and_give_the_mask_back(mask):
    runs = runs_of(mask)
    encoded = coco.frPyObjects({"counts": runs.astype(int).tolist(), "size": [*mask.shape]}, *mask.shape)
    assert encoded["counts"] == coco.encode(np.asfortranarray(mask, np.uint8))["counts"]
    np.testing.assert_array_equal(Shape.from_mask(mask).draw(), mask)
    assert not Shape.from_mask(mask).leaves()


@given(MASKS)
def test_connected_parts_are_those_of_scipy(mask):
    labels, count = ndimage.label(mask, np.ones((3, 3)))
    parts = [part.draw() for part in connected_parts(mask)]
    assert {part.tobytes() for part in parts} == {(labels == part).tobytes() for part in range(1, count + 1)}
    assert len(parts) == count


@given(SHAPES, st.integers(9, 13), st.integers(9, 13))
def test_the_box_around_an_item_is_that_of_its_pixels(shape, height, width):
    item = shape.on(height, width)
    again = Shape.checked(item.kind, [*item.size], item.coordinates, item.reader, item.outline)
    assert again == item and hash(again) == hash(item)
    rows, columns = (drawn := item.draw()).any(1).nonzero()[0], drawn.any(0).nonzero()[0]
    expected = drawn.any() and (
        columns[0] / width,
        rows[0] / height,
        (columns[-1] + 1) / width,
        (rows[-1] + 1) / height,
    )
    assert item.box() == (expected or None)


def test_union():
    mask = np.zeros((5, 5), bool)
    mask[0, 4] = True
    shapes = [box(0, 0, 2, 2), Shape.from_points([[1, 1], [3, 1], [3, 3], [1, 3]]), Shape.from_mask(mask)]
    expected = plain_box(0, 0, 2, 2, 5, 5) | plain_box(1, 1, 4, 4, 5, 5) | mask
    np.testing.assert_array_equal(union(shapes, 5, 5), expected)
    assert not union([], 5, 5).any()
    with pytest.raises(UserError, match="does not fit an image"):
        union(shapes, 5, 6)


@pytest.mark.parametrize(
    ("kind", "size", "numbers"),
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
def test_what_no_run_writes_is_refused(kind, size, numbers):
    with pytest.raises(ValueError, match="item"):
        Shape.checked(kind, size, np.array(numbers, np.float64), "", True)
