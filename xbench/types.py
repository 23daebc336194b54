"""What crosses the borders between data, models and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.geometry.grid import Upsampling, View
from xbench.geometry.regions import Coverage, area_and_centre, region_digest
from xbench.geometry.shapes import Shape
from xbench.predictions.answer import Answer, Box, outline_boxes
from xbench.predictions.asking import Question, Reply

TieRule = Literal["share", "any", "first"]
"""What counts when several pixels share the maximum of a map; `pointing_hits` describes the three."""

MapScale = Literal["cosine", "logit", "probability", "attention", "none"]
"""What the values of a model's raw maps are: cosines in [-1, 1], raw scores whose sigmoid is a probability,
probabilities in [0, 1], shares of attention that sum to 1 with what the map leaves out, or nothing that compares
between maps."""

EXPLORATORY_NOTE = "the maps are exploratory"
"""The beginning of the note in a run's results that its maps are not its authors' own."""

DOUBT_NOTE = "the predictions look wrong"
"""The beginning of the note that predictions made elsewhere contradict what was declared, or themselves."""


class Note(NamedTuple):
    """Something odd about an image or its annotations that does not keep it from being scored.

    A named tuple, for Lightning refuses frozen dataclasses when it moves a batch to a device.
    """

    text: str  # what it is, in the same words for every image that it applies to
    image_id: str


@dataclass(slots=True)
class GroundTruth:
    """What a dataset says about B images and C findings: all that scoring needs beside the model's output.

    All but `regions` stays on the host, so that looking at it does not wait for an accelerator, and in numpy, so that
    no precision plug-in rounds it with the images.

    Attributes:
        index: Position of each image in the dataset, 0-based (B,).
        image_ids: The dataset's own names of the images.
        patient_ids: Whose image each is; None where the dataset does not say.
        views: Part of each radiograph that the model input shows.
        labels: 1 present, 0 absent, -1 unknown (B, C).
        coverage: Of each image by finding, for those that have an annotated region: which share of each pixel of the
            evaluation grid it covers, for other gammas than the run's. Findings ascend.
        regions: Of each image these K regions cut at the run's gamma (K, H, W), bool. One tensor per image, because on
            the native grid images differ in size.
        region_places: Share of the grid that each finding's region covers and its centre of mass, x and y from 0 at
            the first edge to 1 at the last (B, C, 3); NaN without a region.
        region_digests: Digest of each finding's region on the grid (B, C), 16 bytes; none without a region.
        reader_agreement: Mean Dice and IoU between the regions of any two readers who drew the finding (B, C, 2); NaN
            unless there are several.
        image_sizes: Height and width of each image as it was decoded, in pixels; None where that is not known.
        instances: Of each image by finding what its region is the union of, item by item; without that key, as for an
            image without a region, no item is known. Findings ascend.
    """

    index: NDArray[np.int64]
    image_ids: list[str]
    patient_ids: list[str | None]
    views: list[View]
    labels: NDArray[np.int8]
    coverage: list[Mapping[int, Coverage]]
    regions: list[Tensor]
    region_places: NDArray[np.float64]
    region_digests: NDArray[np.bytes_]
    reader_agreement: NDArray[np.float64]
    image_sizes: list[tuple[int, int] | None]
    instances: list[Mapping[int, tuple[Shape, ...]]]

    @classmethod
    def of_image(
        cls,
        index: int,
        image_id: str,
        patient_id: str | None,
        view: View,
        labels: NDArray[np.int8],
        coverage: Mapping[int, Coverage],
        reader_agreement: NDArray[np.float64],
        gamma: float,
        size: tuple[int, int],
        image_size: tuple[int, int] | None = None,
        instances: Mapping[int, tuple[Shape, ...]] | None = None,
    ) -> GroundTruth:
        """Cut the regions of one image at `gamma`, the share of a grid pixel that a region must cover.

        The other arguments are the attributes for this image, without their first dimension; `size` is that of its
        grid, (H, W).
        """
        places, digests = np.full((1, len(labels), 3), np.nan), np.zeros((1, len(labels)), "S16")
        regions = np.zeros((len(coverage), *size), np.bool_)
        for place, (column, covered) in enumerate(coverage.items()):
            regions[place] = covered.at(gamma)
            places[0, column], digests[0, column] = area_and_centre(regions[place]), region_digest(regions[place])
        of_image = np.array([index]), [image_id], [patient_id], [view], labels[None], [coverage]
        drawn = [torch.from_numpy(regions)]
        return cls(*of_image, drawn, places, digests, reader_agreement[None], [image_size], [instances or {}])

    @classmethod
    def concatenate(cls, parts: Sequence[GroundTruth]) -> GroundTruth:
        """Put images one after the other; of no parts the number of findings is 0."""
        if not parts:
            none = np.zeros((0, 0, 3))
            digests = np.zeros((0, 0), "S16")
            return cls(
                np.zeros(0, np.int64), [], [], [], none[..., 0].astype(np.int8), [], [], none, digests, none, [], []
            )
        joined: dict[str, Any] = {}
        for part in fields(cls):
            values = [getattr(truth, part.name) for truth in parts]
            is_array = isinstance(values[0], np.ndarray)
            joined[part.name] = np.concatenate(values) if is_array else [one for value in values for one in value]
        return cls(**joined | {"regions": _neighbours(joined["regions"])})

    def only(self, rows: Sequence[int]) -> GroundTruth:
        """Return some of the images, in the given order."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        chosen: dict[str, Any] = {
            name: value[[*rows]] if isinstance(value, np.ndarray) else [value[row] for row in rows]
            for name, value in values.items()
        }
        return GroundTruth(**chosen)

    @property
    def has_region(self) -> NDArray[np.bool_]:
        """Which findings have an annotated region (B, C)."""
        drawn = np.zeros(self.labels.shape, np.bool_)
        for row, coverage in enumerate(self.coverage):
            drawn[row, list(coverage)] = True
        return drawn

    def boxes(self, row: int, column: int) -> tuple[list[Box], bool]:
        """Return the annotated boxes of a finding that has a region, and whether each is one lesion.

        Of outlines and masks they are the boxes around them. Where several readers drew, or where a dataset gives
        regions alone, only the union of what is annotated is known.

        Args:
            row: Place of the image in the batch.
            column: The finding.
        """
        items = self.instances[row].get(column, ())
        if boxes := [box for item in items if (box := item.box()) is not None]:
            return [Box(*box) for box in boxes], len({item.reader for item in items}) == 1
        region = self.regions[row][[*self.coverage[row]].index(column)]
        return outline_boxes(region.cpu().numpy()), False

    @property
    def scored(self) -> NDArray[np.int64]:
        """Pairs that grounding is scored on, present with a region, row by row (P, 3).

        Each is the place of the image in the batch, the finding, and which of the image's regions it is.
        """
        drawn = self.has_region
        row, column = (drawn & (self.labels == 1)).nonzero()
        return np.stack([row, column, drawn.cumsum(1)[row, column] - 1], axis=1)


