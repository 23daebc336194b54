"""Baselines for comparison: ceilings that know the truth, and floors that ignore the image."""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from xbench.findings.conditions import draw
from xbench.findings.prompts import phrase
from xbench.geometry.location import ZONES, apart, locate
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.geometry.shapes import Shape
from xbench.models.answering import AnsweringModel
from xbench.models.base import SaliencyModel
from xbench.predictions.answer import Box
from xbench.predictions.asking import Question, Reply
from xbench.predictions.files import named
from xbench.predictions.words import Vocabulary
from xbench.runs.files import TRUTH, Table
from xbench.runs.images import shapes_of
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UsageError, UserError
from xbench.scoring.protocols.words import commonest, region_texts
from xbench.types import Batch, Maps, Prediction, Sample, Truth

WHOLE_IMAGE = Box(0.0, 0.0, 1.0, 1.0)
_DEFAULT = (Box(0.3, 0.3, 0.7, 0.7),)  # size without boxes elsewhere
_CELLS = 224
_Says = Literal["oracle", "swapped", "shuffled", "prior", "all", "silent"]


class Oracle(SaliencyModel):
    """The ceiling: map and probability are region and label. A score below 1 is an error, or the best possible."""

    preprocessing = Preprocessing(stretch((224, 224)))
    map_scale = "probability"

    def score(self, batch: Batch) -> Prediction:
        truth = batch.truth
        sizes = {tuple(display.shape) for display in batch.display}
        if len(sizes) > 1:
            differ = "on the native grid the images of a batch differ in size"
            raise UserError(f"{self.name}: {differ}. Set --data.batch_size 1.")
        labels = torch.from_numpy(truth.labels).to(self.device, torch.float32)
        saliency = torch.zeros(len(labels), *sizes.pop(), device=labels.device)
        for pair, region in enumerate(truth.regions):
            if region is not None:
                saliency[pair] = region
        return Prediction(labels, labels.clamp(min=0), Maps(saliency))


class CenterPrior(SaliencyModel):
    """A floor that ignores the image: one Gaussian blob in the middle, with the same score for all images.

    Args:
        width: Standard deviation of the blob as a share of the image's sides.
        size: Side of the square map in pixels.
    """

    name = "centre"
    preprocessing = Preprocessing(stretch((224, 224)))

    def __init__(self, width: float = 0.2, size: int = 224) -> None:
        super().__init__()
        offset = (torch.arange(size) + 0.5) / size - 0.5
        profile = torch.exp(-0.5 * (offset / width) ** 2)
        self.register_buffer("blob", profile[:, None] * profile[None, :])

    def score(self, batch: Batch) -> Prediction:
        blob = self.get_buffer("blob")
        logits = blob.new_zeros(len(batch.truth.queries))
        return Prediction(logits, torch.sigmoid(logits), Maps(blob.expand(len(logits), -1, -1)))


