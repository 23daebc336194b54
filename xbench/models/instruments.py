"""Floors and ceilings of models that answer: what boxes score without looking, and the most that they can."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xbench.models.answering import AnsweringModel
from xbench.predictions.annotated import read_annotated
from xbench.predictions.answer import Box
from xbench.predictions.asking import Query, Reply
from xbench.predictions.baselines import WHOLE_IMAGE, centre_box, prior_box, random_box
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UserError
from xbench.types import Batch


class AnswerOracle(AnsweringModel):
    """The ceiling of a family: it is told the true boxes, and writes them as a model of the family would.

    What it does not reach is lost to the frame: to rounding, to a crop, to padding.

    Args:
        family: How answers are written: a name in `xbench.predictions.FAMILIES`.
        frame: What their numbers mean; the family's own if None.
        ask_negatives: Whether to ask where a finding is on images without it too.
        recognise: Whether to ask if a finding is there.
    """

    name = "answer_oracle"
    asked_in_words = False

    def __init__(
        self, family: str = "endpoint", frame: str | None = None, ask_negatives: bool = False, recognise: bool = False
    ) -> None:
        super().__init__(family, frame, ask_negatives=ask_negatives, recognise=recognise)

    def ask(self, batch: Batch, queries: Sequence[Query]) -> list[Reply]:
        """Write the true boxes, or yes and no."""
        return [Reply(self._said(batch, query), "stop") for query in queries]

    def _said(self, batch: Batch, query: Query) -> str:
        if query.kind == "recognise":
            return "Yes" if batch.truth.labels[query.row, query.column] == 1 else "No"
        height, width = batch.radiographs[query.row].shape
        return self.family.write(_true_boxes(batch, query), query.finding, self.frame, (width, height))


class BoxInstrument(AnsweringModel):
    """Something that answers with boxes of its own, to the last digit, and cannot say whether a finding is there.

    Args:
        ask_negatives: Whether to ask where a finding is on images without it too.
    """

    asked_in_words = False
    recognises = False

    def __init__(self, ask_negatives: bool = False) -> None:
        super().__init__("endpoint", "fraction_whole", ask_negatives=ask_negatives)

    @abstractmethod
    def boxes(self, batch: Batch, query: Query) -> Sequence[Box]:
        """Return the boxes that it answers."""

    def ask(self, batch: Batch, queries: Sequence[Query]) -> list[Reply]:
        """Write its boxes as fractions."""
        return [
            Reply(json.dumps({"boxes": [{"box": box} for box in self.boxes(batch, query)]}), "stop")
            for query in queries
        ]


class WholeImage(BoxInstrument):
    """A floor: one box around everything."""

    name = "whole_image"

    def boxes(self, batch: Batch, query: Query) -> list[Box]:
        """Return the whole image."""
        return [WHOLE_IMAGE]


class OutlineBoxes(BoxInstrument):
    """The ceiling of boxes where regions are outlines or masks: the boxes around them."""

    name = "outline_boxes"

    def boxes(self, batch: Batch, query: Query) -> list[Box]:
        """Return the boxes around what is annotated."""
        return _true_boxes(batch, query)


class FromElsewhere(BoxInstrument):
    """An instrument that may know the boxes of another split or source, and of nothing else where a finding lies.

    Args:
        elsewhere: A finished run on other images, or its `instances.parquet`.
        ask_negatives: Whether to ask where a finding is on images without it too.
    """

    needs_boxes = False

    def __init__(self, elsewhere: str | None = None, ask_negatives: bool = False) -> None:
        super().__init__(ask_negatives)
        if elsewhere is None and self.needs_boxes:
            raise UserError(
                f"{self.name} must be told where findings lie on other images: give --model.elsewhere RUN, a finished "
                "run on another split or source (xbench test --config oracle_DATASET --data.split ... makes one).",
                exit_status=2,
            )
        path = None if elsewhere is None else Path(elsewhere).expanduser()
        self._path = path / "instances.parquet" if path is not None and path.is_dir() else path
        self._elsewhere, self._images = ({}, frozenset[str]()) if self._path is None else read_annotated(self._path)

    def setup(self, stage: str) -> None:
        """Refuse boxes of the images that are scored."""
        super().setup(stage)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if shared := self._images & {record.image_id for record in data.records}:
            raise UserError(
                f"--model.elsewhere: {len(shared)} images of {self._path} are scored here (first: {min(shared)}), so "
                "it would be told the truth. Give a run on another split or source.",
                exit_status=2,
            )

    def provenance(self) -> dict[str, Any]:
        """Return what is known of boxes elsewhere."""
        return super().provenance() | {"elsewhere_sha256": None if self._path is None else file_sha256(self._path)}

    def of(self, finding: str) -> list[Box]:
        """Return the finding's boxes elsewhere; a UserError if there must be some and are none."""
        if self.needs_boxes and finding not in self._elsewhere:
            raise UserError(
                f"{self._path} has no box of {finding}, which is asked for here: give a run that has.", exit_status=2
            )
        return self._elsewhere.get(finding, [])


class CentreBox(FromElsewhere):
    """A floor: a box in the middle, as large as the finding's boxes elsewhere on average, or 0.4 wide and high."""

    name = "centre_box"

    def boxes(self, batch: Batch, query: Query) -> list[Box]:
        """Return the box in the middle."""
        return [centre_box(self.of(query.finding))]


class RandomBox(FromElsewhere):
    """A floor: a box of the size of one elsewhere, anywhere; the same for an image and a finding in every run.

    Args:
        elsewhere: A finished run on other images, or its `instances.parquet`.
        seed: Other seeds give other boxes; that of `--seed_everything` if None, which is 0 outside of a run.
        ask_negatives: Whether to ask where a finding is on images without it too.
    """

    name = "random_box"

    def __init__(self, elsewhere: str | None = None, seed: int | None = None, ask_negatives: bool = False) -> None:
        super().__init__(elsewhere, ask_negatives)
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed

    def boxes(self, batch: Batch, query: Query) -> list[Box]:
        """Return the box that was drawn for an image and a finding."""
        return [random_box(self.seed, batch.truth.image_ids[query.row], query.finding, self.of(query.finding))]

    def provenance(self) -> dict[str, Any]:
        """Return the seed too."""
        return super().provenance() | {"seed": self.seed}


class PriorBox(FromElsewhere):
    """The floor that belongs in every table: where the finding usually lies, whatever the image shows."""

    name = "prior_box"
    needs_boxes = True

    def __init__(self, elsewhere: str | None = None, ask_negatives: bool = False) -> None:
        super().__init__(elsewhere, ask_negatives)
        self._prior: dict[str, Box] = {}

    def boxes(self, batch: Batch, query: Query) -> list[Box]:
        """Return the box around what boxes elsewhere cover most."""
        if query.finding not in self._prior:
            self._prior[query.finding] = prior_box(self.of(query.finding))
        return [self._prior[query.finding]]


def _true_boxes(batch: Batch, query: Query) -> list[Box]:
    place = query.row, query.column
    there = batch.truth.labels[place] == 1 and batch.truth.has_region[place]
    return batch.truth.boxes(*place)[0] if there else []
