from __future__ import annotations

import math

import albumentations as A
import cv2
import numpy as np
import pytest
import torch
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st
from on_grid import saliency_on_grid

from xbench.data.phantom import draw_phantom
from xbench.data.records import Grid, Radiograph, Record
from xbench.data.samples import Samples
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.geometry.regions import Coverage
from xbench.geometry.transforms import CenterCrop, HistogramEqualisation, PillowResize


@pytest.mark.parametrize("percent", range(1, 101))
def test_pixel_covered_by_exactly_gamma_belongs(percent: int) -> None:
    """Touching a pixel that is covered in full, so that the rule for small parts cannot hide a miss."""
    region = np.zeros((10, 20), bool)
    region[:, 10:] = True
    covered = np.zeros(100, bool)
    covered[:percent] = True
    region[:, 9::-1] = covered.reshape(10, 10)
    assert Coverage.of(region, (1, 2)).at(percent / 100).tolist() == [[True, True]]
    if percent > 1:
        row, column = divmod(percent - 1, 10)
        region[row, 9 - column] = False
        assert Coverage.of(region, (1, 2)).at(percent / 100).tolist() == [[False, True]]


# Bilinear filters, for a bicubic one overshoots: beside dark pixels it makes 255 of the 254 that equalisation gives
# bright tissue.
GEOMETRIES = {
    "stretch": stretch((64, 52)),
    "shortest and crop": [PillowResize(64, interpolation="bilinear"), CenterCrop(64)],
    "larger, then crop": [PillowResize(72, interpolation="bilinear"), CenterCrop(64)],
    "longest and pad": [
        PillowResize(64, "longest", "bilinear"),
        A.PadIfNeeded(64, 64, border_mode=cv2.BORDER_CONSTANT),
    ],
    "longest, pad, crop": [PillowResize(70, "longest", "bilinear"), A.PadIfNeeded(70, 70), CenterCrop(64)],
    "crop and stretch": [CenterCrop(140), PillowResize(64, "both", "bilinear")],
}


def grown(mask: np.ndarray, pixels: tuple[float, float]) -> np.ndarray:
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
@example(shape=(140, 192), geometry="longest and pad", equalisations=[0, 0], grid="native", phantom=15)
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
    # Resized, a small region blurs to less than the brightest tissue, which an equalisation after that makes brightest.
    assume(region.mean() > 0.005 or not any(equalisations))
    image = np.where(region, 255, drawing.image // 2).astype(np.uint8)
    radiograph = Radiograph(image, {finding: region})
    samples = Samples((), lambda _: radiograph, (finding,), Preprocessing(steps), grid, gamma=0.5)
    sample = samples.read(Record("image", {}))[0]

    on_grid = shape if grid == "native" else grid
    assert sample.display.shape == sample.coverage[0].shape == on_grid
    left, top, right, bottom = sample.view
    pixels = torch.tensor(sample.pixels, dtype=torch.float32)
    # Equalisation leaves nothing but the brightest gray value at 255, however rare it is.
    found = saliency_on_grid(pixels[None], [sample.view], on_grid)[0].numpy() > 254.999
    rows, columns = ((np.arange(side) + 0.5) / side for side in on_grid)
    seen = ((rows >= top) & (rows <= bottom))[:, None] & ((columns >= left) & (columns <= right))
    expected = sample.coverage[0].at(0.5)
    height, width = on_grid[0] * (bottom - top) / pixels.shape[0], on_grid[1] * (right - left) / pixels.shape[1]
    assert not (found & ~grown(expected, (1 + height, 1 + width))).any()
    # The filter blurs an edge over two pixels of the model input, and the way to the grid over a third.
    inner = seen & ~grown(~expected, (1 + 3 * height, 1 + 3 * width))
    assert found[inner].all()
    event(f"inner pixels: {bool(inner.any())}")
