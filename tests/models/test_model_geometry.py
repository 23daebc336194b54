"""What every model's own preprocessing makes of a known region, and that it comes back to its place on the radiograph.

The oracle here is told the region in the frame of the model input: its film is the region itself, white on black, and
its map is what the model under test would be shown of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache

import cv2
import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from numpy.typing import NDArray
from open_clip.transform import PreprocessCfg

from xbench.callbacks.evaluation import Evaluation
from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.records import Radiograph, Record
from xbench.geometry.coverage import Coverage
from xbench.geometry.grid import FULL_VIEW, View, saliency_on_grid
from xbench.geometry.preprocessing import INPUT_NOTE, PillowResize, Preprocessing
from xbench.metrics import PointingGame, ThresholdSweep
from xbench.models import biomedclip, carzero
from xbench.models.base import SaliencyModel
from xbench.models.components import book as _book
from xbench.models.components import open_clip
from xbench.phantom import draw_phantom
from xbench.types import Batch, ModelOutput

GRID = (224, 224)
SHAPES = {"square": (320, 320), "portrait": (512, 380), "landscape": (380, 512), "odd": (333, 517), "long": (701, 467)}


def of_open_clip(resize_mode: open_clip.ResizeMode | None = None, **changes: object) -> Preprocessing:
    config = {**asdict(PreprocessCfg(size=224)), **changes}
    return open_clip.preprocessing(config, resize_mode, "ViT-B-16")


def of_kad(image_size: int) -> Preprocessing:
    return Preprocessing([PillowResize(image_size, "both", "bicubic")], (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Case:
    """A model's preprocessing, and what resampling may cost.

    Attributes:
        build: Makes it.
        dice: The least Dice of a region that the model is shown.
        edge: The largest share of the pixels on a region's edge, on either side of it, that may be wrong. A straight
            edge through the middle of pixels goes either way as a whole; two sides of a box are a quarter of them.
    """

    build: Callable[[], Preprocessing]
    dice: float = 0.96
    edge: float = 0.25


CASES = {
    "CLIP": Case(of_open_clip),
    "CLIP, longest": Case(lambda: of_open_clip("longest")),
    "CLIP, squash": Case(lambda: of_open_clip("squash", interpolation="bilinear")),
    "BiomedCLIP": Case(lambda: of_open_clip(**biomedclip._config(None)["preprocess_cfg"])),
    "MedKLIP and MAVL": Case(lambda: _book.preprocessing(224, equalise=False)),
    # Of the 256 grey values of a soft edge, equalising a film of little but black leaves a handful.
    "MedKLIP and MAVL, equalised": Case(lambda: _book.preprocessing(224, equalise=True), dice=0.9),
    "KAD": Case(lambda: of_kad(512)),
    "DeViDe": Case(lambda: of_kad(224)),
    "CARZero": Case(lambda: carzero.preprocessing(224)),
    "CARZero at 448": Case(lambda: carzero.preprocessing(448)),
}
STRETCHED = ("CLIP, squash", "MedKLIP and MAVL", "MedKLIP and MAVL, equalised", "KAD", "DeViDe")
CASE = pytest.mark.parametrize("name", CASES)


@cache
def regions() -> list[NDArray[np.bool_]]:
    """Regions of phantoms of every shape, and a box at the left edge and one at the top, which some models crop."""
    found = []
    for shape in SHAPES.values():
        for index in range(2):
            found += [mask for mask in draw_phantom(3, index, *shape).masks.values() if mask.mean() > 0.003]
        height, width = shape
        for box in ((slice(height // 3, height // 2), slice(0, width // 3)), (slice(0, height // 3), slice(99, 170))):
            region = np.zeros(shape, bool)
            region[box] = True
            found.append(region)
    return found


class Regions(ChestXrayDataModule):
    """Films that are their own annotation: white where the lesion is, black elsewhere."""

    findings = ("Lesion",)

    def read_records(self, annotated: bool) -> list[Record]:
        return [Record(f"{index:03d}", {"Lesion": 1}, region) for index, region in enumerate(regions())]

    def load(self, record: Record) -> Radiograph:
        return Radiograph(record.source.astype(np.uint8) * 255, {"Lesion": record.source})


class Shown(SaliencyModel):
    """Its map is its input."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing

    def score(self, batch: Batch) -> ModelOutput:
        logits = batch.images.new_zeros(len(batch), 1)
        return ModelOutput(logits, logits.sigmoid(), batch.images[:, :1])


