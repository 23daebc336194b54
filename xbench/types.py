"""What crosses the borders between data, models and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.geometry.coverage import Coverage
from xbench.geometry.grid import View

__all__ = ["Batch", "Failure", "ModelOutput", "Note", "Sample", "scored_pairs"]


class Note(NamedTuple):
    """Something odd about an image or its annotations that does not keep it from being scored.

    A named tuple, for Lightning refuses frozen dataclasses when it moves a batch to a device.

    Attributes:
        text: What it is, in the same words for every image that it applies to.
        image_id: The image.
    """

    text: str
    image_id: str


@dataclass(slots=True)
class Sample:
    """One radiograph, ready for a model, with its ground truth for C findings.

    Attributes:
        index: Position in the dataset, 0-based.
        image_id: The dataset's own name of the image.
        image: Model input (3, h, w), float32, normalised as the model asks.
        view: Part of the radiograph that the model input shows.
        display: The grey radiograph on the evaluation grid (H, W), uint8, for pictures.
        labels: (C,) int8: 1 present, 0 absent, -1 unknown.
        regions: Annotated regions on the evaluation grid (K, H, W), bool: those of the K findings that have one, in
            the order of the findings.
        coverage: Which share of each grid pixel these K regions cover, for other gammas than the run's.
        has_region: (C,) bool: whether the finding has an annotated region; K of them do.
        region_places: Of each finding's region the share of the grid that it covers and its centre of mass, x and y
            from 0 at the first edge to 1 at the last (C, 3), float64; NaN without a region.
        region_digests: Digest of each finding's region on the grid (C,), 16 bytes; none without a region.
        reader_agreement: Mean Dice and IoU between the regions of any two readers who drew the finding (C, 2),
            float64; NaN unless there are several.
        image_sha256: Digest of the model input, before mean and standard deviation.
        patient_id: Whose image it is; None where the dataset does not say.
        notes: What is odd about it.
        seconds: How long it took to make.
    """

    index: int
    image_id: str
    image: Tensor
    view: View
    display: Tensor
    labels: Tensor
    regions: Tensor
    coverage: tuple[Coverage, ...]
    has_region: Tensor
    region_places: NDArray[np.float64]
    region_digests: NDArray[np.bytes_]
    reader_agreement: NDArray[np.float64]
    image_sha256: str
    patient_id: str | None = None
    notes: tuple[Note, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class Failure:
    """An image that could not be read.

    Attributes:
        index: Position of the image in the dataset.
        image_id: Its name.
        reason: The paragraph that says why.
        timed_out: Whether reading it took too long.
    """

    index: int
    image_id: str
    reason: str
    timed_out: bool = False


@dataclass(slots=True)
class Batch:
    """B samples side by side, and the images of the batch that could not be read.

    Tensors are those of `Sample` with a leading batch dimension; `index` is (B,) int64. What lies on the evaluation
    grid, `display` (H, W) and `regions` (K, H, W), comes as one tensor per image, because on the native grid images
    differ in size. `scored` names the pairs that grounding is scored on, present with a region, on the host, so that
    choosing them does not wait for an accelerator: place of the image in the batch, finding, and which of the image's
    regions it is (P, 3) int64. `region_places` (B, C, 3), `region_digests` (B, C) and `reader_agreement` (B, C, 2) are
    no tensors, so that no precision plug-in rounds them with the images. `seconds` is the sum over the images, spent in
    the process that loaded them. When every image of the batch failed, B is 0, the lists are empty, and so are the
    tensors, without the other dimensions.
    """

    index: Tensor
    image_ids: list[str]
    images: Tensor
    views: list[View]
    display: list[Tensor]
    labels: Tensor
    regions: list[Tensor]
    coverage: list[tuple[Coverage, ...]]
    has_region: Tensor
    scored: NDArray[np.int64]
    region_places: NDArray[np.float64]
    region_digests: NDArray[np.bytes_]
    reader_agreement: NDArray[np.float64]
    image_sha256: list[str]
    patient_ids: list[str | None]
    notes: list[Note]
    failures: list[Failure]
    seconds: float = 0.0

    def __len__(self) -> int:
        """Return the number of images that could be read."""
        return len(self.image_ids)

    @classmethod
    def collate(cls, items: list[Sample | Failure]) -> Batch:
        """Stack samples, in their order, and set failures apart."""
        samples = [item for item in items if isinstance(item, Sample)]

        def stack(tensors: list[Tensor]) -> Tensor:
            return torch.stack(tensors) if tensors else torch.empty(0)

        return cls(
            index=torch.tensor([sample.index for sample in samples], dtype=torch.int64),
            image_ids=[sample.image_id for sample in samples],
            images=stack([sample.image for sample in samples]),
            views=[sample.view for sample in samples],
            display=[image[0] for image in _neighbours([sample.display[None] for sample in samples])],
            labels=stack([sample.labels for sample in samples]),
            regions=_neighbours([sample.regions for sample in samples]),
            coverage=[sample.coverage for sample in samples],
            has_region=stack([sample.has_region for sample in samples]),
            scored=scored_pairs(
                [sample.labels.numpy() for sample in samples], [sample.has_region.numpy() for sample in samples]
            ),
            region_places=np.array([sample.region_places for sample in samples]),
            region_digests=np.array([sample.region_digests for sample in samples]),
            reader_agreement=np.array([sample.reader_agreement for sample in samples]),
            image_sha256=[sample.image_sha256 for sample in samples],
            patient_ids=[sample.patient_id for sample in samples],
            notes=[note for sample in samples for note in sample.notes],
            failures=[item for item in items if isinstance(item, Failure)],
            seconds=sum(sample.seconds for sample in samples),
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its tensors on a device.

        Lightning calls this, and would else look for tensors behind every name and number.
        """
        non_blocking = torch.device(device).type == "cuda"

        def move(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device, non_blocking=non_blocking)
            return [move(one) for one in value]

        moved = [field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor)]
        return replace(self, **{name: move(getattr(self, name)) for name in (*moved, "display", "regions")})

    def pin_memory(self) -> Batch:
        """Copy the tensors to page-locked memory; the data loader calls this before a transfer to a GPU."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                setattr(self, field.name, value.pin_memory())
            elif field.name in ("display", "regions"):
                setattr(self, field.name, [one.pin_memory() for one in value])
        return self


@dataclass(slots=True)
class ModelOutput:
    """What a vision-language model says about B images and C findings.

    Attributes:
        logits: The model's official raw score (B, C), float.
        probabilities: The official score that AUROC is computed from, in [0, 1] (B, C), float.
        saliency: Raw map per finding in the frame of the model input (B, C, h, w), float, any scale; before upsampling
            and normalisation.
    """

    logits: Tensor
    probabilities: Tensor
    saliency: Tensor


def scored_pairs(labels: Iterable[NDArray[np.int8]], has_region: Iterable[NDArray[np.bool_]]) -> NDArray[np.int64]:
    """Return the pairs that grounding is scored on, as `Batch.scored` names them.

    Args:
        labels: Of B images (C,) each.
        has_region: Likewise.
    """
    pairs = [
        (row, column, place)
        for row, (present, drawn) in enumerate(zip(labels, has_region, strict=True))
        for place, column in enumerate(drawn.nonzero()[0].tolist())
        if present[column] == 1
    ]
    return np.array(pairs, np.int64).reshape(-1, 3)


def _neighbours(tensors: list[Tensor]) -> list[Tensor]:
    """Lay tensors (K, H, W) of one H and W in one storage; leave others as they are.

    A worker hands over each storage in a file descriptor, of which a process may open about a thousand.
    """
    if any(one.shape[1:] != other.shape[1:] for one, other in pairwise(tensors)):
        return tensors
    return list(torch.cat(tensors).split([len(one) for one in tensors])) if tensors else []
