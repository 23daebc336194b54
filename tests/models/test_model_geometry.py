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
from numpy.typing import NDArray
from open_clip.transform import PreprocessCfg
from toys import quiet_trainer
from transformers import SiglipImageProcessor

from xbench.callbacks.evaluation import Evaluation
from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.phantom import draw_phantom
from xbench.data.records import Radiograph, Record
from xbench.geometry.grid import View
from xbench.geometry.regions import Coverage
from xbench.geometry.transforms import CenterCrop, MinMax, PillowResize, Preprocessing, TruncatedMinMax, on_black_canvas
from xbench.models import AFLoc, GLoRIA
from xbench.models.base import SaliencyModel
from xbench.models.maps import biomedclip, carzero, chexzero, hf_dual
from xbench.models.maps import clip as open_clip
from xbench.models.maps import medklip as _book
from xbench.runtime.notes import INPUT_NOTE
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
    """A model's preprocessing, and the least Dice of a region that the model is shown."""

    build: Callable[[], Preprocessing]
    dice: float = 0.96


CASES = {
    "CLIP": Case(of_open_clip),
    "CLIP, longest": Case(lambda: of_open_clip("longest")),
    "CLIP, squash": Case(lambda: of_open_clip("squash", interpolation="bilinear")),
    "BiomedCLIP": Case(lambda: of_open_clip(**biomedclip._config(None)["preprocess_cfg"])),
    "MedKLIP and MAVL": Case(lambda: _book.preprocessing(224, equalise=False)),
    # Of the 256 gray values of a soft edge, equalising a film of little but black leaves a handful.
    "MedKLIP and MAVL, equalised": Case(lambda: _book.preprocessing(224, equalise=True), dice=0.9),
    "KAD": Case(lambda: of_kad(512)),
    "DeViDe": Case(lambda: of_kad(224)),
    "RadZero": Case(lambda: Preprocessing([MinMax(), PillowResize(518, "both")])),
    "GLoRIA": Case(lambda: Preprocessing(on_black_canvas(GLoRIA.canvas, 224))),
    "AFLoc": Case(lambda: Preprocessing(on_black_canvas(AFLoc.canvas, 224))),
    "BioViL": Case(
        lambda: Preprocessing([TruncatedMinMax(), PillowResize(512, "shortest", "bilinear"), CenterCrop(480)])
    ),
    "CheXzero": Case(lambda: chexzero.preprocessing(224, antialias=False)),
    "MedSigLIP": Case(lambda: hf_dual.preprocessing(SiglipImageProcessor(), 448, tensorflow=True)),
    "CARZero": Case(lambda: carzero.preprocessing(224)),
    "CARZero at 448": Case(lambda: carzero.preprocessing(448)),
}
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
    findings = ("Lesion",)

    def read_records(self, annotated: bool) -> list[Record]:
        return [Record(f"{index:03d}", {"Lesion": 1}, region) for index, region in enumerate(regions())]

    def load(self, record: Record) -> Radiograph:
        return Radiograph(record.source.astype(np.uint8) * 255, {"Lesion": record.source})


class Shown(SaliencyModel):
    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing

    def score(self, batch: Batch) -> ModelOutput:
        logits = batch.images.new_zeros(len(batch), 1)
        return ModelOutput(logits, logits.sigmoid(), batch.images[:, :1])


def in_view(view: View) -> NDArray[np.bool_]:
    rows, columns = ((np.arange(side) + 0.5) / side for side in GRID)
    left, top, right, bottom = view
    return ((rows >= top) & (rows <= bottom))[:, None] & ((columns >= left) & (columns <= right))


def pixels_on_edge(region: NDArray[np.bool_]) -> int:
    square = np.ones((3, 3), np.uint8)
    mask = region.astype(np.uint8)
    return int((cv2.dilate(mask, square) != cv2.erode(mask, square)).sum())


@CASE
def test_a_region_comes_back_to_its_place(name: str) -> None:
    """Compare Dice up to resampling. Where the crop shows S pixels of a region of N, it is 2 S / (S + N)."""
    case = CASES[name]
    preprocessing, evaluation = case.build(), Evaluation()
    data = Regions(num_workers=0, cache=False)
    quiet_trainer(evaluation).test(Shown(preprocessing), datamodule=data, verbose=False)
    assert evaluation.rows is not None
    cut = 0
    for row, region in enumerate(regions()):
        expected = Coverage.of(region, GRID).at(0.5)
        shown = expected & in_view(preprocessing(region.astype(np.uint8) * 255)[1])
        cut += shown.sum() < expected.sum()
        assert evaluation.rows["pointing_hit"][row] == 1
        found = evaluation.rows["dice"][row]
        if shown.sum() == expected.sum():
            assert found >= case.dice
        perfect = 2 * shown.sum() / (shown.sum() + expected.sum())
        # A straight edge through the middle of pixels goes either way as a whole; two sides of a box are a quarter.
        wrong = 0.25 * pixels_on_edge(shown)
        # A wrong pixel takes at most one off the overlap, and with it two off the numerator.
        assert abs(found - perfect) <= 2 * wrong / (shown.sum() + expected.sum() - wrong)
    crops = name in ("CLIP", "BiomedCLIP", "GLoRIA", "BioViL") or name.startswith("CARZero")
    assert (cut > 0) == crops


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
    found, transforms = {}, geometry.geometry.transforms
    made = {name: Preprocessing(transforms, *statistics) for name, statistics in others.items()}
    for name, preprocessing in {"right": geometry, **made}.items():
        images = torch.stack([preprocessing.normalise(one) for one in pixels])
        found[name] = preprocessing.problem(images, [torch.from_numpy(radiograph) for radiograph in radiographs])
    return found


# The others have the normalization and, but for size and interpolation, the geometry of one of these.
@pytest.mark.parametrize("film", FILMS)
@pytest.mark.parametrize("name", ["CLIP", "MedKLIP and MAVL, equalised", "KAD", "CARZero"])
def test_wrong_scales_are_told_from_right_ones_on_any_film(name, film):
    found = problems_of(CASES[name].build(), films(film), **NORMALISATIONS, **SCALES)
    assert {name for name, problem in found.items() if problem is None} == {"right", *NORMALISATIONS}
    for scale in SCALES:
        assert found[scale].startswith(INPUT_NOTE) and "\n" not in found[scale]


@CASE
def test_black_and_white_films_are_no_sign_of_a_wrong_scale(name):
    black, white = (np.full((300, 260), gray, np.uint8) for gray in (0, 255))
    for radiographs in ([black], [white], [black, white]):
        assert problems_of(CASES[name].build(), radiographs) == {"right": None}