class UniformRandom(SaliencyModel):
    """A floor of independent uniform noise as map and probability, from the seed and the image's name.

    A run is one draw; the floor `Random` of a report is the mean of many.

    Args:
        seed: Seed of the noise; by default that of `--seed_everything`, or 0 outside a run.
        size: Side of the square map in pixels, by default that of a ViT-B/16's patch grid.
    """

    name, stated = "random", "seed size"
    preprocessing = Preprocessing(stretch((224, 224)))
    map_scale = "probability"

    def __init__(self, seed: int | None = None, size: int = 14) -> None:
        super().__init__()
        self.seed, self.size = _seed(seed), size

    def score(self, batch: Batch) -> Prediction:
        pairs = np.bincount(batch.truth.image, minlength=len(batch)).tolist()
        of_images = zip(batch.truth.image_ids, pairs, strict=True)
        noise = torch.cat([self._noise(image_id, count) for image_id, count in of_images]).to(self.device)
        probabilities, maps = noise[:, -1], noise[:, :-1].unflatten(-1, (self.size, self.size))
        return Prediction(torch.logit(probabilities, eps=1e-6), probabilities, Maps(maps))

    def _noise(self, image_id: str, pairs: int) -> torch.Tensor:
        digest = hashlib.sha256(f"{self.seed}/{image_id}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        return torch.rand(pairs, self.size**2 + 1, generator=generator)


class AnswerOracle(AnsweringModel):
    """The ceiling of a family: it writes the true boxes in the family's format, and loses only rounding, crop and
    padding.

    Args:
        family: Format of the answers: a name in `xbench.predictions.FAMILIES`.
    """

    name = "answer_oracle"
    asked_in_words = False

    def __init__(self, family: str = "endpoint", **options: Any) -> None:
        super().__init__(family, prompts=None, **options)

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        return [Reply(self._text(batch, query), "stop") for query in queries]

    def _text(self, batch: Batch, query: Question) -> str:
        if query.kind == "recognise":
            return "Yes" if batch.truth.labels[query.pair] == 1 else "No"
        height, width = batch.radiographs[query.row].shape
        return self.family.write(_true_boxes(batch, query), query.finding, self.convention, (width, height))


class BoxBaseline(AnsweringModel):
    """Answers with exact boxes of its own, and not whether a finding is present."""

    asked_in_words = False
    recognizes = False

    def __init__(self, **options: Any) -> None:
        super().__init__("endpoint", "fraction_whole", prompts=None, recognise=False, **options)

    @abstractmethod
    def _boxes(self, batch: Batch, query: Question) -> list[Box]:
        """Return the boxes of an answer."""

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        boxes = ([{"box": box} for box in self._boxes(batch, query)] for query in queries)
        return [Reply(json.dumps({"boxes": of_query}), "stop") for of_query in boxes]


class WholeImage(BoxBaseline):
    """A floor: one box around the whole image."""

    name = "whole_image"

    def _boxes(self, batch: Batch, query: Question) -> list[Box]:
        return [WHOLE_IMAGE]


class OutlineBoxes(BoxBaseline):
    """The ceiling of boxes if regions are outlines or masks: the boxes around them."""

    name = "outline_boxes"

    def _boxes(self, batch: Batch, query: Question) -> list[Box]:
        return _true_boxes(batch, query)


class PriorKnowledge(AnsweringModel):
    """A baseline that may know where findings are on other images, but not on the scored ones.

    Args:
        elsewhere: A finished run on other images, or its `truth.parquet`.
    """

    must_know = False  # whether `elsewhere` is required

    def __init__(self, elsewhere: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        if elsewhere is None and self.must_know:
            raise UsageError(
                f"{self.name} needs the places of findings on other images: give --model.elsewhere RUN, a finished run "
                "on another split or source (xbench test --config oracle_DATASET --data.split ... makes one)."
            )
        path = None if elsewhere is None else Path(elsewhere).expanduser()
        self._path = path / TRUTH if path is not None and path.is_dir() else path
        self._elsewhere, self._images = ({}, frozenset[str]()) if self._path is None else _items_elsewhere(self._path)
        found = {name: [item.box() for items in of for item in items] for name, of in self._elsewhere.items()}
        self._boxes_elsewhere = {name: tuple(Box(*box) for box in of if box) for name, of in found.items()}
        if self._path is not None and not any(self._boxes_elsewhere.values()):
            raise UsageError(f"{self._path} has no annotated item, so it does not show where findings are.")

    def setup(self, stage: str) -> None:
        super().setup(stage)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if shared := self._images & {record.image_id for record in data.records}:
            told = f"{len(shared)} images of {self._path} are scored here (first: {min(shared)})"
            raise UsageError(f"--model.elsewhere: {told}. Give a run on another split or source.")

    def provenance(self) -> dict[str, Any]:
        return super().provenance() | {"elsewhere_sha256": None if self._path is None else file_sha256(self._path)}

    def _known(self, batch: Batch, query: Question) -> tuple[Box, ...]:
        # A phrase uses the boxes of its finding.
        return self._boxes_elsewhere.get(batch.truth.queries[query.pair].finding, ())


class CenterBox(PriorKnowledge, BoxBaseline):
    """A floor: a box in the middle with the mean size of the finding's boxes elsewhere, or 0.4 wide and high."""

    name = "centre_box"

    def _boxes(self, batch: Batch, query: Question) -> list[Box]:
        return [centre_box(self._known(batch, query))]


class RandomBox(PriorKnowledge, BoxBaseline):
    """A floor: a box anywhere with the size of one elsewhere, the same for an image and a finding in each run.

    Args:
        seed: Seed of the boxes; by default that of `--seed_everything`, or 0 outside a run.
    """

    name, stated = "random_box", "seed"

    def __init__(self, elsewhere: str | None = None, seed: int | None = None, **options: Any) -> None:
        super().__init__(elsewhere, **options)
        self.seed = _seed(seed)

    def _boxes(self, batch: Batch, query: Question) -> list[Box]:
        return [random_box(self.seed, batch.truth.image_ids[query.row], query.finding, self._known(batch, query))]


class PriorBox(PriorKnowledge, BoxBaseline):
    """The floor for every table: the usual place of the finding, whatever the image shows."""

    name = "prior_box"
    must_know = True

    def _boxes(self, batch: Batch, query: Question) -> list[Box]:
        if not (known := self._known(batch, query)):
            raise UsageError(f"{self._path} has no box of {query.finding}. Give a run that has one.")
        return [prior_box(known)]


class Words(PriorKnowledge):
    """A ceiling and floors of words: a sentence about each finding whose label is known.

    Args:
        says: The annotated place (`oracle`), with left and right exchanged (`swapped`), or that of a random image with
            the finding (`shuffled`). Whatever the label: the commonest place `elsewhere` (`prior`), all places (`all`),
            or nothing about any finding (`silent`).
        elsewhere: A finished run on other images, or its `truth.parquet`.
        ask: A text about each pair, `where` its finding is, or a `report` of each image; see docs/words.md.
    """

    asked_in_words = False
    recognizes = False

    def __init__(self, says: _Says, elsewhere: str | None = None, ask: Literal["report", "where"] = "where") -> None:
        self.name, self.must_know = f"words_{says}", says == "prior"
        super().__init__(elsewhere, family="endpoint", prompts=None, ask_negatives=True, ask=ask)
        self.says = says
        texts = {name: [region_texts(locate(apart(items))) for items in of] for name, of in self._elsewhere.items()}
        self._places = {name: commonest({key: [one[key] for one in of] for key in of[0]}) for name, of in texts.items()}

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        image = batch.truth.image
        pairs = [np.flatnonzero(image == one.row).tolist() if one.kind == "report" else [one.pair] for one in queries]
        texts = (" ".join(filter(None, (self._sentence(batch.truth, pair) for pair in of))) for of in pairs)
        return [Reply(text or "Abnormal chest.", "stop") for text in texts]

    def _sentence(self, truth: Truth, pair: int) -> str:
        finding, present = truth.queries[pair].finding or "", bool(truth.labels[pair] == 1)
        if truth.labels[pair] < 0 or not finding or self.says == "silent":
            return ""
        if self.says == "all":
            return sentence(finding, True, ("left", "right"), ZONES)
        if self.says == "prior":
            if truth.scored[pair] and finding not in self._places:
                raise UsageError(f"{self._path} has no region of {finding}. Give a run that has one.")
            place = self._places.get(finding, {"sides": "", "zones": ""})
            return sentence(finding, True, place["sides"].split(), place["zones"].split())
        if present and self.says == "shuffled":
            truth, pair = self._drawn(truth, pair)
        region = truth.regions[pair]
        whole = () if region is None else (Shape.from_mask(region.cpu().numpy()),)
        found = locate(apart(truth.shapes[pair] or whole))
        sides = found.sides ^ {"left", "right"} if self.says == "swapped" and len(found.sides) == 1 else found.sides
        return sentence(finding, present, sides, found.zones)

    def _drawn(self, truth: Truth, pair: int) -> tuple[Truth, int]:
        """Return truth and pair of an image with the finding, perhaps the same, drawn as in `side_chance`."""
        samples: Any = self.trainer.test_dataloaders.dataset  # type: ignore[union-attr]
        own, finding = int(truth.index[truth.image[pair]]), truth.queries[pair].finding
        start = int.from_bytes(draw(samples.records[own].image_id, finding or ""))
        for place in ((start + step) % len(samples) for step in range(len(samples))):
            if place == own:
                break
            record = samples.records[place]
            queries = [one for one in record.looked_for(samples.findings) if one.finding == finding]
            shown = [one for one in queries if record.labels.get(one.name) == 1]
            if shown and isinstance(sample := samples[place], Sample):
                return sample.truth, sample.truth.queries.index(shown[0])
        return truth, pair


def centre_box(elsewhere: Sequence[Box] = ()) -> Box:
    """Return a box in the middle with the mean sides of a finding's boxes elsewhere, or 0.4.

    >>> centre_box([Box(0, 0, 0.25, 0.5), Box(0, 0, 0.75, 0.5)])
    Box(x0=0.25, y0=0.25, x1=0.75, y1=0.75)
    """
    corners = np.asarray(elsewhere or _DEFAULT, np.float64)
    width, height = (corners[:, 2:] - corners[:, :2]).mean(axis=0).tolist()
    return Box((1 - width) / 2, (1 - height) / 2, (1 + width) / 2, (1 + height) / 2)


def random_box(seed: int, image_id: str, finding: str, elsewhere: Sequence[Box] = ()) -> Box:
    """Return a box anywhere with the size of one of a finding's boxes elsewhere; it depends only on the arguments."""
    digest = hashlib.sha256(f"{seed}\0{image_id}\0{finding}".encode("utf-8", "surrogatepass")).digest()
    random = np.random.default_rng(int.from_bytes(digest))
    sizes = elsewhere or _DEFAULT
    box = sizes[int(random.integers(len(sizes)))]
    width, height = box.x1 - box.x0, box.y1 - box.y0
    x, y = random.random() * (1 - width), random.random() * (1 - height)
    return Box(x, y, min(x + width, 1.0), min(y + height, 1.0))


@cache
def prior_box(elsewhere: tuple[Box, ...]) -> Box:
    """Return the usual place of a finding: the box around cells that at least half of the maximum number of boxes
    cover.

    The image has 224 x 224 cells; a box covers those whose centers it contains. Raises ValueError if none is covered.

    >>> prior_box((Box(0, 0, 0.5, 0.5), Box(0.25, 0.25, 0.5, 1), Box(0.25, 0.25, 0.5, 0.5)))
    Box(x0=0.25, y0=0.25, x1=0.5, y1=0.5)
    """
    covered = np.zeros((_CELLS, _CELLS), np.int64)
    for box in elsewhere:
        x0, y0, x1, y1 = np.ceil(np.asarray(box) * _CELLS - 0.5).astype(int)
        covered[y0:y1, x0:x1] += 1
    if not covered.any():
        raise ValueError("no box covers a cell")
    rows, columns = np.nonzero(2 * covered >= covered.max())
    ends = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    return Box(*(int(end) / _CELLS for end in ends))


def sentence(finding: str, asserted: bool, sides: Collection[str], zones: Collection[str]) -> str:
    """Write a sentence about a finding, by another finding's name if the vocabulary reads it only so.

    >>> sentence("Pneumothorax", True, {"right"}, {"upper", "middle"})
    'Pneumothorax in the right upper and middle zones.'
    """
    vocabulary = Vocabulary.of()
    name = phrase(min({finding} & vocabulary.findings or vocabulary.accepts.get(finding, {finding})))
    if not asserted:
        return f"No {name}."
    place = ""
    if zones and finding not in vocabulary.unsided:
        *others, last = [zone for zone in ZONES if zone in zones]
        listed = f"{', '.join(others)} and {last}" if others else last
        side = "bilateral " if len(sides) == 2 else "".join(f"{side} " for side in sides)
        place = f" in the {side}{listed} {'chest' if not sides else 'zone' + 's' * (len(sides) * len(zones) > 1)}"
    return f"{name[0].upper()}{name[1:]}{place}."


def _items_elsewhere(path: Path) -> tuple[dict[str | None, list[tuple[Shape, ...]]], frozenset[str]]:
    items: defaultdict[str | None, list[tuple[Shape, ...]]] = defaultdict(list)
    with named(path):
        rows = [*Table(path, TRUTH).rows()]
        for row in rows:
            items[row["finding"]].append(shapes_of(row))
    return items, frozenset(row["image_id"] for row in rows)


def _true_boxes(batch: Batch, query: Question) -> list[Box]:
    truth, pair = batch.truth, query.pair
    return truth.boxes(pair)[0] if truth.labels[pair] == 1 and truth.regions[pair] is not None else []


def _seed(given: int | None) -> int:
    return int(os.environ.get("PL_GLOBAL_SEED", 0)) if given is None else given
