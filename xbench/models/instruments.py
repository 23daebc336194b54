"""Floors and ceilings of models that answer: what boxes score without looking, and the most that they can."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.answers.asking import Query, Reply
from xbench.models.answering import AnsweringModel
from xbench.types import Batch


class AnswerOracle(AnsweringModel):
    """The ceiling of a family: it is told the true boxes, and writes them as a model of the family would.

    What it does not reach is lost to the frame: to rounding, to a crop, to padding.

    Args:
        family: How answers are written: a name in `xbench.answers.FAMILIES`.
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
        truth, place = batch.truth, (query.row, query.column)
        there = truth.labels[place] == 1
        if query.kind == "recognise":
            return "Yes" if there else "No"
        boxes = truth.boxes(*place)[0] if there and truth.has_region[place] else []
        height, width = batch.radiographs[query.row].shape
        return self.family.write(boxes, query.finding, self.frame, (width, height))
