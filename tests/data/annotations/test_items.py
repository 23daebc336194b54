from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from official.siim import encode_relative_rle
from PIL import Image
from pycocotools import mask as coco

from xbench.data.annotations.items import Annotation, RunLengths, image_size, one_item
from xbench.data.decoding import MAX_PIXELS
from xbench.geometry.shapes import Shape
from xbench.runtime.errors import UserError

SIDES = st.integers(1, 24)


def plain_coco(counts: str, height: int, width: int) -> np.ndarray | None:
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
    rle = RunLengths.of_coco(counts, height, width)
    drawn = rle.decode(height, width)
    assert (drawn.shape, drawn.dtype) == ((height, width), np.bool_)
    np.testing.assert_array_equal(drawn, mask)
    np.testing.assert_array_equal(plain_coco(counts, height, width), mask)
    assert rle.empty == (not mask.any())


@given(st.text(st.characters(min_codepoint=48, max_codepoint=111), min_size=1, max_size=12), SIDES, SIDES)
def test_any_counts_are_decoded_or_refused(counts, height, width):
    expected = plain_coco(counts, height, width)
    rle = RunLengths.of_coco(counts, height, width)
    if expected is None:
        with pytest.raises(UserError, match="do not add up"):
            rle.decode(height, width)
    else:
        np.testing.assert_array_equal(rle.decode(height, width), expected)
        assert rle.empty == (not expected.any())


@pytest.mark.parametrize("counts", ["", " ", "0\n", "p", "/", "é", "\x00", "04\u0664", None, 7, b"04"])
def test_counts_that_are_no_text_of_coco(counts):
    with pytest.raises(UserError, match="is not a COCO run-length encoding"):
        RunLengths.of_coco(counts, 4, 4)


def test_no_mask_of_another_frame():
    rle = RunLengths.of_coco([0, 24], 4, 6)
    for frame in ((6, 4), (4, 7), (24, 1)):
        with pytest.raises(UserError, match="does not fit an image"):
            rle.decode(*frame)


@pytest.mark.parametrize(
    "size",
    [(0, 4), (-4, -4), (4, 10**9), (10**400, 1), (4.0, 4), ("4", 4), (None, 4), (True, True), (2**14, 2**14)],
    ids=lambda size: str(size)[:12],
)
def test_sizes_that_no_image_has(size):
    for make in (image_size, lambda *size: RunLengths.of_coco("04", *size)):
        with pytest.raises(UserError, match="is not possible"):
            make(*size)
    assert image_size(2, MAX_PIXELS // 2) == (2, MAX_PIXELS // 2)


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
        offset = data.draw(st.just(0) | st.integers(0, left - 1))
        numbers += [offset, data.draw(st.integers(1, left - offset))]
        left -= sum(numbers[-2:])
    row = " ".join(map(str, numbers))
    mask = RunLengths(row).decode(height, width)
    assert mask.dtype == bool and mask.flags.c_contiguous
    np.testing.assert_array_equal(mask, plain_relative(row, height, width))
    np.testing.assert_array_equal(RunLengths(encode_relative_rle(mask)).decode(height, width), mask)


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
        RunLengths(row).decode(4, 3)
    assert len(str(caught.value)) < 200


def test_mask_images(tmp_path):
    mask = np.zeros((6, 9), bool)
    mask[1:4, 2:7] = True
    gray = Image.fromarray(mask.astype(np.uint8))
    palette = gray.copy().convert("P")
    palette.putpalette([0, 0, 0, 128, 0, 0])
    files = {
        "ones": gray,
        "white": Image.fromarray(mask.astype(np.uint8) * 255),
        "bits": Image.fromarray(mask),
        "palette": palette,
        "color": Image.fromarray(np.stack([mask * np.uint8(200)] * 3, axis=2)),
        "deep": Image.fromarray(mask.astype(np.uint16) * 1000),
    }
    for name, picture in files.items():
        picture.save(tmp_path / f"{name}.png")
        (part,) = Annotation("Mass", tmp_path / f"{name}.png").parts(6, 9)
        np.testing.assert_array_equal(part.draw(), mask, err_msg=name)
    with pytest.raises(UserError, match="is 9 x 6 pixels, but its image is 6 x 9"):
        Annotation("Mass", tmp_path / "ones.png").parts(9, 6)
    with pytest.raises(UserError, match=r"none\.png"):
        Annotation("Mass", tmp_path / "none.png").parts(6, 9)


def test_what_is_kept_of_a_mask_and_of_several_polygons_has_their_pixels():
    (mask,) = Annotation("Mass", RunLengths("0 1 0 1 6 1")).parts(3, 3)
    assert mask.coordinates.tolist() == [0, 2, 6, 1]
    squares = tuple(Shape.from_points([(x, 0), (x + 2, 0), (x + 2, 2), (x, 2)], outline=False) for x in (0, 1, 4))
    item = one_item(Annotation("Mass", squares).parts(3, 7))
    assert item.kind == "mask" and item.draw().tolist() == [[True] * 3 + [False] + [True] * 2 + [False]] * 2 + [
        [False] * 7
    ]
    assert one_item(Annotation("Mass", squares[0]).parts(3, 7)) == squares[0].on(3, 7)