def in_view(view: View) -> NDArray[np.bool_]:
    """The grid pixels whose centres a model is shown."""
    rows, columns = ((np.arange(side) + 0.5) / side for side in GRID)
    left, top, right, bottom = view
    return ((rows >= top) & (rows <= bottom))[:, None] & ((columns >= left) & (columns <= right))


def pixels_on_edge(region: NDArray[np.bool_]) -> int:
    square = np.ones((3, 3), np.uint8)
    mask = region.astype(np.uint8)
    return int((cv2.dilate(mask, square) != cv2.erode(mask, square)).sum())


@CASE
def test_a_region_comes_back_to_its_place(name: str) -> None:
    """Pointing game 1. Dice 1 up to resampling: at most the stated share of the pixels on the edge is wrong.

    Of a region that the model's crop cuts, the part shown comes back, and the rest is missed: S pixels of N give
    2 S / (S + N).
    """
    case = CASES[name]
    preprocessing, evaluation = case.build(), Evaluation()
    trainer = Trainer(
        logger=False,
        callbacks=[evaluation],
        accelerator="cpu",
        devices=1,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.test(Shown(preprocessing), datamodule=Regions(num_workers=0, cache=False), verbose=False)
    assert evaluation.rows is not None
    cut = 0
    for row, region in enumerate(regions()):
        expected = Coverage.of(region, GRID).at(0.5)
        shown = expected & in_view(preprocessing(region.astype(np.uint8) * 255)[1])
        cut += shown.sum() < expected.sum()
        assert evaluation.rows.pointing_hit[row, 0] == 1
        found = evaluation.rows.dice[row, 0]
        if shown.sum() == expected.sum():
            assert found >= case.dice
        perfect = 2 * shown.sum() / (shown.sum() + expected.sum())
        wrong = case.edge * pixels_on_edge(shown)
        # A wrong pixel takes at most one off the overlap, and with it two off the numerator.
        assert abs(found - perfect) <= 2 * wrong / (shown.sum() + expected.sum() - wrong)
    crops = name in ("CLIP", "BiomedCLIP") or name.startswith("CARZero")
    assert (cut > 0) == crops


@CASE
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_view_is_full_unless_the_model_crops_or_pads(name: str, shape: tuple[int, int]) -> None:
    view = CASES[name].build()(np.zeros(shape, np.uint8))[1]
    height, width = shape
    if name in STRETCHED:
        assert view == FULL_VIEW
        return
    side: float = min(shape) if name in ("CLIP", "BiomedCLIP") else max(shape)
    if name.startswith("CARZero"):
        side *= 224 / 256
    share = side / width, side / height
    expected = [(1 - share[0]) / 2, (1 - share[1]) / 2, (1 + share[0]) / 2, (1 + share[1]) / 2]
    # Sides are whole pixels of the model input, and a remainder that is odd goes to one side.
    assert view == pytest.approx(expected, abs=1.5 / 224)


# A shift by whole patches


def corner_loss(patch: int) -> int:
    """Pixels at the corners of a rectangle of whole patches whose bilinear value is below one half."""
    inner = [(k + 0.5) / patch + 0.5 for k in range(patch // 2)]
    return 4 * sum(x * y < 0.5 for x in inner for y in inner)


def scored(saliency: torch.Tensor, region: NDArray[np.bool_]) -> tuple[float, float]:
    """Pointing game and Dice at 0.5 of a map on the grid."""
    pointing, sweep = PointingGame(1), ThresholdSweep(1)
    maps, regions, valid = (
        saliency[None, None],
        torch.from_numpy(region)[None, None],
        torch.ones(1, 1, dtype=torch.bool),
    )
    for metric in (pointing, sweep):
        metric.update(maps, regions, valid)
    assert sweep.compute()["count"].tolist() == [1]
    return float(pointing.compute()["pointing_game"][0]), float(sweep.compute()["dice"][0, 50])


@pytest.mark.parametrize(
    ("name", "shape"),
    # Where a model's patches are whole pixels of the grid.
    [(name, (448, 448)) for name in CASES] + [(name, (448, 672)) for name in CASES if name in STRETCHED],
)
@pytest.mark.parametrize("shift", [0, 1, 2, 3, 4, 6])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_shift_costs_what_arithmetic_says(name: str, shape: tuple[int, int], shift: int, axis: int) -> None:
    """A box of W patches whose map is D patches off has the Dice 1 - D / W.

    Bilinear maps also round every corner, counted here: of the four, two lie in the overlap.
    """
    view = CASES[name].build()(np.zeros(shape, np.uint8))[1]
    patch = 224 * (view[2] - view[0]) / 14
    assert patch.is_integer() and (view[3] - view[1]) * 16 == patch
    corner = torch.tensor([5, 4])
    size = torch.tensor([3, 3])
    size[axis] = 4
    width = 4
    film = np.zeros(shape, bool)
    # From the cells of the map to pixels of the film.
    edges = [
        [round((low + (high - low) * cell / 14) * side) for cell in (int(first), int(first + count))]
        for low, high, side, first, count in zip(view[1::-1], view[:1:-1], shape, corner, size, strict=True)
    ]
    film[edges[0][0] : edges[0][1], edges[1][0] : edges[1][1]] = True
    region = Coverage.of(film, GRID).at(0.5)
    area = int(size.prod()) * int(patch) ** 2
    assert region.sum() == area

    corner[axis] += shift
    maps = torch.zeros(1, 14, 14)
    maps[0, corner[0] : corner[0] + size[0], corner[1] : corner[1] + size[1]] = 1
    overlap = max(0.0, 1 - shift / width)

    nearest = scored(saliency_on_grid(maps, [view], GRID, "nearest")[0], region)
    assert nearest == pytest.approx((overlap, overlap), abs=1e-6)

    loss = corner_loss(int(patch))
    lost_of_overlap = loss if shift == 0 else loss / 2 if overlap else 0
    bilinear = scored(saliency_on_grid(maps, [view], GRID)[0], region)
    assert bilinear[1] == pytest.approx(2 * (area * overlap - lost_of_overlap) / (2 * area - loss), abs=1e-6)


@pytest.mark.parametrize("name", ["CLIP", "BiomedCLIP", "CARZero", "CARZero at 448"])
def test_what_a_crop_leaves_out_counts_as_the_minimum(name: str) -> None:
    """The map there is its least value, so at threshold 0 it belongs to the mask; the region there is still scored."""
    shape = (448, 896)
    view = CASES[name].build()(np.zeros(shape, np.uint8))[1]
    maps = torch.rand(1, 14, 14, generator=torch.Generator().manual_seed(0)) + 1
    grid = saliency_on_grid(maps, [view], GRID)[0]
    seen = torch.from_numpy(in_view(view))
    assert 0 < int(seen.sum()) < seen.numel()
    assert (grid[~seen] == grid[seen].min()).all()
    assert (grid[seen] > grid[seen].min()).float().mean() > 0.99

    # The outermost two columns of the film, for the least that is left out is CARZero's sixteenth.
    film = np.zeros(shape, bool)
    film[:, :8] = True
    region = Coverage.of(film, GRID).at(0.5)
    assert region.sum() == 2 * 224 and not region[seen.numpy()].any()
    pointing, dice = scored(grid, region)
    assert (pointing, dice) == (0, 0)
    sweep = ThresholdSweep(1)
    sweep.update(grid[None, None], torch.from_numpy(region)[None, None], torch.ones(1, 1, dtype=torch.bool))
    whole = 2 * 448 / (448 + 224 * 224)
    assert float(sweep.compute()["dice"][0, 0]) == pytest.approx(whole, abs=1e-6)


IMAGENET, CLIP = (0.485, 0.456, 0.406), (0.48145466, 0.4578275, 0.40821073)
NORMALISATIONS = {
    "ImageNet": (IMAGENET, (0.229, 0.224, 0.225)),
    "CLIP": (CLIP, (0.26862954, 0.26130258, 0.27577711)),
    "-1 to 1": ((0.5,) * 3, (0.5,) * 3),
    "0 to 1": ((0.0,) * 3, (1.0,) * 3),
    "of chest radiographs": ((0.5056,) * 3, (0.252,) * 3),
}
SCALES = {
    "mean and std of 0 to 255": ((127.5,) * 3, (63.75,) * 3),
    "ImageNet's of 0 to 255": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "mean of 0 to 255": ((127.5,) * 3, (0.25,) * 3),
    "std of 0 to 255": ((0.5,) * 3, (63.75,) * 3),
    "divided by 255 twice": ((0.0,) * 3, (255.0,) * 3),
    "pixels of 0 to 255": ((0.0,) * 3, (1 / 255,) * 3),
    "std of a 255th": ((0.5,) * 3, (1 / 255,) * 3),
}
FILMS = {
    "as it is": lambda film: film,
    "dark": lambda film: film * 0.1,
    "bright": lambda film: 255 - (255 - film) * 0.1,
    "flat": lambda film: 110 + film * 0.1,
    "black and white": lambda film: 255.0 * (film > 120),
    "inverted": lambda film: 255 - film,
    "in a black frame": lambda film: np.pad(film, 200),
    "in a white frame": lambda film: np.pad(film, 60, constant_values=255),
}


@cache
def films(change: str) -> list[NDArray[np.uint8]]:
    shapes = [(320, 320), (330, 250)]
    drawn = [draw_phantom(5, number, *shape).image.astype(float) for number, shape in enumerate(shapes)]
    return [FILMS[change](film).astype(np.uint8) for film in drawn]


def problems_of(
    geometry: Preprocessing, radiographs: list[NDArray[np.uint8]], **others: tuple
) -> dict[str, str | None]:
    """What is wrong with one preprocessing, `right`, and with the same with other means and standard deviations."""
    pixels = [geometry.pixels(radiograph)[0] for radiograph in radiographs]
    found = {}
    transforms = geometry.geometry.transforms
    for name, preprocessing in {
        "right": geometry,
        **{name: Preprocessing(transforms, *statistics) for name, statistics in others.items()},
    }.items():
        images = torch.stack([preprocessing.normalise(one) for one in pixels])
        found[name] = preprocessing.problem(images, [torch.from_numpy(radiograph) for radiograph in radiographs])
    return found


@pytest.mark.parametrize("film", FILMS)
@CASE
def test_wrong_scales_are_told_from_right_ones_on_any_film(name, film):
    found = problems_of(CASES[name].build(), films(film), **NORMALISATIONS, **SCALES)
    assert {name for name, problem in found.items() if problem is None} == {"right", *NORMALISATIONS}
    for scale in SCALES:
        assert found[scale].startswith(INPUT_NOTE) and "\n" not in found[scale]


@CASE
def test_black_and_white_films_are_no_sign_of_a_wrong_scale(name):
    black, white = (np.full((300, 260), grey, np.uint8) for grey in (0, 255))
    for radiographs in ([black], [white], [black, white]):
        assert problems_of(CASES[name].build(), radiographs) == {"right": None}
