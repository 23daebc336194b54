"""Models that know the truth and show it in one way each: maps, boxes, points, words, or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.models import AnsweringModel, SaliencyModel
from xbench.predictions.asking import Question, Reply
from xbench.runtime.errors import UserError
from xbench.types import Batch, Maps, Prediction


def tire(batches: int) -> None:
    """End the run at its third batch, if ORACLE_TIRES says so."""
    if batches == 2 and os.environ.get("ORACLE_TIRES"):
        raise UserError("The oracle is tired.")


class Shown(SaliencyModel):
    """Draws the regions as maps, or gives scores alone, or nothing.

    Args:
        what: `maps`; `maps without scores`; `scores`, with which no region can be compared; `nothing`.
    """

    preprocessing = Preprocessing(stretch((56, 56)))
    map_scale = "probability"

    def __init__(self, what: Literal["maps", "maps without scores", "scores", "nothing"]) -> None:
        super().__init__()
        self.what, self.batches, self.memory = what, 0, torch.empty(0)

    def input_problem(self, batch: Batch, seen: torch.Tensor | None = None) -> None:
        """No network sees the images."""

    def score(self, batch: Batch) -> Prediction:
        tire(self.batches)
        self.batches += 1
        truth = batch.truth
        logits = torch.from_numpy(truth.labels.astype(np.float64))
        scores = (logits, (logits > 0).double()) if self.what in ("maps", "scores") else (None, None)
        if not self.what.startswith("maps"):
            return Prediction(*scores, None)
        # The same memory for each batch, as compiled models use it.
        maps = self.memory.resize_(len(logits), *batch.display[0].shape).zero_()
        for pair, region in enumerate(truth.regions):
            if region is not None:
                maps[pair] = region
        return Prediction(*scores, Maps(maps))


class Told(AnsweringModel):
    """Answers with the true `boxes`, their middles as `points`, or in `words` alone."""

    def __init__(self, what: Literal["boxes", "points", "words"]) -> None:
        super().__init__("qwen3vl", recognise=True, ask_negatives=True)
        self.what, self.batches = what, 0

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        tire(self.batches)
        self.batches += 1
        return [Reply(self._text(batch, query), "stop") for query in queries]

    def _text(self, batch: Batch, query: Question) -> str:
        present = batch.truth.labels[query.pair] == 1
        if query.kind == "recognise":
            return "Yes." if present else "No."
        if not present:
            return "none"
        if self.what == "words":
            return f"There is {query.finding.lower()} in the left lung."
        boxes = batch.truth.boxes(query.pair)[0]
        if self.what == "boxes":
            size = tuple(reversed(batch.radiographs[query.row].shape))
            return self.family.write(boxes, query.finding, self.convention, size)
        points = [[round(500 * (box.x0 + box.x1)), round(500 * (box.y0 + box.y1))] for box in boxes]
        return "[" + ", ".join(f'{{"point_2d": {point}}}' for point in points) + "]"
