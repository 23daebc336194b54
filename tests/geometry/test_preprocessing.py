from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Literal

import albumentations as A
import cv2
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from open_clip import image_transform
from PIL import Image

from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.geometry.transforms import CenterCrop, HistogramEqualisation, PillowResize

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SHAPES = [(1, 1), (31, 33), (32, 32), (64, 32), (65, 33), (33, 65), (299, 224), (512, 427), (2048, 1531), (3001, 2500)]


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * 10_000 + width).integers(0, 256, (height, width), dtype=np.uint8)


def view_by_hand(shape: tuple[int, int], size: int) -> list[float]:
    sides = []
    for side in shape:
        resized = size if side == min(shape) else size * side // min(shape)
        offset = round(Fraction(resized - size, 2))
        sides.append((offset / resized, (offset + size) / resized))
    (top, bottom), (left, right) = sides
    return [left, top, right, bottom]


def check_resize_and_crop(shape: tuple[int, int], size: int, interpolation: Literal["bilinear", "bicubic"]) -> None:
    image = noise(*shape)
    ours = Preprocessing([PillowResize(size, interpolation=interpolation), CenterCrop(size)], MEAN, STD)
    pixels, view = ours(image)
    theirs = image_transform(size, is_train=False, mean=MEAN, std=STD, interpolation=interpolation)
    assert torch.equal(pixels, theirs(Image.fromarray(image)))
    assert pixels.dtype == torch.float32
    np.testing.assert_allclose(view, view_by_hand(shape, size), rtol=0, atol=2e-6)


@settings(max_examples=60)
@given(shape=st.tuples(st.integers(1, 200), st.integers(1, 200)), size=st.integers(1, 40))
@example(shape=(2544, 3056), size=224)
def test_resize_and_crop_of_any_size(shape: tuple[int, int], size: int) -> None:
    check_resize_and_crop(shape, size, "bicubic")


@pytest.mark.parametrize("shape", SHAPES)
def test_full_view_is_exact(shape: tuple[int, int]) -> None:
    image = noise(*shape)
    for geometry in (stretch((224, 224)), stretch((37, 53)), [PillowResize(224, "both")]):
        pixels, view = Preprocessing(geometry)(image)
        assert view == (0, 0, 1, 1)
    assert pixels.shape == (3, 224, 224)
    if shape[0] == shape[1]:
        assert Preprocessing([PillowResize(64), CenterCrop(64)])(image)[1] == (0, 0, 1, 1)


def test_stretch_averages_areas() -> None:
    image = noise(120, 90)
    pixels, _ = Preprocessing(stretch((12, 30)), mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))(image)
    averaged = image.reshape(12, 10, 30, 3).mean(axis=(1, 3))
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 0.25), (0.3, 2.0))):
        expected = (averaged / 255 - mean) / std
        np.testing.assert_allclose(pixels[channel], expected, rtol=0, atol=0.51 / 255 / std)


GEOMETRIES = {
    "resize and crop": lambda: [PillowResize(64), CenterCrop(64)],
    "crop off the middle of a larger resize": lambda: [PillowResize(80), CenterCrop(64)],
    "stretch": lambda: stretch((64, 64)),
    "stretch and crop": lambda: [PillowResize(72, "both"), CenterCrop(64)],
    "longest and pad": lambda: [PillowResize(64, "longest"), A.PadIfNeeded(64, 64, border_mode=cv2.BORDER_CONSTANT)],
    "longest, pad, crop": lambda: [PillowResize(73, "longest"), A.PadIfNeeded(73, 73), A.CenterCrop(64, 64)],
}


@pytest.mark.parametrize("shape", [(400, 300), (300, 400), (353, 511), (301, 300), (320, 320)])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
def test_bright_spot_is_where_the_view_says(geometry: object, shape: tuple[int, int]) -> None:
    preprocessing = Preprocessing(geometry())  # type: ignore[operator]
    for down, across in ((0.3, 0.35), (0.5, 0.5), (0.71, 0.6)):
        y, x = round(down * shape[0]), round(across * shape[1])
        image = np.zeros(shape, np.uint8)
        image[y - 6 : y + 6, x - 6 : x + 6] = 255
        pixels, view = preprocessing(image)
        left, top, right, bottom = view
        bright = pixels[0].double().numpy()
        rows, columns = (np.arange(side) + 0.5 for side in bright.shape)
        found_y = (bright.sum(axis=1) @ rows / bright.sum()) / bright.shape[0]
        found_x = (bright.sum(axis=0) @ columns / bright.sum()) / bright.shape[1]
        # A tenth of a pixel of the model input, at most.
        assert top + (bottom - top) * found_y == pytest.approx(y / shape[0], abs=0.1 / 64)
        assert left + (right - left) * found_x == pytest.approx(x / shape[1], abs=0.1 / 64)


def equalised_by_hand(image: np.ndarray) -> np.ndarray:
    """scikit-image's equalize_hist, written out after its documentation, on image / 255; then to 8 bits."""
    values = image.astype(float) / 255
    counts, edges = np.histogram(values.flatten(), bins=256)
    centers = (edges[:-1] + edges[1:]) / 2
    cumulative = np.cumsum(counts)
    equalised = np.interp(values.flatten(), centers, cumulative / float(cumulative[-1])).reshape(image.shape)
    return (255 * equalised).astype(np.uint8)


def equalise(image: np.ndarray) -> np.ndarray:
    return Preprocessing([HistogramEqualisation()]).pixels(image)[0]


@settings(max_examples=150, deadline=None)
@given(
    arrays(np.uint8, st.tuples(st.integers(1, 30), st.integers(1, 30)), elements=st.integers(0, 255)),
    st.integers(0, 255),
    st.integers(0, 255),
)
def test_equalisation(image: np.ndarray, one: int, other: int) -> None:
    least, largest = sorted((one, other))
    for pixels in (image, image.clip(least, largest), np.where(image > 99, one, other).astype(np.uint8)):
        assert np.array_equal(equalise(pixels), equalised_by_hand(pixels))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_equalisation_anywhere_in_the_geometry(place: int) -> None:
    steps: list[A.BasicTransform] = [PillowResize(40), CenterCrop(32)]
    image = noise(50, 71) // 3
    expected, view = image, Preprocessing(steps)(image)[1]
    for step in (*steps[:place], None, *steps[place:]):
        expected = equalised_by_hand(expected) if step is None else Preprocessing([step]).pixels(expected)[0]
    steps.insert(place, HistogramEqualisation())
    preprocessing = pickle.loads(pickle.dumps(Preprocessing(steps)))
    pixels, found = preprocessing.pixels(image)
    assert np.array_equal(pixels, expected)
    assert found == view


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (A.Normalize(mean=0.5, std=0.5), "8-bit pixels or floats"),
        (A.ToFloat(max_value=1), "Divide pixels by 255 once"),
        (A.ToFloat(max_value=255 * 255), "Divide pixels by 255 once"),
        (A.ToFloat(max_value=255), None),
    ],
)
def test_a_geometry_that_leaves_another_range(step, words):
    image = noise(64, 64)
    preprocessing = Preprocessing([*stretch((32, 32)), step], (0.5,) * 3, (0.5,) * 3)
    found = preprocessing.problem(preprocessing(image)[0][None], [torch.from_numpy(image)])
    assert found is None if words is None else found is not None and words in found


def test_what_is_no_number_is_a_problem():
    image = torch.zeros(1, 3, 4, 4)
    image[0, 0, 1, 1] = torch.nan
    assert Preprocessing([], MEAN, STD).problem(image, [torch.zeros(4, 4, dtype=torch.uint8)]) is not None
