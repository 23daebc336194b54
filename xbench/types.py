"""Types that data, models and metrics exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.findings.queries import Query as Query
from xbench.geometry.grid import MapScale as MapScale
from xbench.geometry.grid import Rules as Rules
from xbench.geometry.grid import TieRule as TieRule
from xbench.geometry.grid import View
from xbench.geometry.regions import Coverage, area_and_centre, region_digest
from xbench.geometry.shapes import Shape
from xbench.predictions.answer import Answer, Box, outline_boxes
from xbench.predictions.asking import Question, Reply


class Note(NamedTuple):
    """Something odd about an image that does not prevent scoring. (Lightning cannot move frozen dataclasses.)"""

    text: str  # the same words for every image that it applies to
    image_id: str


_BY_IMAGE = ("index", "image_ids", "patient_ids", "views", "image_sizes")


@dataclass(slots=True)
class Truth:
    """Ground truth of P pairs of an image and a query. A precision plug-in would round tensors, so most are numpy."""

    # Of B images.
    index: NDArray[np.int64]  # position in the dataset, 0-based (B,)
    image_ids: list[str]
    patient_ids: list[str | None]  # None if unknown
    views: list[View]  # part of each radiograph that the model input shows
    image_sizes: list[tuple[int, int] | None]  # height and width as decoded; None if unknown
    # Of P pairs.
    image: NDArray[np.int64]  # position of each pair's image in the batch (P,)
    queries: list[Query]
    labels: NDArray[np.int8]  # 1 present, 0 absent, -1 unknown (P,)
    regions: list[Tensor | None]  # on the grid, cut at the run's gamma (H, W), bool; None without annotation
    shapes: list[tuple[Shape, ...]]  # items that make up the region; empty if unknown
    places: NDArray[np.float64]  # share of the grid that the region covers, and its center of mass in [0, 1] (P, 3)
    digests: NDArray[np.bytes_]  # of the region on the grid (P,), 16 bytes; empty without a region
    agreement: NDArray[np.float64]  # mean Dice and IoU of any two readers (P, 2); NaN unless there are several

    @classmethod
    def of_image(
        cls,
        index: int,
        image_id: str,
        patient_id: str | None,
        view: View,
        image_size: tuple[int, int] | None,
        queries: Sequence[Query],
        labels: Sequence[int] | NDArray[np.int8],
        coverage: Sequence[Coverage | None],
        gamma: float,
        shapes: Sequence[tuple[Shape, ...]] | None = None,
        agreement: Sequence[tuple[float, float]] | NDArray[np.float64] | None = None,
    ) -> Truth:
        """Return the truth of one image; regions are cut at `gamma`, the share of a grid pixel that must be covered."""
        count = len(queries)
        regions = [None if covered is None else covered.at(gamma) for covered in coverage]
        places, digests = np.full((count, 3), np.nan), np.zeros(count, "S16")
        for place, region in enumerate(regions):
            if region is not None:
                places[place], digests[place] = area_and_centre(region), region_digest(region)
        drawn = [None if region is None else torch.from_numpy(region) for region in regions]
        between = np.full((count, 2), np.nan) if agreement is None else np.array(agreement, np.float64).reshape(-1, 2)
        return cls(
            *(np.array([index]), [image_id], [patient_id], [view], [image_size], np.zeros(count, np.int64)),
            *([*queries], np.array(labels, np.int8), drawn, [*(shapes or [()] * count)]),
            *(places, digests, between),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Truth]) -> Truth:
        """Join the images of several parts."""
        parts = parts or [cls.of_image(0, "", None, (0, 0, 1, 1), None, [], [], [], 0.5).only([])]
        joined: dict[str, Any] = {}
        for part in fields(cls):
            values = [getattr(truth, part.name) for truth in parts]
            is_array = isinstance(values[0], np.ndarray)
            joined[part.name] = np.concatenate(values) if is_array else [one for value in values for one in value]
        before = np.cumsum([0, *(len(truth.image_ids) for truth in parts)])
        joined["image"] = np.concatenate([truth.image + start for truth, start in zip(parts, before, strict=False)])
        return cls(**joined)

    def only(self, rows: Sequence[int], wanted: NDArray[np.bool_] | bool = True) -> Truth:
        """Return images `rows`, in that order, with their pairs, or only the `wanted` pairs (P,)."""
        pairs = [np.flatnonzero((self.image == row) & wanted).tolist() for row in rows]
        places = [place for of_image in pairs for place in of_image]
        chosen: dict[str, Any] = {}
        for part in fields(self):
            value, kept = getattr(self, part.name), [*rows] if part.name in _BY_IMAGE else places
            chosen[part.name] = value[kept] if isinstance(value, np.ndarray) else [value[place] for place in kept]
        image = np.repeat(np.arange(len(rows)), [len(of_image) for of_image in pairs])
        return Truth(**chosen | {"image": image.astype(np.int64)})

    @property
    def has_region(self) -> NDArray[np.bool_]:
        """Which pairs have an annotated region (P,)."""
        return np.array([region is not None for region in self.regions], np.bool_)

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Pairs that grounding is scored on: present, with a region (P,)."""
        return np.asarray(self.has_region & (self.labels == 1))

    def boxes(self, pair: int) -> tuple[list[Box], bool]:
        """Return the boxes of a pair with a region, or around its outlines, and whether each is one lesion."""
        items, region = self.shapes[pair], self.regions[pair]
        if boxes := [box for item in items if (box := item.box()) is not None]:
            return [Box(*box) for box in boxes], len({item.reader for item in items}) == 1
        return [] if region is None else outline_boxes(region.cpu().numpy()), False

    def outlined(self, pair: int) -> bool:
        """Tell whether the boxes of a pair are derived from outlines or masks."""
        return not self.shapes[pair] or any(item.kind != "box" for item in self.shapes[pair])


