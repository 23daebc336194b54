from __future__ import annotations

import math
from fractions import Fraction

import albumentations as A
import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from xbench.data.records import Grid, Radiograph
from xbench.data.samples import prepare_image
from xbench.geometry.coverage import Coverage
from xbench.geometry.grid import FULL_VIEW, region_on_grid, saliency_on_grid
from xbench.geometry.preprocessing import CentreCrop, HistogramEqualisation, PillowResize, Preprocessing, stretch
from xbench.phantom import draw_phantom

SIDES = st.integers(1, 9)
REGIONS = st.tuples(SIDES, SIDES).flatmap(lambda shape: arrays(bool, shape))


def share_of_cell(region: np.ndarray, size: tuple[int, int], row: int, column: int) -> Fraction:
    """The covered share of one grid pixel, by adding up overlaps in exact fractions."""
    (h, w), (rows, columns) = region.shape, size
    top, bottom = Fraction(row * h, rows), Fraction((row + 1) * h, rows)
    left, right = Fraction(column * w, columns), Fraction((column + 1) * w, columns)
    area = Fraction(0)
    for y in range(h):
        for x in range(w):
            if region[y, x]:
                overlap_y = max(Fraction(0), min(bottom, Fraction(y + 1)) - max(top, Fraction(y)))
                overlap_x = max(Fraction(0), min(right, Fraction(x + 1)) - max(left, Fraction(x)))
                area += overlap_y * overlap_x
    return area / ((bottom - top) * (right - left))


def region_by_hand(region: np.ndarray, size: tuple[int, int], gamma: Fraction) -> list[list[bool]]:
    shares = [[share_of_cell(region, size, row, column) for column in range(size[1])] for row in range(size[0])]
    on_grid = np.array([[share >= gamma for share in row] for row in shares])
    labels, parts = ndimage.label(region, np.ones((3, 3)))
    for part in range(1, parts + 1):
        own = [
            [share_of_cell(labels == part, size, row, column) for column in range(size[1])] for row in range(size[0])
        ]
        on_grid |= np.array([[share == max(map(max, own)) for share in row] for row in own])
    return on_grid.tolist()


@settings(max_examples=150, deadline=None)
@given(region=REGIONS, size=st.tuples(st.integers(1, 7), st.integers(1, 7)))
def test_region_at_one_half(region: np.ndarray, size: tuple[int, int]) -> None:
    assert region_on_grid(region, size).tolist() == region_by_hand(region, size, Fraction(1, 2))


@settings(max_examples=150, deadline=None)
@given(region=REGIONS, size=st.tuples(st.integers(1, 5), st.integers(1, 5)), percent=st.integers(1, 100))
def test_region_at_any_gamma(region: np.ndarray, size: tuple[int, int], percent: int) -> None:
    expected = region_by_hand(region, size, Fraction(percent, 100))
    assert region_on_grid(region, size, gamma=percent / 100).tolist() == expected


@pytest.mark.parametrize("percent", range(1, 101))
def test_pixel_covered_by_exactly_gamma_belongs(percent: int) -> None:
    """Touching a pixel that is covered in full, so that the rule for small parts cannot hide a miss."""
    region = np.zeros((10, 20), bool)
    region[:, 10:] = True
    covered = np.zeros(100, bool)
    covered[:percent] = True
    region[:, 9::-1] = covered.reshape(10, 10)
    assert region_on_grid(region, (1, 2), gamma=percent / 100).tolist() == [[True, True]]
    if percent > 1:
        row, column = divmod(percent - 1, 10)
        region[row, 9 - column] = False
        assert region_on_grid(region, (1, 2), gamma=percent / 100).tolist() == [[False, True]]


def test_exactly_half_a_pixel_belongs() -> None:
    region = np.zeros((4, 6), bool)
    region[1:3, 1:5] = True
    assert region_on_grid(region, (2, 3)).tolist() == [[False, True, False], [False, True, False]]
    region[1:3, 0] = True
    assert region_on_grid(region, (2, 3)).tolist() == [[True, True, False], [True, True, False]]


