"""Each shape against plain code that decodes it pixel by pixel."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from official.siim import encode_relative_rle
from PIL import Image, ImageDraw
from pycocotools import mask as coco

from xbench.data.annotations.shapes import Box, CocoRLE, MaskImage, Polygon, RelativeRLE, frame_of, union
from xbench.data.decoding import MAX_PIXELS
from xbench.runtime.errors import UserError

SIDES = st.integers(1, 24)
EDGES = st.integers(-40, 40)


# Boxes


def plain_box(left, top, right, bottom, height, width):
    mask = np.zeros((height, width), bool)
    for y in range(height):
        for x in range(width):
            mask[y, x] = left <= x < right and top <= y < bottom
    return mask


@given(EDGES, EDGES, EDGES, EDGES, SIDES, SIDES)
def test_boxes_are_half_open_and_cut_off(left, top, right, bottom, height, width):
    box = Box(left, top, right, bottom)
    expected = plain_box(left, top, right, bottom, height, width)
    np.testing.assert_array_equal(box.draw(height, width), expected)
    if left < right and top < bottom:
        columns, rows = {*range(left, right)}, {*range(top, bottom)}
        assert box.leaves(height, width) == (not columns <= {*range(width)} or not rows <= {*range(height)})


COORDINATES = st.floats(0, 30).map(lambda x: round(x, 3))


@given(COORDINATES, COORDINATES, COORDINATES, COORDINATES)
def test_fractions_are_cut_off(a, b, c, d):
    box = Box.from_corner_and_size(a, b, c, d)
    assert (box.left, box.top) == (int(a), int(b))
    # As the scripts of MedKLIP and MAVL: mask[y : y + h, x : x + w] of whole numbers.
    assert (box.right - box.left, box.bottom - box.top) == (int(c), int(d))
    x0, x1, y0, y1 = min(a, b), max(a, b), min(c, d), max(c, d)
    assert Box.from_corners(x0, y0, x1, y1) == Box(int(x0), int(y0), int(x1), int(y1))


BAD = [float("nan"), float("inf"), -float("inf"), 1e7, -1e7, 10**400, -(10**400), "3", None, True, [1], {}]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad)[:8])
@pytest.mark.parametrize("place", range(4))
def test_coordinates_that_are_no_pixels(bad, place):
    numbers = [1, 1, 5, 5]
    numbers[place] = bad
    for make in (Box.from_corners, Box.from_corner_and_size):
        with pytest.raises((UserError, TypeError)):
            make(*numbers)
    with pytest.raises((UserError, TypeError)):
        Polygon.of([numbers[:2], numbers[2:], (1, 5)])


def test_boxes_that_end_before_they_begin():
    for corners in ((5, 0, 4, 9), (0, 5, 9, 4)):
        with pytest.raises(UserError, match="ends before it begins"):
            Box.from_corners(*corners)
    for sizes in ((-1, 1), (1, -0.5)):
        with pytest.raises(UserError, match="negative side"):
            Box.from_corner_and_size(0, 0, *sizes)
    assert not Box.from_corners(3, 3, 3, 9).draw(10, 10).any()
    assert not Box.from_corner_and_size(3, 3, 0.9, 5).draw(10, 10).any()


# Polygons


def plain_polygon(points, height, width):
    canvas = Image.new("1", (width, height))
    ImageDraw.Draw(canvas).polygon([(x, y) for x, y in points], outline=1, fill=1)
    return np.array(canvas)


POINTS = st.lists(st.tuples(st.floats(-10, 40), st.floats(-10, 40)), min_size=2, max_size=9)


@given(POINTS, SIDES, SIDES)
def test_polygons_are_those_of_pillow(points, height, width):
    polygon = Polygon.of(points)
    drawn = polygon.draw(height, width)
    assert (drawn.shape, drawn.dtype) == ((height, width), np.bool_)
    np.testing.assert_array_equal(drawn, plain_polygon(points, height, width))
    inside = all(0 <= x <= width and 0 <= y <= height for x, y in points)
    assert polygon.leaves(height, width) != inside


def test_polygons_with_their_outline():
    drawn = Polygon.of([[2, 3], [6, 3], [6, 5], [2, 5]]).draw(8, 9)
    np.testing.assert_array_equal(drawn, plain_box(2, 3, 7, 6, 8, 9))
    assert np.argwhere(Polygon.of([[2, 3]]).draw(6, 6)).tolist() == [[3, 2]]
    assert np.argwhere(Polygon.of([[1, 2], [4, 2]]).draw(6, 6)).tolist() == [[2, x] for x in range(1, 5)]
    with pytest.raises(UserError, match="no points"):
        Polygon.of([])


def test_polygons_far_beyond_the_edge_are_quick():
    start = time.perf_counter()
    everything = Polygon.of([[-1e6, -1e6], [1e6, -1e6], [1e6, 1e6], [-1e6, 1e6]])
    assert everything.draw(512, 512).all()
    assert everything.leaves(512, 512)
    assert not Polygon.of([[9e5, 9e5], [1e6, 9e5], [1e6, 1e6]]).draw(512, 512).any()
    many = np.random.default_rng(0).uniform(-1e6, 1e6, (300, 2)).tolist()
    Polygon.of(many).draw(512, 512)
    assert time.perf_counter() - start < 5


# Run lengths of COCO


def plain_coco(counts: str, height: int, width: int) -> np.ndarray | None:
    """Decode one character after the other; None if the text is malformed."""
    runs: list[int] = []
    digits: list[int] = []
    for character in counts:
        code = ord(character) - 48
        if not 0 <= code < 64:
            return None
        digits.append(code % 32)
        if code >= 32:
            continue
        value = sum(digit * 32**place for place, digit in enumerate(digits))
        if digits[-1] >= 16:
            value -= 32 ** len(digits)
        if len(runs) > 2:
            value += runs[-2]
        if value < 0 or len(digits) > 6:
            return None
        runs.append(value)
        digits = []
    pixels = [run % 2 == 1 for run, length in enumerate(runs) if length <= height * width for _ in range(length)]
    if digits or sum(runs) != height * width:
        return None
    mask = np.zeros((height, width), bool)
    for place, on in enumerate(pixels):
        mask[place % height, place // height] = on
    return mask


@given(st.data(), SIDES, SIDES)
def test_coco_run_lengths(data, height, width):
    mask = data.draw(arrays(np.bool_, (height, width)))
    counts = coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    rle = CocoRLE(counts, height, width)
    drawn = rle.draw(height, width)
    assert (drawn.shape, drawn.dtype) == ((height, width), np.bool_)
    np.testing.assert_array_equal(drawn, mask)
    np.testing.assert_array_equal(plain_coco(counts, height, width), mask)
    assert rle.empty == (not mask.any())
    assert not rle.leaves(height, width)


@pytest.mark.parametrize("seed", range(5))
def test_large_coco_run_lengths(seed):
    rng = np.random.default_rng(seed)
    height, width = (int(side) for side in rng.integers(200, 3000, 2))
    mask = np.zeros((height, width), np.uint8, order="F")
    for _ in range(int(rng.integers(0, 6))):
        y, x = rng.integers(0, height), rng.integers(0, width)
        mask[y : y + rng.integers(1, 900), x : x + rng.integers(1, 900)] ^= 1
    rle = CocoRLE(coco.encode(mask)["counts"].decode(), height, width)
    np.testing.assert_array_equal(rle.draw(height, width), mask.astype(bool))
    assert rle.empty == (not mask.any())


@given(st.text(st.characters(min_codepoint=48, max_codepoint=111), min_size=1, max_size=12), SIDES, SIDES)
def test_any_counts_are_decoded_or_refused(counts, height, width):
    expected = plain_coco(counts, height, width)
    rle = CocoRLE(counts, height, width)
    if expected is None:
        with pytest.raises(UserError, match="do not add up"):
            rle.draw(height, width)
    else:
        np.testing.assert_array_equal(rle.draw(height, width), expected)
        assert rle.empty == (not expected.any())


def test_damaged_counts_are_decoded_or_refused():
    """Of a real mask: every one-character change, and every cut."""
    mask = np.zeros((40, 30), bool)
    mask[5:20, 7:15] = mask[18:33, 12:25] = True
    counts = coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    others = {counts[:end] for end in range(1, len(counts))}
    others |= {counts[:i] + chr(48 + c) + counts[i + 1 :] for i in range(len(counts)) for c in range(64)}
    accepted = 0
    for other in others - {counts}:
        expected = plain_coco(other, 40, 30)
        try:
            drawn = CocoRLE(other, 40, 30).draw(40, 30)
        except UserError:
            assert expected is None
        else:
            np.testing.assert_array_equal(drawn, expected)
            accepted += 1
    assert accepted < len(others) / 10


@pytest.mark.parametrize(
    "counts",
    ["P", "o" * 50, "0" * 50, "o" * 1_000_000, "`" * 9, "ooooooN", "oooooo0", "XoooooN0", "_" * 7, "?" * 40],
    ids=lambda counts: counts[:8],
)
def test_hostile_counts(counts):
    start = time.perf_counter()
    rle = CocoRLE(counts, 64, 64)
    assert not rle.empty
    with pytest.raises(UserError, match="do not add up"):
        rle.draw(64, 64)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("counts", ["", " ", "0\n", "p", "/", "é", "\x00", "04\u0664", None, 7, [1, 2], b"04"])
def test_counts_that_are_no_text_of_coco(counts):
    with pytest.raises(UserError, match="is not a COCO run-length encoding"):
        CocoRLE(counts, 4, 4)


def test_no_mask_of_another_frame():
    rle = CocoRLE(coco.encode(np.ones((4, 6), np.uint8, order="F"))["counts"].decode(), 4, 6)
    for frame in ((6, 4), (4, 7), (24, 1)):
        with pytest.raises(UserError, match="does not fit a frame"):
            rle.draw(*frame)


@pytest.mark.parametrize(
    "size",
    [(0, 4), (-4, -4), (4, 10**9), (10**400, 1), (4.0, 4), ("4", 4), (None, 4), (True, True), (2**14, 2**14)],
    ids=lambda size: str(size)[:12],
)
def test_frames(size):
    for make in (frame_of, lambda *frame: CocoRLE("04", *frame)):
        with pytest.raises(UserError, match="is not possible"):
            make(*size)
    assert frame_of(2, MAX_PIXELS // 2) == (2, MAX_PIXELS // 2)


# Run lengths of SIIM-ACR


def plain_relative(row: str, height: int, width: int) -> np.ndarray:
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


@given(st.data(), st.integers(1, 12), st.integers(1, 12))
def test_relative_run_lengths(data, height, width):
    left, numbers = height * width, []
    while left and (not numbers or data.draw(st.booleans())):
        # 0 is a run that touches the one before.
        offset = data.draw(st.just(0) | st.integers(0, left - 1))
        numbers += [offset, data.draw(st.integers(1, left - offset))]
        left -= sum(numbers[-2:])
    row = " ".join(map(str, numbers))
    mask = RelativeRLE(row).draw(height, width)
    assert mask.dtype == bool and mask.flags.c_contiguous
    np.testing.assert_array_equal(mask, plain_relative(row, height, width))
    np.testing.assert_array_equal(RelativeRLE(encode_relative_rle(mask)).draw(height, width), mask)
    assert not RelativeRLE(row).leaves(1, 1)


def test_the_last_pixel_can_be_reached_but_not_passed():
    assert RelativeRLE("11 1").draw(4, 3)[3, 2]
    with pytest.raises(UserError, match="runs to pixel 13 of an image of 12"):
        RelativeRLE("11 2").draw(4, 3)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        *((row, "whole numbers") for row in ("", "-1", "3 -1", "1 2.0", "1 two", "1_0 1", "\u0661 \u0662", "nan 1")),
        *((row, "whole numbers") for row in ("0 99999999999999999999999", "1 " + "9" * 5000)),
        ("1 2 3", "3 numbers"),
        ("1 0", "no pixels"),
        ("4294967296 1", "runs to pixel"),
    ],
)
def test_malformed_relative_run_lengths(row, said):
    with pytest.raises(UserError, match=said) as caught:
        RelativeRLE(row).draw(4, 3)
    assert len(str(caught.value)) < 200


@given(st.text(alphabet="0123456789 -.,x\n", max_size=20))
def test_any_text_is_decoded_or_refused(text):
    with contextlib.suppress(UserError):
        assert RelativeRLE(text).draw(7, 5).shape == (7, 5)


# The others


def test_mask_images(tmp_path):
    mask = np.zeros((6, 9), bool)
    mask[1:4, 2:7] = True
    grey = Image.fromarray(mask.astype(np.uint8))
    palette = grey.copy().convert("P")
    palette.putpalette([0, 0, 0, 128, 0, 0])
    files = {
        "ones": grey,
        "white": Image.fromarray(mask.astype(np.uint8) * 255),
        "bits": Image.fromarray(mask),
        "palette": palette,
        "colour": Image.fromarray(np.stack([mask * np.uint8(200)] * 3, axis=2)),
        "deep": Image.fromarray(mask.astype(np.uint16) * 1000),
    }
    for name, picture in files.items():
        picture.save(tmp_path / f"{name}.png")
        np.testing.assert_array_equal(MaskImage(tmp_path / f"{name}.png").draw(6, 9), mask, err_msg=name)
    shape = MaskImage(tmp_path / "ones.png")
    assert not shape.leaves(1, 1)
    with pytest.raises(UserError, match="is 9 x 6 pixels, the image that it annotates 6 x 9"):
        shape.draw(9, 6)
    with pytest.raises(UserError, match=r"none\.png"):
        MaskImage(tmp_path / "none.png").draw(6, 9)


def test_union():
    shapes = [Box(0, 0, 2, 2), Polygon.of([[1, 1], [3, 1], [3, 3], [1, 3]]), RelativeRLE("20 1")]
    expected = plain_box(0, 0, 2, 2, 5, 5) | plain_box(1, 1, 4, 4, 5, 5)
    expected[0, 4] = True
    np.testing.assert_array_equal(union(shapes, 5, 5), expected)
    assert not union([], 5, 5).any()
