"""What goes to the experiment loggers: scalars to all of them, everything else to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from xbench.data.datamodule import ChestXrayDataModule
from xbench.errors import UserError
from xbench.models.base import SaliencyModel
from xbench.report.runs import collect
from xbench.report.wandb.panels import log_panels
from xbench.runs.results import Results

from .evaluation import Evaluation
from .results_writer import ResultsWriter
from .wandb_logger import WandbLogger, prompt_style


class ExperimentLogging(Callback):
    """Logs a run's configuration, numbers and pictures.

    Every logger gets the macro numbers under the names `grounding/<number>` and `classification/<number>`. Weights &
    Biases gets besides: numbers per finding, tables, charts, overlays with masks and boxes that can be toggled, and
    the files of the run as an artifact. All of it is read from the finished files, so `ResultsWriter` goes before, and
    nothing that goes wrong here can cost a result.

    Args:
        overlays: Most pictures that Weights & Biases gets; they are patients' images. They are the best, worst and
            median cases and those where recognition and grounding part, and they need `CaseKeeper`.

    Raises:
        UserError: `overlays` is negative.
    """

    def __init__(self, overlays: int = 24) -> None:
        super().__init__()
        if overlays < 0:
            raise UserError(f"ExperimentLogging: overlays={overlays} is negative; give 0 for none.", exit_status=2)
        self.overlays = overlays

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse an order of callbacks in which there would be nothing to log yet.

        Raises:
            UserError: Weights & Biases is on and `ResultsWriter` does not go before.
        """
        before = trainer.callbacks[: trainer.callbacks.index(self)]  # type: ignore[attr-defined]
        wanted = stage == "test" and any(isinstance(logger, WandbLogger) for logger in trainer.loggers)
        if wanted and not any(isinstance(callback, ResultsWriter) for callback in before):
            raise UserError(
                "ExperimentLogging logs the files of a run to Weights & Biases, so ResultsWriter must stand before it "
                "among trainer.callbacks.",
                exit_status=2,
            )

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name the run and log its configuration."""
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        model: SaliencyModel = pl_module  # type: ignore[assignment]
        precision = str(trainer.precision)
        config: dict[str, Any] = {
            "model_name": model.name,
            "dataset_name": data.name,
            "split": data.split,
            "precision": precision,
            "prompts": prompt_style(model),
        }
        saved = next((c for c in trainer.callbacks if isinstance(c, SaveConfigCallback)), None)  # type: ignore[attr-defined]
        if saved is not None:
            config |= saved.config.as_dict()
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.describe(model, data, precision)
            logger.log_hyperparams(config)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the results, and say so if Weights & Biases fails."""
        results = Evaluation.of(trainer).results
        if results is None:
            return
        scalars = _scalars(results)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                self._log_to_wandb(logger, scalars, ResultsWriter.of(trainer).folder)
                continue
            logger.log_metrics(scalars)
            logger.save()

    def _log_to_wandb(self, logger: WandbLogger, scalars: Mapping[str, float], folder: Path) -> None:
        (run,) = collect([folder]).runs
        try:
            logger.log_metrics(scalars)
            log_panels(logger.experiment, run, self.overlays)
        except (wandb.errors.Error, OSError) as error:
            rank_zero_warn(
                f"Weights & Biases failed and shows this run in part or not at all ({error}). The run's own files are "
                f"complete: {folder}."
            )


def _scalars(results: Results) -> dict[str, float]:
    named: Mapping[str, float | None] = {
        **{f"grounding/{name}": value for name, value in results.grounding.macro.items()},
        **{f"classification/{name}": value for name, value in results.classification.macro.items()},
    }
    return {name: value for name, value in named.items() if value is not None}
