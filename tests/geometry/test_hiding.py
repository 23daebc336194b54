from __future__ import annotations

import hashlib
from typing import get_args

import cv2
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import ndimage

from xbench.findings.conditions import FILLS
from xbench.geometry.hiding import Fill, Hiding, control_of, dilated, image_digest


def disc(shape: tuple[int, int], row: float, column: float, radius: float) -> np.ndarray:
    rows, columns = np.indices(shape)
    return (rows - row) ** 2 + (columns - column) ** 2 <= radius**2


def film(*shape: int) -> np.ndarray:
    noise = cv2.GaussianBlur(np.random.default_rng(4).normal(size=shape), (0, 0), 2)
    return np.uint8(np.rint((noise - noise.min()) / np.ptp(noise) * 255))


@settings(max_examples=25, deadline=None)
@given(st.integers(49, 260), st.integers(49, 260), st.integers(0, 2**32), st.integers(1, 30))
def test_dilated_by_exact_distances(height, width, seed, points):
    region = np.zeros((height, width), np.bool_)
    rng = np.random.default_rng(seed)
    region[rng.integers(0, height, points), rng.integers(0, width, points)] = True
    rows, columns = np.indices(region.shape)
    squares = [(rows - row) ** 2 + (columns - column) ** 2 for row, column in np.argwhere(region)]
    assert np.array_equal(dilated(region), 2500 * np.min(squares, axis=0) <= min(region.shape) ** 2)


def test_dilated_on_a_film():
    region = disc((2520, 3050), 1203.4, 811.7, 297.3) | disc((2520, 3050), 2500, 3040, 60)
    rows, columns = ndimage.distance_transform_edt(~region, return_distances=False, return_indices=True)
    squares = (rows - np.arange(2520)[:, None]) ** 2 + (columns - np.arange(3050)) ** 2
    assert np.array_equal(dilated(region), 2500 * squares <= 2520**2)


def slowly(hidden: np.ndarray, forbidden: np.ndarray, name: str) -> np.ndarray | None:
    (height, width), bits = hidden.shape, f"{hashlib.sha256(name.encode()).digest()[0]:08b}"
    right, down = (1 if bit == "1" else -1 for bit in bits[:2])
    pixels = np.argwhere(hidden[:, ::-1])
    shifts = [(dx, dy) for dx in range(-width, width + 1) for dy in range(-height, height + 1)]
    for dx, dy in sorted(shifts, key=lambda at: (abs(at[0]), abs(at[1]), at[0] * right < 0, at[1] * down < 0)):
        rows, columns = (pixels + np.array([dy, dx])).T
        if min(rows.min(), columns.min()) >= 0 and rows.max() < height and columns.max() < width:
            control = np.zeros_like(hidden)
            control[rows, columns] = True
            if not (control & (hidden | forbidden)).any():
                return control
    return None


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32), st.sampled_from([0.02, 0.1, 0.3]))
def test_the_control_by_trying_every_shift(height, width, seed, share):
    rng = np.random.default_rng(seed)
    hidden, forbidden = rng.random((2, height, width)) < [[[share]], [[rng.random() / 2]]]
    assume(hidden.any())
    control, expected = control_of(hidden, forbidden, f"{seed}"), slowly(hidden, forbidden, f"{seed}")
    assert (control is None) == (expected is None)
    if control is not None:
        assert (
            np.array_equal(control, expected)
            and control.sum() == hidden.sum()
            and not (control & (hidden | forbidden)).any()
        )


IMAGE = film(150, 200)
HIDDEN = dilated(disc(IMAGE.shape, 70, 60, 18))
CONTROL = control_of(HIDDEN, HIDDEN, "film")
assert get_args(Fill) == FILLS
CHANGED = {fill: [Hiding(IMAGE, "film").fill(mask, HIDDEN, fill) for mask in (HIDDEN, CONTROL)] for fill in FILLS}


@pytest.mark.parametrize("fill", FILLS)
def test_pixels_beyond_the_mask_keep_their_bits(fill):
    for mask, result in zip((HIDDEN, CONTROL), CHANGED[fill], strict=True):
        reach = dilated(mask) if fill == "blur" else mask
        assert np.array_equal(result[~reach], IMAGE[~reach]) and (result[mask] != IMAGE[mask]).mean() > 0.9