@dataclass(slots=True)
class Change:
    """A changed version of an image, stored as the part of the model input that differs."""

    condition: str
    pairs: tuple[int, ...]  # positions of the image's pairs to score
    corner: tuple[int, int]  # first row and column of the pixels in the model input
    # Before mean and standard deviation (h, w), maybe empty; of models that answer in the radiograph.
    pixels: NDArray[np.uint8] | NDArray[np.float32]
    facts: dict[str, Any]  # values for the columns `CHANGED` of `pairs.parquet`


@dataclass(slots=True)
class Sample:
    """One radiograph, ready for a model, with its ground truth."""

    image: Tensor  # (3, h, w); for models that answer, the radiograph (H, W), uint8
    display: Tensor  # (H, W)
    image_sha256: str | None  # None if the image was not decoded
    truth: Truth
    notes: tuple[Note, ...] = ()
    seconds: float = 0.0
    regions: Sequence[tuple[Any, ...]] = ()  # input of `truth_table`
    picture: bytes | None = None  # the radiograph as a JPEG file, if a pair is scored
    changes: Sequence[Change] = ()


@dataclass(slots=True)
class Failure:
    """An image that could not be read."""

    index: int  # position in the dataset
    image_id: str
    reason: str  # a paragraph
    timed_out: bool = False


