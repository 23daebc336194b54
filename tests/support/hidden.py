"""A dataset whose regions are hidden, and a model that answers what it sees.

Image i is gray noise. By the rest of i divided by 4 it has no region; a bright square; a bright square that two
findings share, and a dark one; a bright bar that a central crop does not show.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
from toys import Squares

from xbench.data.records import Radiograph, Record
from xbench.models import AnsweringModel
from xbench.predictions.answer import Box
from xbench.predictions.asking import Question, Reply
from xbench.runtime.errors import UserError
from xbench.types import Batch

PRESENT = ((), ("Square",), ("Square", "Twin", "Hole"), ("Edge",))


class Regions(Squares):
    findings = ("Square", "Twin", "Hole", "Edge")

    def __init__(self, crashing: Sequence[int] = (), **kwargs) -> None:
        super().__init__(**kwargs)
        self.crashing = crashing  # positions of images that end the process that decodes them

    def read_records(self, annotated: bool) -> list[Record]:
        labels = [{name: int(name in PRESENT[i % 4]) for name in self.findings} for i in range(self.images)]
        return [Record(f"{i}", labels[i], i, patient_id=f"p{i // 2}") for i in range(self.images)]

    def load(self, record: Record) -> Radiograph:
        i, present = record.source, PRESENT[record.source % 4]
        if i in self.crashing:
            os.abort()
        if i in self.unreadable:
            raise UserError(f"The file of {record.image_id} is broken.")
        rng = np.random.default_rng(i)
        image = rng.integers(100, 140, (80, self.widths[i % len(self.widths)]), dtype=np.uint8)
        places = {"Square": (20, 5, 12, 10, 255), "Hole": (50, 45, 10, 8, 0), "Edge": (0, 40, 4, 9, 255)}
        places["Twin"] = places["Square"]
        regions = {}
        for name in present:
            top, left, height, width, gray = places[name]
            regions[name] = np.zeros(image.shape, bool)
            regions[name][top + i % 3 : top + i % 3 + height, left : left + width] = True
            if name == "Edge":
                regions[name] = np.roll(regions[name], -(i % 3), axis=0)
            image[regions[name]] = gray
        return Radiograph(image, regions)


class Seer(AnsweringModel):
    def __init__(self) -> None:
        super().__init__("qwen3vl", recognise=True)

    def ask(self, batch: Batch, queries: Sequence[Question]) -> list[Reply]:
        return [Reply(self._text(batch.radiographs[query.row].numpy(), query), "stop") for query in queries]

    def _text(self, image: np.ndarray, query: Question) -> str:
        seen = image < 50 if re.search(r"\bhole\b", query.text, re.I) else image > 200
        if query.kind == "recognise" or not seen.any():
            return ("Yes." if seen.any() else "No.") if query.kind == "recognise" else "none"
        (rows, columns), (height, width) = np.nonzero(seen), image.shape
        box = Box(columns.min() / width, rows.min() / height, (columns.max() + 1) / width, (rows.max() + 1) / height)
        return self.family.write([box], query.finding, self.convention, (width, height))
