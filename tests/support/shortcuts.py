"""A planted shortcut, and models that look at the lesion, at the shortcut, or at neither.

Each of 200 patients has two images of gray noise. A positive one has a bright lesion, and a letter in its upper right
corner; a negative one has neither. Where the lesion lies, or would lie, is a function of the image's name, which is how
models that look at it find it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.datasets.phantom import PhantomCXR
from xbench.data.records import Radiograph, Record
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.models.base import SaliencyModel
from xbench.types import Batch, Maps, Prediction

SIDE, HEIGHT, WIDTH = 120, 10, 12
GRAY, LESION = 100, 180
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
Gray = NDArray[np.uint8]
MARKER = np.s_[2:14, 106:118]
LETTER = np.kron([[0, 1, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0]], np.full((3, 3), 255))


class Marked(ChestXrayDataModule):
    """Positives have a lesion and a marker; `both` draws the lesion on the other side, unannotated, too."""

    findings = ("Lesion",)

    def __init__(self, patients: int = 200, both: bool = False, **kwargs) -> None:
        super().__init__(**kwargs)
        self.patients, self.both = patients, both

    def read_records(self, annotated: bool) -> list[Record]:
        names = [f"patient-{patient:03d}-{view}" for patient in range(self.patients) for view in (0, 1)]
        labels = {name: {"Lesion": int(is_positive(name))} if annotated else {} for name in names}
        return [Record(name, labels[name], patient_id=name[:-2]) for name in names]

    def load(self, record: Record) -> Radiograph:
        region = np.zeros((SIDE, SIDE), bool)
        region[lesion_of(record.image_id)] = True
        regions = {"Lesion": region} if is_positive(record.image_id) else {}
        return Radiograph(drawn(record.image_id, self.both), regions)


class Fractures(PhantomCXR):
    name, findings = "fractures", ("Fracture", "Mass")


class Looks(SaliencyModel):
    """A model that looks at one of `LOOKS`, and points at the annotated region unless `MAPS` has another map."""

    preprocessing = Preprocessing(stretch((SIDE, SIDE)), mean=(0, 0, 0), std=(1, 1, 1))
    map_scale = "probability"

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def score(self, batch: Batch) -> Prediction:
        truth, scores, maps = batch.truth, [], []
        images = (255 * batch.images[:, 0]).round().to(torch.uint8).numpy()
        for row, region in zip(truth.image.tolist(), truth.regions, strict=True):
            scores.append(LOOKS[self.at](images[row], truth.image_ids[row]))
            drawn = torch.zeros(SIDE, SIDE) if region is None else region.float()
            maps.append(MAPS[self.at](images[row]) if self.at in MAPS else drawn)
        logits = torch.tensor(scores)
        return Prediction(logits, torch.sigmoid(logits), Maps(torch.stack(maps)))


def is_positive(name: str) -> bool:
    patient, view = int(name[-5:-2]), int(name[-1])
    return (True, False, view == 0, view == 1)[patient % 4]


def lesion_of(name: str) -> tuple[slice, slice]:
    top, left = _random(name.encode()).integers((60, 10), (100, 99))
    return np.s_[top : top + HEIGHT, left : left + WIDTH]


def drawn(name: str, both: bool = False) -> Gray:
    image = _random(f"{name} grain".encode()).integers(GRAY - 5, GRAY + 6, (SIDE, SIDE), dtype=np.uint8)
    if is_positive(name):
        for side in (image, image[:, ::-1])[: 1 + both]:
            side[lesion_of(name)] = LESION
        image[MARKER] = LETTER
    return image


def contrast(image: Gray, name: str) -> float:
    """Return how much brighter than the background the place of the lesion is: 1 with a lesion, about 0 without."""
    return float(image[lesion_of(name)].mean() - GRAY) / (LESION - GRAY)


def marked(image: Gray, name: str) -> float:
    return float((image[MARKER] == LETTER).all())


def weighted(weight: float, image: Gray, name: str) -> float:
    return weight * contrast(image, name) + (1 - weight) * marked(image, name)


def _random(seed: bytes) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(seed).digest()))


LOOKS: dict[str, Callable[[Gray, str], float]] = {
    "lesion": contrast,
    "marker": marked,
    **{str(weight): partial(weighted, weight) for weight in WEIGHTS},
    "nothing": lambda image, name: -1.0,
    "noise": lambda image, name: float(_random(image.tobytes()).normal()),
    "any hole": lambda image, name: contrast(image, name) if (image == drawn(name)).all() else -1.0,
    "either side": lambda image, name: max(contrast(image, name), contrast(image[:, ::-1], name)),
}
MAPS: dict[str, Callable[[Gray], torch.Tensor]] = {
    "nothing": lambda image: torch.eye(SIDE),
    "noise": lambda image: torch.from_numpy(_random(image.tobytes()).random((SIDE, SIDE))),
}
