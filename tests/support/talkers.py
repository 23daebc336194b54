"""Models that answer, outside the package: one that says all sorts of things, and one that is never quite right."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

from xbench.models import AnsweringModel
from xbench.predictions.answer import Box
from xbench.predictions.asking import Question, Reply
from xbench.runtime.errors import UserError
from xbench.types import Batch

LAME = "No, nothing \x00 \ud800 there. <b>"


class Talker(AnsweringModel):
    """Says what is true, what is not, and what cannot be read: the same of the same image, in turns of seven.

    Args:
        log: File that gets a line for each query.
        most: Raises an error instead of answering more queries than that.
        recognise: Whether to ask if a finding is there.
        ask_negatives: Whether to ask where a finding is on images without it too.
        family: How boxes are written.
    """

    neutral_options = frozenset({"most", "log"})

    def __init__(
        self,
        log: str | None = None,
        most: int = 10**9,
        recognise: bool = False,
        ask_negatives: bool = False,
        family: str = "endpoint",
    ) -> None:
        super().__init__(family, prompts="endpoint", ask_negatives=ask_negatives, recognise=recognise)
        self.log, self.most, self.times = log, most, 0

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        return [self._reply(batch, query) for query in queries]

    def _reply(self, batch: Batch, query: Question) -> Reply:
        self.times += 1
        if self.times > self.most:
            raise UserError("The talker is tired.")
        name = batch.truth.image_ids[query.row]
        if self.log is not None:
            with Path(self.log).open("a") as file:
                file.write(f"{name} {query.finding} {query.kind}\n")
        turn = hashlib.sha256(f"{name} {self.findings.index(query.finding)} {query.kind}".encode()).digest()[0] % 7
        there = bool(batch.truth.scored[query.pair])
        if query.kind == "recognise":
            said = ("Yes", "No", "yes (80 %)", "No, 70 %", "hm", "It is absent.", "Yes.")[turn]
            return Reply(said, "stop", tokens_in=7, tokens_out=2, prompt_sha256="ab" * 32)
        size = tuple(reversed(batch.radiographs[query.row].shape))
        true = batch.truth.boxes(query.pair)[0] if there else [Box(0.2, 0.3, 0.5, 0.6)]
        moved = [Box(box.x0 / 2, box.y0 / 2, (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for box in true]
        right, wrong = (
            self.family.write(boxes, query.finding, self.convention, size) for boxes in (true, [*moved, *moved])
        )
        both = self.family.write([*true, *moved], query.finding, self.convention, size)
        said = (right, wrong, both, LAME, "I see \x00 it \ud800 clearly", right[: len(right) // 2], right + wrong[:-9])[
            turn
        ]
        return Reply(said, "length" if turn >= 5 else "stop", tokens_out=len(said))


class Ranker(AnsweringModel):
    def __init__(self) -> None:
        super().__init__("endpoint", ask_negatives=True)

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        replies = []
        for query in queries:
            draw = random.Random(f"{batch.truth.image_ids[query.row]} {self.findings.index(query.finding)}")
            true = batch.truth.boxes(query.pair)[0] if batch.truth.scored[query.pair] else []
            said = [([box.x0, box.y0, box.x1, box.y0 + draw.uniform(0.4, 1) * (box.y1 - box.y0)], 0.3) for box in true]
            said += [([0.1, 0.1, 0.3, 0.2], 0.0), ([0.6, 0.5, 0.8, 0.9], 0.1)]
            boxes = [
                {"box": [1000 * edge for edge in box], "confidence": round(least + 0.6 * draw.random(), 1)}
                for box, least in said
            ]
            replies.append(Reply(json.dumps({"boxes": boxes}), "stop"))
        return replies
