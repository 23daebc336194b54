"""The files of a prediction: logits, probabilities and saliency maps, without ground truth."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console

from xbench.data.datamodule import ChestXrayDataModule
from xbench.errors import UserError
from xbench.evaluation.checks import check_each_once, check_no_limit
from xbench.runs.files import WRITING
from xbench.runs.folder import open_run_folder
from xbench.runtime.distributed import gather
from xbench.runtime.files import atomic_writer
from xbench.types import Batch, ModelOutput


class PredictionWriter(Callback):
    """Writes a prediction run's files.

    `saliency/NNNNNN_<image>.npz` holds for one image the raw maps `saliency` (C, h, w) float32 in the frame of the
    model input, the part of the radiograph that this frame shows as `view` (left, top, right, bottom in fractions of
    width and height), and the names `findings`. `predictions.parquet` has a row per image and finding: image_id,
    finding, logit, probability and the `file` of the map.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the run's folder; refuse a trainer that limits batches."""
        if stage != "predict":
            return
        check_no_limit(trainer, "predict")
        self._rows: list[tuple[int, dict[str, Any]]] = []
        self._skipped: list[tuple[int, str]] = []
        self.folder = open_run_folder(trainer, pl_module.name, trainer.datamodule.name)  # type: ignore[attr-defined, arg-type]
        (self.folder / "saliency").mkdir(exist_ok=True)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: ModelOutput | None, batch: Batch, *place: int
    ) -> None:
        """Write the maps of a batch; a `UserError` if the disk is full or has become read-only."""
        self._skipped += [(failure.index, f"{failure.image_id}: {failure.reason}") for failure in batch.failures]
        if outputs is None:
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        logits, probabilities = outputs.logits.double().cpu().tolist(), outputs.probabilities.double().cpu().tolist()
        saliency, truth = outputs.saliency.float().cpu().numpy(), batch.truth
        for row, (index, image_id) in enumerate(zip(truth.index.tolist(), truth.image_ids, strict=True)):
            # Names of images may hold anything, slashes included; the position keeps the file names apart.
            file_name = f"saliency/{index:06d}_{re.sub(r'[^A-Za-z0-9.-]+', '_', image_id)[:100]}.npz"
            try:
                with atomic_writer(self.folder / file_name) as file:
                    np.savez_compressed(
                        file, saliency=saliency[row], view=truth.views[row], findings=np.array(data.findings)
                    )
            except OSError as error:
                raise UserError(
                    f"A saliency map cannot be written to {self.folder}: {error.strerror}. Make room or give another "
                    "folder with --trainer.default_root_dir."
                ) from error
            for finding, logit, probability in zip(data.findings, logits[row], probabilities[row], strict=True):
                scores = {"finding": finding, "logit": logit, "probability": probability}
                self._rows.append((index, {"image_id": image_id, **scores, "file": file_name}))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prove that each image was predicted exactly once, write the table, and name every image left out."""
        rows = [row for part in gather(self._rows) for row in part]
        skipped = sorted(reason for part in gather(self._skipped) for reason in part)
        if not trainer.is_global_zero:
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        predicted = [index for index, row in rows if row["finding"] == data.findings[0]]
        check_each_once(predicted + [index for index, _ in skipped], len(data.records))
        # sorted() keeps the findings of an image in their order.
        table = pa.Table.from_pylist([row for _, row in sorted(rows, key=lambda row: row[0])])
        with atomic_writer(self.folder / "predictions.parquet") as file:
            pq.write_table(table, file, **WRITING)
        if trainer.progress_bar_callback is not None:
            trainer.progress_bar_callback.teardown(trainer, pl_module, "predict")
        console = Console(markup=False)
        for _, reason in skipped:
            console.print(f"Skipped {reason}", style="yellow", highlight=False, soft_wrap=True)
        console.print(f"Images: {len(predicted)}. Predictions: {self.folder}", soft_wrap=True, highlight=False)
