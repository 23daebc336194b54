"""The bar that a run shows in the terminal."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from xbench.runtime.distributed import shared_counter

__all__ = ["RunProgressBar"]


class RunProgressBar(RichProgressBar):
    """Lightning's bar, except that it counts the batches of all processes and not those of the first one alone.

    How many of them the first one gets is not known beforehand, so that its own share would not tell how far it is.
    """

    @property
    def total_test_batches_current_dataloader(self) -> int | float:
        """The run's number of batches, reckoned from the most that one process can get."""
        return super().total_test_batches_current_dataloader + self.trainer.world_size - 1

    @property
    def total_predict_batches_current_dataloader(self) -> int | float:
        """The run's number of batches, reckoned from the most that one process can get."""
        return super().total_predict_batches_current_dataloader + self.trainer.world_size - 1

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to count."""
        super().on_test_start(trainer, pl_module)
        self._count = shared_counter("finished batches")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to count."""
        super().on_predict_start(trainer, pl_module)
        self._count = shared_counter("finished batches")

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Show how many batches are finished."""
        super().on_test_batch_end(trainer, pl_module, outputs, batch, self._count(), dataloader_idx)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Show how many batches are finished."""
        super().on_predict_batch_end(trainer, pl_module, outputs, batch, self._count(), dataloader_idx)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the batches that other processes finished after this one's last."""
        if self.is_enabled:
            total = int(self.total_test_batches_current_dataloader)
            super().on_test_batch_end(trainer, pl_module, None, None, total - 1)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the batches that other processes finished after this one's last."""
        if self.is_enabled:
            total = int(self.total_predict_batches_current_dataloader)
            super().on_predict_batch_end(trainer, pl_module, None, None, total - 1)