def test_a_softened_control_beside_the_region_does_not_touch_it():
    region = disc((200, 200), 100, 100, 30)
    image, hidden = film(200, 200), dilated(region)
    control = control_of(hidden, region, "a")
    changed = Hiding(image, "a").fill(control, hidden, "blur") != image
    assert (changed & hidden).any() and not (changed & region).any()


@pytest.mark.parametrize(("values", "mean"), [((0, 1), 0), ((1, 2), 2), ((0, 1, 1), 1), ((0, 0, 1), 0)])
def test_the_mean_is_a_whole_level_half_to_even(values, mean):
    image = np.array([[*values, 200]], np.uint8)
    hidden = image == 200
    assert Hiding(image, "a").fill(hidden, hidden, "mean").tolist() == [[*values, mean]]
    assert Hiding(image, "a").keep(hidden).tolist() == [[mean] * len(values) + [200]]
    assert Hiding(image[:, :-1], "a").no_image().tolist() == [[mean] * len(values)]


def test_mean_and_black_of_region_and_control():
    image = np.where(CONTROL, 255, IMAGE).astype(np.uint8)
    for mask in (HIDDEN, CONTROL):
        mean, black = (Hiding(image, "film").fill(mask, HIDDEN, fill) for fill in ("mean", "black"))
        assert {*mean[mask]} == {round(image[~HIDDEN].mean())} and {*black[mask]} == {0}


def test_blur_by_the_gaussian_at_full_size():
    image = (np.indices((613, 997)) // 80).sum(axis=0) % 2 * np.uint8(255)
    whole, mask = np.ones(image.shape, np.bool_), disc(image.shape, 40, 300, 100)
    expected = cv2.GaussianBlur(image.astype(float), (0, 0), 613 / 20, borderType=cv2.BORDER_REFLECT)
    blurred = Hiding(image, "a").fill(whole, whole, "blur").astype(float)
    assert np.abs(blurred - expected).max() < 1
    soft = ndimage.gaussian_filter(mask.astype(float), 6.13, mode="mirror", radius=12)
    expected = np.rint(image + soft * dilated(mask) * (blurred - image))
    assert np.mean(Hiding(image, "a").fill(mask, mask, "blur") != expected) < 1e-5


def test_inpainting_a_box_is_inpainting_the_film():
    rng = np.random.default_rng(0)
    for size in range(1, 30):
        image = rng.integers(0, 256, (90, 110)).astype(np.uint8)
        mask = disc(image.shape, *rng.integers(0, 90, 2), size) | disc(image.shape, *rng.integers(0, 90, 2), 9)
        whole = cv2.inpaint(image, mask.astype(np.uint8), 3, cv2.INPAINT_TELEA)
        assert np.array_equal(Hiding(image, "a").fill(mask, mask, "inpaint"), whole)


def test_noise_comes_from_the_ring_and_follows_the_name():
    for mask in (HIDDEN, np.roll(HIDDEN, 43, axis=1)):
        image = (np.indices(IMAGE.shape).sum(axis=0) * 7 % 199).astype(np.uint8)
        image[HIDDEN | mask | ~dilated(mask)] = 255
        first, again, other = (Hiding(image, name).fill(mask, HIDDEN, "noise") for name in ("a", "a", "b"))
        assert first[mask].max() < 199 and len({*first[mask]}) > 50
        assert np.array_equal(first, again) and not np.array_equal(first, other)
    # The same on every machine and with every NumPy.
    assert image_digest(first) == "2b986370c4fa491a"
    # Below a side of 50 there is no ring; all that is visible takes its place.
    tiny = np.array([[7, 7, 200]], np.uint8)
    assert Hiding(tiny, "a").fill(tiny == 200, tiny == 200, "noise").tolist() == [[7, 7, 7]]


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (60, 50)])
def test_nothing_is_left_of_an_image_that_is_hidden_whole(shape, fill):
    image = np.arange(shape[0] * shape[1], dtype=np.uint8).reshape(shape)
    result = Hiding(image, "a").fill(image >= 0, image >= 0, fill)
    assert len({*result.flat}) == 1 or fill == "blur"


def test_digest():
    image = np.array([[1, 2, 3], [4, 5, 255]], np.uint8)
    expected = hashlib.sha256(b"2 3\n\x01\x02\x03\x04\x05\xff").hexdigest()[:16]
    assert image_digest(image) == image_digest(np.asfortranarray(image)) == expected
    assert image_digest(image.reshape(3, 2)) != expected
