"""Progress bar of a run in the terminal."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from xbench.runtime.distributed import shared_counter


class RunProgressBar(RichProgressBar):
    """Lightning's progress bar with the batches of all processes, because the share of each is unknown."""

    @property
    def total_test_batches_current_dataloader(self) -> int | float:
        return super().total_test_batches_current_dataloader + self.trainer.world_size - 1

    @property
    def total_predict_batches_current_dataloader(self) -> int | float:
        return super().total_predict_batches_current_dataloader + self.trainer.world_size - 1

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._count = shared_counter("finished batches")

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *place: int
    ) -> None:
        spent = getattr(pl_module, "spent", 0)
        if spent and self.progress is not None and self.test_progress_bar_id is not None:
            whose = " (process 0)" if trainer.world_size > 1 else ""
            self.progress.update(
                self.test_progress_bar_id, description=f"{self.test_description}, {spent:,} tokens{whose}"
            )
        super().on_test_batch_end(trainer, pl_module, outputs, batch, self._count())

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *place: int
    ) -> None:
        super().on_predict_batch_end(trainer, pl_module, outputs, batch, self._count())

    # Include the batches that other processes finished later.
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.is_enabled:
            last = int(self.total_test_batches_current_dataloader) - 1
            super().on_test_batch_end(trainer, pl_module, None, None, last)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.is_enabled:
            last = int(self.total_predict_batches_current_dataloader) - 1
            super().on_predict_batch_end(trainer, pl_module, None, None, last)
