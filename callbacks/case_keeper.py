"""Maps, regions and pictures that a run keeps of its images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from lightning.pytorch import Callback, LightningModule, Trainer

from xbench.runs.files import PREDICTIONS
from xbench.runs.images import SavedImage, saved_tables
from xbench.scoring.rows import in_order
from xbench.types import Answers, Batch, Maps, Prediction


class CaseKeeper(Callback):
    """Keeps the raw maps of all findings and the annotated regions, and of images with a scored pair the radiograph.

    `ResultsWriter` writes them to `images.parquet`, `predictions.parquet`, `truth.parquet` and `pictures.parquet` in
    the run's folder, from which reports draw overlays and `rescore` scores the run again without the model. The
    radiographs are small JPEG files, but they are patients' images all the same: share a run's folder only with those
    who may see the dataset, or delete that file.

    `latest` holds the tables of the last batch by file of the run, but for the predictions of a model that answers.
    """

    latest: Mapping[str, pa.Table] = MappingProxyType({})

    def on_test_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: LightningModule, outputs: Prediction | None, batch: Batch, batch_idx: int
    ) -> None:
        self.latest = tables_of(outputs, batch)

    def add(self, outputs: Prediction, batch: Batch) -> None:
        """Keep what a model says about the batch under another condition, too."""
        for name, table in tables_of(outputs, batch, pictures=False).items():
            if name == PREDICTIONS and name in self.latest:
                self.latest = {**self.latest, name: in_order([self.latest[name], table])}


def tables_of(outputs: Prediction | None, batch: Batch, pictures: bool = True) -> dict[str, pa.Table]:
    """Return what is kept of a batch by file of the run, but for the predictions of a model that answers."""
    failures = [(failure.index, failure.image_id, failure.reason) for failure in batch.failures]
    if outputs is None:
        return saved_tables([], {}, failures=failures)
    saliency = outputs.shown.values.float().cpu().numpy() if isinstance(outputs.shown, Maps) else None
    truth, is_scored = batch.truth, batch.truth.scored.tolist()
    edges = np.searchsorted(truth.image, np.arange(len(batch) + 1)).tolist()
    images = [
        SavedImage(
            index=int(truth.index[row]),
            image_id=truth.image_ids[row],
            patient_id=truth.patient_ids[row],
            image_sha256=batch.image_sha256[row],
            view=truth.views[row],
            queries=truth.queries[own],
            saliency=None if saliency is None else saliency[own],
            regions={place: cut for place, cut in enumerate(truth.coverage[own]) if cut is not None},
            scored=tuple(place for place, wanted in enumerate(is_scored[own]) if wanted),
            picture=batch.pictures[row] if pictures and batch.pictures else None,
            image_size=truth.image_sizes[row],
            instances=dict(enumerate(truth.shapes[own])),
        )
        for row, own in enumerate(map(slice, edges, edges[1:]))
    ]
    scores = {}
    if not isinstance(outputs.shown, Answers):
        given = zip(("logit", "probability"), outputs.scores(len(truth.queries)), strict=True)
        scores = {name: values.double().cpu().numpy() for name, values in given}
    notes: defaultdict[str, list[str]] = defaultdict(list)
    for note in batch.notes:
        notes[note.image_id].append(note.text)
    return saved_tables(images, scores, notes, failures, batch.condition)