@dataclass(slots=True)
class Sample:
    """One radiograph, ready for a model, with its ground truth. A `Batch` has several side by side."""

    image: Tensor  # (3, h, w); of a model that answers the radiograph itself (H, W), uint8
    display: Tensor  # (H, W)
    image_sha256: str
    truth: GroundTruth
    notes: tuple[Note, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class Failure:
    """An image that could not be read."""

    index: int  # position of the image in the dataset
    image_id: str
    reason: str  # the paragraph that says why
    timed_out: bool = False  # whether reading it took too long


@dataclass(slots=True)
class Batch:
    """B images side by side, what the dataset says about them, and the images of the batch that could not be read.

    When every image of the batch failed, B is 0, and arrays and tensors lack their other dimensions.

    Attributes:
        images: Model input (B, 3, h, w), float32, normalised as the model asks; of models that answer (B, 0).
        display: The grey radiographs on the evaluation grid (H, W), uint8, for pictures; their sizes differ on the
            native grid.
        image_sha256: Digests of the model input, before mean and standard deviation.
        truth: What the dataset says about them.
        notes: What is odd about them.
        seconds: How long it took to make them, summed over the images, in the process that loaded them.
        radiographs: For models that answer: the whole radiographs (H, W), uint8, on the host; their sizes differ.
    """

    images: Tensor
    display: list[Tensor]
    image_sha256: list[str]
    truth: GroundTruth
    notes: list[Note] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    radiographs: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of images that could be read."""
        return len(self.images)

    @classmethod
    def collate(cls, items: list[Sample | Failure]) -> Batch:
        """Stack samples, in their order, and set failures apart."""
        samples = [item for item in items if isinstance(item, Sample)]
        images = [sample.image for sample in samples]
        radiographs = images if images and images[0].ndim == 2 else []
        return cls(
            images=torch.empty(len(radiographs), 0) if radiographs or not images else torch.stack(images),
            display=[image[0] for image in _neighbours([sample.display[None] for sample in samples])],
            image_sha256=[sample.image_sha256 for sample in samples],
            truth=GroundTruth.concatenate([sample.truth for sample in samples]),
            notes=[note for sample in samples for note in sample.notes],
            failures=[item for item in items if isinstance(item, Failure)],
            seconds=sum(sample.seconds for sample in samples),
            radiographs=radiographs,
        )

    def only(self, rows: Sequence[int]) -> Batch:
        """Return some of the images, in the given order, and all failures."""
        kept = {*(self.truth.image_ids[row] for row in rows)}
        return replace(
            self,
            images=self.images[[*rows]],
            display=[self.display[row] for row in rows],
            image_sha256=[self.image_sha256[row] for row in rows],
            truth=self.truth.only(rows),
            notes=[note for note in self.notes if note.image_id in kept],
            radiographs=[self.radiographs[row] for row in rows] if self.radiographs else [],
        )

    @property
    def first(self) -> int:
        """Position in the dataset of the first image, readable or not."""
        return min([*map(int, self.truth.index), *(failure.index for failure in self.failures)])

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its tensors on a device, for Lightning, which would look for them behind every name."""
        non_blocking = torch.device(device).type == "cuda"
        images, *others = (
            tensor.to(device, non_blocking=non_blocking) for tensor in (self.images, *self.display, *self.truth.regions)
        )
        truth = replace(self.truth, regions=others[len(self.display) :])
        return replace(self, images=images, display=others[: len(self.display)], truth=truth)

    def pin_memory(self) -> Batch:
        """Copy the tensors to page-locked memory; the data loader calls this before a transfer to a GPU."""
        self.images = self.images.pin_memory()
        self.display = [display.pin_memory() for display in self.display]
        self.truth.regions = [regions.pin_memory() for regions in self.truth.regions]
        return self


@dataclass(slots=True)
class ModelOutput:
    """What the `forward` of a model that draws maps gives for B images and C findings.

    Attributes:
        logits: The model's official raw score (B, C), float.
        probabilities: The official score that AUROC is computed from, in [0, 1] (B, C), float.
        saliency: Raw map per finding in the frame of the model input (B, C, h, w), float, any scale; before upsampling
            and normalisation.
    """

    logits: Tensor
    probabilities: Tensor
    saliency: Tensor


@dataclass(slots=True)
class Maps:
    """Raw maps of B images and C findings.

    Attributes:
        values: In the frame of the model input (B, C, h, w), float, any scale.
        missing: Which of them nobody drew (B, C), bool, for predictions made elsewhere: their cells are NaN, and they
            are misses by every rule. None if there are none.
    """

    values: Tensor
    missing: Tensor | None = None


@dataclass(slots=True)
class Answers:
    """What a model said about B images and C findings.

    Attributes:
        answers: Where each finding is (B, C); None where it was not asked.
        replies: What it was asked, and what came back.
        repeated: Answers to the queries that were asked again, in the order of `replies`; they are not scored.
    """

    answers: list[list[Answer | None]]
    replies: list[tuple[Question, Reply]] = field(default_factory=list)
    repeated: list[Answer] = field(default_factory=list)


@dataclass(slots=True)
class Prediction:
    """What a model says about B images and C findings; `test_step` returns it.

    Attributes:
        logits: Raw scores (B, C), float; None of a model that does not say whether findings are there. NaN where an
            answer gives none that can be read.
        probabilities: In [0, 1] (B, C), float; None and NaN as for `logits`.
        shown: Where it looked: maps, answers, or nothing.
    """

    logits: Tensor | None
    probabilities: Tensor | None
    shown: Maps | Answers | None


@dataclass(frozen=True)
class Rules:
    """How maps are scored against annotated regions."""

    grid: tuple[int, int] | Literal["native"] = (224, 224)  # height and width, or the pixels of each image
    upsampling: Upsampling = "bilinear"
    gamma: float = 0.5  # share of a grid pixel that a region covers at least
    thresholds: int = 101  # how many k / (thresholds - 1) the sweep has; odd, so that 0.5 is one of them
    ties: TieRule = "share"


def _neighbours(tensors: list[Tensor]) -> list[Tensor]:
    """Lay tensors (K, H, W) of one H and W in one storage; leave others as they are.

    A worker hands over each storage in a file descriptor, of which a process may open about a thousand.
    """
    if any(one.shape[1:] != other.shape[1:] for one, other in pairwise(tensors)):
        return tensors
    return list(torch.split(torch.cat(tensors), [len(one) for one in tensors])) if tensors else []
