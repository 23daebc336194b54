from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback
from on_grid import saliency_on_grid
from plain import overlaps, pointing
from toys import Squares, quiet_trainer
from wrong_models import Coarse

from xbench.callbacks.evaluation import Evaluation
from xbench.geometry.grid import FULL_VIEW, Upsampling, upsample
from xbench.runtime.errors import UserError

MODES: tuple[Upsampling, ...] = get_args(Upsampling)
SIDES = st.integers(1, 7)
SHAPES = st.tuples(SIDES, SIDES)


def places_by_hand(
    low: float, high: float, pixels: int, cells: int, mode: Upsampling
) -> list[tuple[int, np.float32] | None]:
    """Of each of `pixels` the cell at or before it and the share of the way to the next; None outside [low, high]."""
    first, last = max(0, math.ceil(pixels * low - 0.5)), min(pixels - 1, math.floor(pixels * high - 0.5))
    if first > last:
        first = last = min(max(0, math.floor(pixels * (low + high) / 2)), pixels - 1)
    places: list[tuple[int, np.float32] | None] = []
    for pixel in range(pixels):
        inside, length = (2 * pixel + 1) - 2 * pixels * low, 2 * pixels * (high - low)
        if mode == "nearest":
            place = float(math.floor(inside * cells / length))
        elif mode == "corners":
            place = (inside - 1) * (cells - 1) / (length - 2) if length > 2 else 0.0
        else:
            place = inside * cells / length - 0.5
        units = round(min(max(place, 0.0), cells - 1.0) * 2**24)
        seen = first <= pixel <= last
        places.append((units // 2**24, np.float32(units % 2**24 / 2**24)) if seen else None)
    return places


def between(a: np.float32, b: np.float32, w: np.float32) -> np.float32:
    return np.float32(a + np.float32(w * np.float32(b - a)))


def on_grid_by_hand(
    maps: np.ndarray, view: tuple[float, ...], size: tuple[int, int], mode: Upsampling
) -> tuple[np.ndarray, dict[tuple[int, int], np.ndarray]]:
    """One map on the grid, pixel by pixel by the documented rule, and the four cells around each pixel of the view."""
    (h, w), (left, top, right, bottom) = maps.shape, view
    rows, columns = places_by_hand(top, bottom, size[0], h, mode), places_by_hand(left, right, size[1], w, mode)
    values, around = {}, {}
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            if row is not None and column is not None:
                (y, down), (x, across) = row, column
                # Beyond the last cell there is none; its share is 0.
                cells = maps[np.ix_([y, min(y + 1, h - 1)], [x, min(x + 1, w - 1)])]
                upper, lower = (between(*line, across) for line in cells)
                values[i, j], around[i, j] = between(upper, lower, down), cells
    found = np.full(size, min(values.values()), np.float32)
    for place, value in values.items():
        found[place] = value
    return found, around


EDGES = st.tuples(st.floats(-0.6, 0.95), st.floats(0.01, 1.6)).map(lambda edge: (edge[0], min(sum(edge), 1.7)))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), mode=st.sampled_from(MODES), levels=st.sampled_from(["any", "few"]))
def test_to_the_bit_and_never_beyond_the_cells(data: st.DataObject, mode: Upsampling, levels: str) -> None:
    shape, size = data.draw(SHAPES), data.draw(st.tuples(st.integers(1, 16), st.integers(1, 16)))
    edges = st.just((0.0, 1.0)) | EDGES.filter(lambda edge: edge[1] > 0 and edge[0] < 1)
    (left, right), (top, bottom) = data.draw(edges), data.draw(edges)
    value = st.floats(-(2.0**126), 2.0**126, width=32) if levels == "any" else st.sampled_from([-0.7, 0.1, 0.7, 3e-45])
    count = shape[0] * shape[1]
    maps = np.array(data.draw(st.lists(value, min_size=count, max_size=count)), np.float32).reshape(shape)
    view = (left, top, right, bottom)
    found = saliency_on_grid(torch.from_numpy(maps)[None], [view], size, mode)[0].numpy()
    expected, around = on_grid_by_hand(maps, view, size, mode)
    # By value, for a plateau of -0.0 may come out as 0.0.
    assert np.array_equal(found, expected)
    for place, cells in around.items():
        assert cells.min() <= found[place] <= cells.max()
    if view == FULL_VIEW:
        assert np.array_equal(upsample(torch.from_numpy(maps)[None], size, mode)[0].numpy(), expected)