@dataclass(slots=True)
class Batch:
    """B images with their ground truth, and the images of the batch that could not be read.

    If every image failed, B is 0, and arrays and tensors lack their other dimensions.
    """

    images: Tensor  # model input (B, 3, h, w), float32, normalized; (B, 0) for models that answer
    display: list[Tensor]  # gray radiographs on the evaluation grid (H, W), uint8, for pictures
    image_sha256: list[str | None]  # of the model input before mean and standard deviation
    truth: Truth
    notes: list[Note] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0  # spent making the images, in the process that loaded them
    radiographs: list[Tensor] = field(default_factory=list)  # for models that answer: whole (H, W), uint8, on the host
    condition: str = ""  # name of the change made to the images; empty for the originals
    kept: dict[str, Tensor] = field(default_factory=dict)  # encoded tables of the run, made by `Samples`
    rows_hash: int = 0  # of the rows in `kept[IMAGES]`, to detect later changes of the batch; differs if spawned
    cut: bool = False  # whether images were removed later
    changes: list[Change] = field(default_factory=list)  # changed versions of the images

    def __len__(self) -> int:
        return len(self.images)

    @classmethod
    def collate(cls, items: list[Sample | Failure]) -> Batch:
        """Stack samples in order, and collect failures."""
        samples = [item for item in items if isinstance(item, Sample)]
        images = [sample.image for sample in samples]
        radiographs = images if images and images[0].ndim == 2 else []
        before = accumulate((len(sample.truth.queries) for sample in samples), initial=0)
        return cls(
            images=torch.empty(len(radiographs), 0) if radiographs or not images else torch.stack(images),
            display=[sample.display for sample in samples],
            image_sha256=[sample.image_sha256 for sample in samples],
            truth=Truth.concatenate([sample.truth for sample in samples]),
            notes=[note for sample in samples for note in sample.notes],
            failures=[item for item in items if isinstance(item, Failure)],
            seconds=sum(sample.seconds for sample in samples),
            radiographs=radiographs,
            changes=[
                replace(change, pairs=tuple(start + pair for pair in change.pairs))
                for start, sample in zip(before, samples, strict=False)
                for change in sample.changes
            ],
        )

    @classmethod
    def join(cls, parts: Sequence[Batch]) -> Batch:
        """Join the truth, notes and failures of batches, without their images unless there is one batch."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            images=torch.empty(sum(map(len, parts)), 0),
            display=[],
            image_sha256=[one for part in parts for one in part.image_sha256],
            truth=Truth.concatenate([part.truth for part in parts]),
            notes=[note for part in parts for note in part.notes],
            failures=[failure for part in parts for failure in part.failures],
        )

    def only(self, rows: Sequence[int], wanted: NDArray[np.bool_] | bool = True) -> Batch:
        """Return images `rows`, in that order, with their `wanted` pairs, and all failures."""
        kept = {*(self.truth.image_ids[row] for row in rows)}
        pairs = [pair for row in rows for pair in np.flatnonzero((self.truth.image == row) & wanted).tolist()]
        place = {pair: place for place, pair in enumerate(pairs)}
        changes = [
            replace(change, pairs=tuple(place[pair] for pair in change.pairs if pair in place))
            for change in self.changes
        ]
        return replace(
            self,
            images=self.images[[*rows]],
            display=[self.display[row] for row in rows],
            image_sha256=[self.image_sha256[row] for row in rows],
            truth=self.truth.only(rows, wanted),
            notes=[note for note in self.notes if note.image_id in kept],
            radiographs=[self.radiographs[row] for row in rows] if self.radiographs else [],
            cut=True,
            changes=[change for change in changes if change.pairs],
        )

    @property
    def first(self) -> int:
        """Dataset position of the first image, readable or not."""
        return min([*map(int, self.truth.index), *(failure.index for failure in self.failures)])

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device. Lightning calls this instead of searching every field."""
        if torch.device(device) == self.images.device:
            return self
        moved = partial(Tensor.to, device=device, non_blocking=torch.device(device).type == "cuda")
        return self._with_tensors(moved)

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory; the data loader calls this before a transfer to a GPU."""
        return self._with_tensors(Tensor.pin_memory)

    def _with_tensors(self, moved: Callable[[Tensor], Tensor]) -> Batch:
        regions = [None if region is None else moved(region) for region in self.truth.regions]
        truth = replace(self.truth, regions=regions)
        return replace(self, images=moved(self.images), display=[*map(moved, self.display)], truth=truth)


@dataclass(slots=True)
class ModelOutput:
    """Output of the `forward` of a model that draws maps, for B images and C queries."""

    logits: Tensor  # official raw score (B, C), float
    probabilities: Tensor  # official score for AUROC, in [0, 1] (B, C), float
    saliency: Tensor  # raw maps in the frame of the model input (B, C, h, w), float, any scale, not upsampled


@dataclass(slots=True)
class Maps:
    """Raw maps of P pairs. Missing maps, possible in external predictions, are misses under every rule."""

    values: Tensor  # in the frame of the model input (P, h, w), float, any scale; NaN where missing
    missing: Tensor | None = None  # (P,), bool; None if every map exists


@dataclass(slots=True)
class Answers:
    """Answers of a model about P pairs."""

    answers: list[Answer | None]  # (P); None if not asked
    replies: list[tuple[Question, Reply]] = field(default_factory=list)
    repeated: list[Answer] = field(default_factory=list)  # to repeated questions, in their order; not scored


@dataclass(slots=True)
class Prediction:
    """Predictions for the P pairs of a batch; `test_step` returns it."""

    logits: Tensor | None  # (P,), float; None if the model gives no scores, NaN if its score could not be read
    probabilities: Tensor | None  # in [0, 1] (P,), float; None and NaN as for `logits`
    shown: Maps | Answers | None
    texts: list[tuple[Question, Reply]] = field(default_factory=list)  # replies to questions of the kinds `TEXTS`

    @property
    def given(self) -> tuple[bool, bool]:
        """Whether there are logits, and whether there are probabilities."""
        return self.logits is not None, self.probabilities is not None

    def scores(self, pairs: int) -> tuple[Tensor, Tensor]:
        """Return logits and probabilities (P,), NaN where there are none."""
        given = self.logits, self.probabilities
        logits, probabilities = (torch.full((pairs,), torch.nan) if one is None else one for one in given)
        return logits, probabilities

    @classmethod
    def join(cls, parts: Sequence[Prediction]) -> Prediction:
        """Copy and join predictions of one kind, without answers and texts."""

        def joined(values: Iterable[Tensor | None]) -> Tensor | None:
            there = [one for one in values if one is not None]
            return torch.cat(there) if there else None

        maps = [one.shown for one in parts if isinstance(one.shown, Maps)]
        shown = Maps(torch.cat([one.values for one in maps]), joined(one.missing for one in maps)) if maps else None
        return cls(joined(one.logits for one in parts), joined(one.probabilities for one in parts), shown)

    def only(self, pairs: Sequence[int]) -> Prediction:
        """Return the prediction for some of the pairs, in the given order; not for answers."""
        logits, probabilities = (None if one is None else one[[*pairs]] for one in (self.logits, self.probabilities))
        shown = self.shown
        if isinstance(shown, Maps):
            shown = Maps(shown.values[[*pairs]], None if shown.missing is None else shown.missing[[*pairs]])
        return Prediction(logits, probabilities, shown)
