"""Logs to the experiment loggers: scalars to all of them, everything else to Weights & Biases."""

from __future__ import annotations

import warnings
from typing import Any

import wandb
from lightning.pytorch import Callback, LightningModule, Trainer

from xbench.data.datamodule import ChestXrayDataModule
from xbench.errors import UserError
from xbench.models.base import SaliencyModel
from xbench.report.runs import collect
from xbench.report.wandb.log_run import log_run
from xbench.runs.folder import saved_config

from .evaluation import Evaluation, find
from .results_writer import ResultsWriter
from .wandb_logger import WandbLogger, prompt_style


class ExperimentLogging(Callback):
    """Logs a run's configuration, numbers and pictures.

    Every logger gets the macro numbers under the names `grounding/<number>` and `classification/<number>`. Weights &
    Biases also gets numbers per finding, tables, charts, overlays with masks and boxes that can be toggled, and the
    files of the run as an artifact. All of it is read from the finished files, so `ResultsWriter` must come first, and
    nothing that goes wrong here can cost a result.

    Args:
        overlays: Most pictures that Weights & Biases gets; they are patients' images. They show the best, worst and
            median cases and those where recognition and grounding disagree, and they need `CaseKeeper`.
    """

    def __init__(self, overlays: int = 24) -> None:
        super().__init__()
        if overlays < 0:
            raise UserError(f"ExperimentLogging: overlays={overlays} is negative; give 0 for none.", exit_status=2)
        self.overlays = overlays

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that `ResultsWriter` comes first if Weights & Biases is on, so that there are files to log."""
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
        if (saved := saved_config(trainer)) is not None:
            config |= saved.config.as_dict()
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.describe(model, data, precision)
            logger.log_hyperparams(config)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the results; warn if Weights & Biases fails."""
        results = Evaluation.of(trainer).results
        if results is None:
            return
        parts = {"grounding": results.grounding.macro, "classification": results.classification.macro}
        if results.answers is not None:
            tokens = results.answers.tokens
            spent = {} if tokens is None else {"tokens_sent": tokens.sent, "tokens_received": tokens.received}
            parts["answers"] = results.answers.macro | spent
        scalars = {
            f"{part}/{name}": value
            for part, macro in parts.items()
            for name, value in macro.items()
            if value is not None
        }
        for logger in trainer.loggers:
            if not isinstance(logger, WandbLogger):
                logger.log_metrics(scalars)
                logger.save()
                continue
            writer = find(trainer, ResultsWriter)
            assert writer is not None  # setup has seen it
            (run,) = collect([writer.folder]).runs
            try:
                logger.log_metrics(scalars)
                log_run(logger.experiment, run, self.overlays)
            except (wandb.errors.Error, OSError) as error:
                warnings.warn(
                    f"Weights & Biases failed and shows this run in part or not at all ({error}). The run's own files "
                    f"are complete: {writer.folder}.",
                    stacklevel=2,
                )