def test_half_a_pixel_on_sides_that_do_not_divide() -> None:
    """3 pixels onto 2: the middle one is cut in two, 1/3 of each side; with its neighbour's half that is 5/6."""
    region = np.array([[True, False, False]])
    assert region_on_grid(region, (1, 2), gamma=2 / 3).tolist() == [[True, False]]
    region = np.array([[False, True, False]])
    assert region_on_grid(region, (1, 2), gamma=1 / 3).tolist() == [[True, True]]


def test_small_parts_keep_the_pixels_they_cover_most() -> None:
    region = np.zeros((100, 100), bool)
    region[39:41, 10:13] = True
    region[90, 90] = True
    on_grid = region_on_grid(region, (10, 10))
    assert np.argwhere(on_grid).tolist() == [[3, 1], [4, 1], [9, 9]]
    assert not region_on_grid(np.zeros((100, 100), bool), (10, 10)).any()


def test_region_of_the_size_of_the_grid_is_itself() -> None:
    region = np.random.default_rng(0).random((224, 224)) < 0.3
    assert np.array_equal(region_on_grid(region, (224, 224)), region)


def test_region_of_a_large_radiograph() -> None:
    """Against averaging by reshape, on sides that the grid divides; and views of memory in any order."""
    region = np.random.default_rng(1).random((2240, 2688)) < 0.5
    shares = region.reshape(224, 10, 224, 12).sum(axis=(1, 3)) / 120
    for seen, expected in ((region, shares), (region[::-1, ::-1], shares[::-1, ::-1]), (region.T, shares.T)):
        coverage = Coverage.of(seen, (224, 224))
        found = np.unpackbits(coverage.whole).astype(float)
        found[coverage.partial] = coverage.share
        assert np.array_equal(found.reshape(224, 224), expected)
        assert coverage.at(0.5)[expected >= 0.5].all()
        # Noise has specks by themselves, which stay.
        assert coverage.at(1.0).sum() == len(coverage.kept) > 0


# Saliency


def saliency_by_hand(saliency: np.ndarray, view: tuple[float, ...], size: tuple[int, int]) -> np.ndarray:
    (h, w), (left, top, right, bottom) = saliency.shape, view
    on_grid = np.full(size, np.nan)
    for row in range(size[0]):
        for column in range(size[1]):
            y = ((row + 0.5) / size[0] - top) / (bottom - top)
            x = ((column + 0.5) / size[1] - left) / (right - left)
            if not (0 <= y <= 1 and 0 <= x <= 1):
                continue
            y, x = min(max(y * h - 0.5, 0), h - 1), min(max(x * w - 0.5, 0), w - 1)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, h - 1), min(x0 + 1, w - 1)
            above = saliency[y0, x0] * (x0 + 1 - x) + saliency[y0, x1] * (x - x0)
            below = saliency[y1, x0] * (x0 + 1 - x) + saliency[y1, x1] * (x - x0)
            on_grid[row, column] = above * (y0 + 1 - y) + below * (y - y0)
    return np.where(np.isnan(on_grid), np.nanmin(on_grid), on_grid)


