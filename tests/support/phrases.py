"""A dataset whose images have phrases of their own, none, or findings, and a change of its images.

Toy image i has a bright square if i is odd, and a dark one if 3 divides it. By the rest of i divided by 4, an image has
two phrases, one of them without a finding; no query at all; a phrase that is absent; or a finding and a phrase.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
from lightning.pytorch import Callback
from toys import Squares

from xbench.callbacks.case_keeper import CaseKeeper
from xbench.callbacks.evaluation import Evaluation, find
from xbench.data.records import Radiograph, Record
from xbench.runtime.errors import UserError
from xbench.types import Query

BRIGHT, DARK = Query("bright-1", "Square", "a bright patch", "en"), Query("dark-1", None, "a dark hole")
ABSENT = Query("dark-2", None, "a dark hole in the other lung")
MIRRORED = (0, 2, 3, 5)
QUERIES = ((DARK, BRIGHT), (), (ABSENT,), (Query("Square", "Square"), DARK))


class Phrases(Squares):
    """Images with phrases."""

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
    """Images with the same two phrases each."""

    def read_records(self, annotated: bool) -> list[Record]:
        return [replace(record, queries=QUERIES[0]) for record in super().read_records(annotated)]


class Tires(Callback):
    """Ends the run at its third batch, if ORACLE_TIRES says so."""

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
        find(trainer, CaseKeeper).add(prediction, changed)
