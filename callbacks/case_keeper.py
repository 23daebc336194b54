"""Callback that keeps maps, regions and radiographs of a run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from xbench.runs.answers import answer_rows, answers_table
from xbench.runs.files import IMAGES, PREDICTIONS
from xbench.runs.images import image_rows, predictions_table, table_of
from xbench.runs.journal import decoded
from xbench.scoring.rows import in_order
from xbench.types import Answers, Batch, Maps, Prediction


class CaseKeeper(Callback):
    """Keeps maps of all findings, annotated regions, and radiographs of images with a scored pair.

    `ResultsWriter` writes them to `images.parquet`, `predictions.parquet`, `truth.parquet` and `pictures.parquet` in
    the run's folder. Reports draw overlays from these files, and `rescore` works without the model. `pictures.parquet`
    holds patients' images as small JPEG files: share the folder only with people who may see the dataset, or delete
    that file.

    `latest` holds the tables of the last batch by file name, except answers.
    """

    latest: Mapping[str, Any] = MappingProxyType({})

    def on_test_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: LightningModule, outputs: Prediction | None, batch: Batch, batch_idx: int
    ) -> None:
        kept = {name: table.numpy() for name, table in batch.kept.items() if name != IMAGES}
        if batch.cut:
            left = pa.array(batch.truth.image_ids, pa.string())
            for name, table in kept.items():
                table = decoded(name, table)
                kept[name] = table.filter(pc.is_in(table["image_id"], left))
        self.latest = tables_of(outputs, batch) | kept

    def add(self, outputs: Prediction, batch: Batch) -> None:
        """Keep predictions about the batch under another condition, too."""
        if PREDICTIONS in self.latest and (table := tables_of(outputs, batch).get(PREDICTIONS)) is not None:
            self.latest = {**self.latest, PREDICTIONS: in_order([self.latest[PREDICTIONS], table])}


def tables_of(outputs: Prediction | None, batch: Batch) -> dict[str, Any]:
    """Return the images and predictions of a batch by file name, except answers; see `BatchRecord`."""
    truth, rows = batch.truth, image_rows(batch)
    same = IMAGES in batch.kept and hash(rows) == batch.rows_hash
    tables: dict[str, Any] = {IMAGES: batch.kept[IMAGES].numpy() if same else table_of(IMAGES, rows)}
    if outputs is not None and not isinstance(outputs.shown, Answers):
        given = zip(("logit", "probability"), outputs.scores(len(truth.queries)), strict=True)
        scores = {name: values.to("cpu", torch.float64).numpy() for name, values in given}
        maps = outputs.shown.values.float().cpu().numpy() if isinstance(outputs.shown, Maps) else None
        tables[PREDICTIONS] = predictions_table(truth, maps, scores, batch.condition)
        if words := answer_rows(Answers([], outputs.texts), truth):
            tables[PREDICTIONS] = in_order([tables[PREDICTIONS], answers_table(words, batch.condition)])
    return tables
