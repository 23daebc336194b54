"""A dataset whose images have phrases of their own, none, or findings, and a change of its images.

Toy image i has a bright square if i is odd, and a dark one if 3 divides it. By the rest of i divided by 4, an image has
two phrases, one of them without a finding; no query at all; a phrase that is absent; or a finding and a phrase.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import torch
from lightning.pytorch import Callback
from oracles import Told
from toys import Brightness, Squares

from xbench.callbacks.evaluation import Evaluation
from xbench.data.records import Radiograph, Record
from xbench.runtime.errors import UserError
from xbench.types import Query

BRIGHT, DARK = Query("bright-1", "Square", "a bright patch", "en"), Query("dark-1", None, "a dark hole")
ABSENT = Query("dark-2", None, "a dark hole in the other lung")
MIRRORED = (0, 2, 3, 5)
QUERIES = ((DARK, BRIGHT), (), (ABSENT,), (Query("Square", "Square"), DARK))


class Phrases(Squares):
    findings = ("Square",)

    def read_records(self, annotated: bool) -> list[Record]:
        records = []
        for record in super().read_records(annotated):
            labels = dict(record.labels)
            labels |= {"bright-1": labels["Square"], "dark-1": labels["Hole"], "dark-2": 0} if labels else {}
            records.append(replace(record, labels=labels, queries=QUERIES[record.source % 4]))
        return records

    def load(self, record: Record) -> Radiograph:
        radiograph = super().load(record)
        drawn = {"bright-1": "Square", "dark-1": "Hole", "Square": "Square"}
        regions = {name: radiograph.regions[old] for name, old in drawn.items() if old in radiograph.regions}
        return replace(radiograph, regions=regions)


class PhrasesAlone(Phrases):
    def read_records(self, annotated: bool) -> list[Record]:
        return [replace(record, queries=QUERIES[0]) for record in super().read_records(annotated)]


class Tires(Callback):
    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if batch_idx == 2 and os.environ.get("ORACLE_TIRES"):
            raise UserError("The callback is tired.")


class Mirrored(Tires):
    """Scores some images of every batch again, mirrored, under a condition; of the second one without a query."""

    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        super().on_test_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        batch = batch.only(np.flatnonzero(np.isin(batch.truth.index % 8, MIRRORED)).tolist())
        changed = replace(batch, images=batch.images.flip(-1), condition="mirrored")
        prediction = pl_module.test_step(changed, 1)
        Evaluation.of(trainer).add(trainer, prediction, changed)


class Pairs(Squares):
    """Images with a bright square at the left and a dark one at the right, and a phrase of each, two to a patient."""

    findings = ("Square", "Hole")

    def read_records(self, annotated: bool) -> list[Record]:
        queries = (Query("1", "Square", "A bright patch.", "en"), Query("2", "Hole", "dark hole in the left lung"))
        labels = {"1": 1, "2": 1}
        return [Record(f"{n}", labels, n, patient_id=f"p{n // 2}", queries=queries) for n in range(self.images)]

    def load(self, record: Record) -> Radiograph:
        rng = np.random.default_rng(record.source)
        image, regions = rng.integers(100, 140, (80, 64), dtype=np.uint8), {}
        for name, first, gray in (("1", 0, 255), ("2", 32, 0)):
            top, left = rng.integers(0, 60), first + rng.integers(0, 20)
            regions[name] = np.zeros(image.shape, bool)
            regions[name][top : top + 12, left : left + 10] = True
            image[regions[name]] = gray
        return Radiograph(image, regions)


class Alarmed(Told):
    def _text(self, batch, query):
        absent = query.kind == "locate" and batch.truth.labels[query.pair] != 1
        if absent and batch.truth.index[batch.truth.image[query.pair]] % 3 == 0:
            return '[{"bbox_2d": [100, 100, 300, 300], "label": "square"}]'
        return super()._text(batch, query)


class Attentive(Brightness):
    name = "attentive"

    def encode_prompts(self, prompts):
        signs = torch.tensor([-1.0 if text.startswith("no ") else 1.0 for (text,) in prompts])
        return super().encode_prompts(prompts) * signs


class Deaf(Brightness):
    name = "deaf"

    def encode_prompts(self, prompts):
        return torch.ones(len(prompts))