def test_the_authors_own_words() -> None:
    """What the scripts of MedKLIP and CARZero (repetition) and of MAVL (between corners) do, and PyTorch usually."""
    maps = torch.randn(3, 14, 14, generator=torch.Generator().manual_seed(0))
    whole = [FULL_VIEW] * 3
    nearest = saliency_on_grid(maps, whole, (224, 224), "nearest")
    assert np.array_equal(nearest.numpy(), maps.numpy().repeat(16, axis=1).repeat(16, axis=2))
    corners = saliency_on_grid(maps, whole, (224, 224), "corners")
    # PyTorch computes places in float32, which errs by up to 14 * 2**-24 cells.
    official = F.interpolate(maps[:, None], (224, 224), mode="bilinear", align_corners=True)[:, 0]
    torch.testing.assert_close(corners, official, rtol=0, atol=1e-5)
    for size in ((28, 28), (224, 224), (300, 200), (9, 31)):
        usual = F.interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]
        torch.testing.assert_close(saliency_on_grid(maps, whole, size), usual, rtol=0, atol=1e-5)
    assert torch.equal(corners[:, [0, 0, -1, -1], [0, -1, 0, -1]], maps[:, [0, 0, -1, -1], [0, -1, 0, -1]])


@pytest.mark.parametrize("mode", MODES)
def test_batches_constants_and_nothing(mode: Upsampling) -> None:
    generator = torch.Generator().manual_seed(2)
    maps, views = torch.randn(4, 5, 6, generator=generator), [FULL_VIEW, (0.1, 0.0, 0.9, 1.0)] * 2
    together = saliency_on_grid(maps, views, (20, 21), mode)
    for index in range(4):
        alone = saliency_on_grid(maps[index : index + 1], views[index : index + 1], (20, 21), mode)
        assert torch.equal(together[index], alone[0])
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        rounded = maps.to(dtype)
        on_grid = saliency_on_grid(rounded, views, (20, 21), mode)
        assert on_grid.dtype == torch.float32
        assert torch.equal(on_grid, saliency_on_grid(rounded.float(), views, (20, 21), mode))
    constant = torch.full((4, 5, 6), 0.3)
    assert (saliency_on_grid(constant, views, (20, 21), mode) == constant[0, 0, 0]).all()
    assert saliency_on_grid(torch.empty(0, 7, 7), [], (5, 6), mode).shape == (0, 5, 6)


class Enlarged(Coarse):
    def __init__(self, saliency_upsample: Upsampling = "bilinear", crop: bool = False) -> None:
        super().__init__(crop=crop)
        self.saliency_upsample = saliency_upsample


class Kept(Callback):
    def __init__(self) -> None:
        self.steps = []

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0) -> None:
        self.steps.append((batch, outputs))


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_results_are_those_of_the_models_way(mode: Upsampling, crop: bool) -> None:
    evaluation, kept = Evaluation(), Kept()
    data = Squares(images=12, num_workers=0, batch_size=5)
    quiet_trainer(evaluation, kept).test(Enlarged(mode, crop), datamodule=data, verbose=False)
    assert evaluation.results is not None and evaluation.rows is not None
    assert evaluation.results.provenance["model"]["saliency_upsample"] == mode
    rows = {name: evaluation.rows.matrix(name) for name in ("dice", "pointing_hit")}
    row = 0
    for batch, output in kept.steps:
        for image in range(len(batch)):
            for finding in range(3):
                region = batch.truth.regions[3 * image + finding]
                if region is None:
                    continue
                raw = output.shown.values[3 * image + finding][None]
                grid = saliency_on_grid(raw, [batch.truth.views[image]], (224, 224), mode)[0].numpy()
                dice = overlaps(grid, region.numpy(), 2)[0][1]
                assert rows["dice"][row, finding] == pytest.approx(dice, abs=1e-12)
                assert rows["pointing_hit"][row, finding] == pytest.approx(pointing(grid, region.numpy()), abs=1e-12)
            row += 1
    assert row == 12


def test_a_way_that_there_is_not() -> None:
    with pytest.raises(UserError, match="saliency_upsample is 'bicubic'; give one of bilinear, nearest, corners"):
        quiet_trainer().test(Enlarged("bicubic"), datamodule=Squares(num_workers=0), verbose=False)  # type: ignore[arg-type]
