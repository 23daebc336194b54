"""Callback that keeps maps, regions and radiographs of a run."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from lightning.pytorch import Callback

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

    `Evaluation` asks for their tables.
    """


def kept_of(batch: Batch) -> dict[str, Any]:
    """Return what a worker kept of the images that are left in a batch, by file name as in `BatchRecord`."""
    kept = {name: table.numpy() for name, table in batch.kept.items()}
    if batch.cut:
        left = pa.array(batch.truth.image_ids, pa.string())
        for name in kept.keys() - {IMAGES}:
            table = decoded(name, kept[name])
            kept[name] = table.filter(pc.is_in(table["image_id"], left))
    return kept | {IMAGES: images_of(batch)}


def images_of(batch: Batch) -> Any:
    """Return the images of a batch, as a table or encoded."""
    rows = image_rows(batch)
    same = IMAGES in batch.kept and hash(rows) == batch.rows_hash
    return batch.kept[IMAGES].numpy() if same else table_of(IMAGES, rows)


def predictions_of(outputs: Prediction, batch: Batch) -> dict[str, pa.Table]:
    """Return the predictions about a batch by file name, except answers."""
    if isinstance(outputs.shown, Answers):
        return {}
    truth = batch.truth
    given = zip(("logit", "probability"), outputs.scores(len(truth.queries)), strict=True)
    scores = {name: values.to("cpu", torch.float64).numpy() for name, values in given}
    maps = outputs.shown.values.float().cpu().numpy() if isinstance(outputs.shown, Maps) else None
    table = predictions_table(truth, maps, scores, batch.condition)
    if words := answer_rows(Answers([], outputs.texts), truth):
        table = in_order([table, answers_table(words, batch.condition)])
    return {PREDICTIONS: table}