VIEWS = {
    "crop of the width": (0.14, 0.0, 0.86, 1.0),
    "crop of the height": (0.0, 0.203, 1.0, 0.801),
    "crop of both": (0.11, 0.07, 0.93, 0.88),
    "off the centre": (0.3, 0.1, 0.7, 0.35),
    "padded width": (-0.207, 0.0, 1.207, 1.0),
    "padded height": (0.0, -0.4, 1.0, 1.41),
    "padded and cropped": (-0.1, 0.12, 1.1, 0.89),
    "nearly full": (0.0, 0.0, 0.999, 1.0),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("shape", [(7, 7), (14, 9), (1, 3)])
def test_saliency_of_a_part_or_more(view: tuple[float, ...], shape: tuple[int, int]) -> None:
    saliency = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
    on_grid = saliency_on_grid(saliency, [view], (29, 37))
    expected = saliency_by_hand(saliency[0].double().numpy(), view, (29, 37))
    np.testing.assert_allclose(on_grid[0], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("shape", [(7, 7), (14, 9), (224, 224), (1, 1)])
def test_saliency_of_the_whole(shape: tuple[int, int]) -> None:
    saliency = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    on_grid = saliency_on_grid(saliency, [FULL_VIEW] * 2, (224, 224))
    expected = F.interpolate(saliency[None], (224, 224), mode="bilinear", align_corners=False)[0]
    # PyTorch computes places in float32, which errs by up to 14 * 2**-24 cells.
    torch.testing.assert_close(on_grid, expected, rtol=0, atol=1e-5)
    small = saliency_on_grid(saliency[:, :9, :9], [FULL_VIEW] * 2, (31, 23))
    by_hand = saliency_by_hand(saliency[1, :9, :9].double().numpy(), FULL_VIEW, (31, 23))
    np.testing.assert_allclose(small[1], by_hand, rtol=0, atol=2e-5)


def test_unseen_pixels_get_the_least_visible_value() -> None:
    saliency = torch.arange(1.0, 17.0).reshape(1, 4, 4)
    on_grid = saliency_on_grid(saliency, [(0.25, 0.0, 0.75, 1.0)], (8, 8))[0]
    assert (on_grid[:, [0, 1, 6, 7]] == on_grid[:, 2:6].min()).all()
    assert on_grid[:, 2:6].min() == on_grid[0, 2]
    assert (on_grid[-1, 2:6] > on_grid[0, 2]).all()
    padded = saliency_on_grid(saliency, [(-0.5, 0.0, 1.5, 1.0)], (8, 8))[0]
    assert padded.max() < 15.5, "the outer columns lie in the padding"


def test_mixed_batch_is_every_image_alone() -> None:
    saliency = torch.randn(5, 6, 8, generator=torch.Generator().manual_seed(2))
    crop, pad = VIEWS["crop of both"], VIEWS["padded width"]
    views = [crop, FULL_VIEW, pad, FULL_VIEW, crop]
    together = saliency_on_grid(saliency, views, (20, 21))
    for index in range(5):
        alone = saliency_on_grid(saliency[index : index + 1], views[index : index + 1], (20, 21))
        assert torch.equal(together[index], alone[0])


def test_nothing_and_half_precision() -> None:
    nothing = saliency_on_grid(torch.empty(0, 7, 7), [], (5, 6))
    assert nothing.shape == (0, 5, 6) and nothing.dtype == torch.float32
    for view in (FULL_VIEW, VIEWS["crop of both"]):
        half = torch.randn(1, 7, 7, generator=torch.Generator().manual_seed(3)).bfloat16()
        on_grid = saliency_on_grid(half, [view], (9, 9))
        assert on_grid.dtype == torch.float32
        assert torch.equal(on_grid, saliency_on_grid(half.float(), [view], (9, 9)))


GEOMETRIES = {
    "stretch": stretch((64, 52)),
    "shortest and crop": [PillowResize(64, interpolation="bilinear"), CentreCrop(64)],
    "larger, then crop": [PillowResize(72), CentreCrop(64)],
    "longest and pad": [PillowResize(64, "longest"), A.PadIfNeeded(64, 64, border_mode=cv2.BORDER_CONSTANT)],
    "longest, pad, crop": [PillowResize(70, "longest", "bilinear"), A.PadIfNeeded(70, 70), CentreCrop(64)],
    "crop and stretch": [CentreCrop(140), PillowResize(64, "both")],
}


def grown(mask: np.ndarray, pixels: tuple[float, float]) -> np.ndarray:
    """The mask with a margin of so many pixels, rounded up, down and across."""
    height, width = (2 * math.ceil(side) + 1 for side in pixels)
    return cv2.dilate(mask.astype(np.uint8), np.ones((height, width), np.uint8)) > 0


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(140, 280), st.integers(140, 280)),
    geometry=st.sampled_from(sorted(GEOMETRIES)),
    equalisations=st.lists(st.integers(0, 3), max_size=2),
    grid=st.sampled_from([(112, 112), (75, 130), "native"]),
    phantom=st.integers(0, 30),
)
def test_image_and_region_travel_together(
    shape: tuple[int, int], geometry: str, equalisations: list[int], grid: Grid, phantom: int
) -> None:
    """A phantom's region is drawn into its image as the brightest pixels: the model input has them where it belongs."""
    steps = list(GEOMETRIES[geometry])
    for place in equalisations:
        steps.insert(place, HistogramEqualisation())
    drawing = draw_phantom(5, phantom, *shape)
    masks = sorted(drawing.masks.items(), key=lambda item: item[1].sum())
    assume(masks)
    finding, region = masks[-1]
    image = np.where(region, 255, drawing.image // 2).astype(np.uint8)
    sample = prepare_image(Radiograph(image, {finding: region}), (finding,), Preprocessing(steps), grid)

    on_grid = shape if grid == "native" else grid
    assert sample.display.shape == sample.coverage[0].shape == on_grid
    left, top, right, bottom = sample.view
    pixels = torch.tensor(sample.pixels, dtype=torch.float32)
    # Equalisation leaves nothing but the brightest grey value at 255, be it ever so rare.
    found = saliency_on_grid(pixels[None], [sample.view], on_grid)[0].numpy() > 254.999
    rows, columns = ((np.arange(side) + 0.5) / side for side in on_grid)
    seen = ((rows >= top) & (rows <= bottom))[:, None] & ((columns >= left) & (columns <= right))
    expected = sample.coverage[0].at(0.5)
    height, width = on_grid[0] * (bottom - top) / pixels.shape[0], on_grid[1] * (right - left) / pixels.shape[1]
    assert not (found & ~grown(expected, (1 + height, 1 + width))).any()
    # A bicubic filter blurs an edge over two pixels of the model input, and the way to the grid over a third.
    inner = seen & ~grown(~expected, (1 + 3 * height, 1 + 3 * width))
    assert found[inner].all()
    event(f"inner pixels: {bool(inner.any())}")


@pytest.mark.parametrize("shape", [(300, 417), (417, 300), (512, 512), (601, 380)])
@pytest.mark.parametrize("geometry", ["crop", "stretch"])
def test_what_the_model_is_shown_comes_back_in_its_place(shape: tuple[int, int], geometry: str) -> None:
    """Preprocess a radiograph that is white on a box, take the model input for the map: the map is the box."""
    steps = [PillowResize(96), CentreCrop(96)] if geometry == "crop" else stretch((96, 96))
    preprocessing = Preprocessing(steps)
    generator = np.random.default_rng(sum(shape))
    for _ in range(4):
        (top, bottom), (left, right) = (np.sort(generator.uniform(0.22, 0.78, 2)) * side for side in shape)
        region = np.zeros(shape, bool)
        region[int(top) : int(bottom) + 30, int(left) : int(right) + 30] = True
        pixels, view = preprocessing(region.astype(np.uint8) * 255)
        found = saliency_on_grid(pixels[:1], [view], (224, 224))[0].numpy() > 0.5
        expected = region_on_grid(region, (224, 224))
        for axis in (0, 1):
            edges = [np.flatnonzero(mask.any(axis=axis))[[0, -1]] for mask in (found, expected)]
            assert np.abs(edges[0] - edges[1]).max() <= 2
        centres = [np.argwhere(mask).mean(axis=0) for mask in (found, expected)]
        assert np.abs(centres[0] - centres[1]).max() < 0.75
