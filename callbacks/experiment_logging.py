"""Logging to experiment loggers: scalars to all, everything else to Weights & Biases."""

from __future__ import annotations

import time
import warnings
from math import inf
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from xbench.data.datamodule import ChestXrayDataModule
from xbench.models.base import SaliencyModel
from xbench.report.runs import collect
from xbench.runs.folder import saved_config
from xbench.runs.results import Results
from xbench.runtime.distributed import shared_counter
from xbench.runtime.errors import UserError
from xbench.scoring.interventions import ANY

from .evaluation import Evaluation, find
from .results_writer import ResultsWriter
from .wandb_logger import FAILED, WandbLogger, prompt_style

_EVERY = 30.0  # seconds between updates of progress


class ExperimentLogging(Callback):
    """Logs a run's configuration, progress, numbers and pictures. Failures to log never end a run.

    Every logger gets the macro numbers as `grounding/<number>`, `classification/<number>` and, per fill,
    `interventions/<number>_<fill>`. Weights & Biases also gets progress and, from the finished files, intervals,
    floors, numbers per finding, tables, charts, the run's files as an artifact and, if its logger allows, overlays with
    masks and boxes. `ResultsWriter` must come first.
    """

    # The model has accepted its prompts by now.
    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        model: SaliencyModel = pl_module  # type: ignore[assignment]
        config: dict[str, Any] = {
            "model_name": model.name,
            "dataset_name": data.name,
            "split": data.split,
            "precision": str(trainer.precision),
            "prompts": prompt_style(model),
        }
        if (saved := saved_config(trainer)) is not None:
            config |= saved.config.as_dict()
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.describe(model, data, str(trainer.precision))
            logger.log_hyperparams(config)
        self._count, self._failed = shared_counter("logged batches"), False
        self._began = self._latest = self._logged = time.monotonic()

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *place: int
    ) -> None:
        batches, self._latest = self._count() + 1, time.monotonic()  # of all processes
        if self._failed or self._latest - self._logged < _EVERY:
            return
        self._logged = self._latest
        import wandb

        try:
            self._log_progress(trainer, batches)
        except (wandb.errors.Error, OSError) as error:
            self._failed = True
            warnings.warn(f"Weights & Biases failed ({error}); the run continues.", stacklevel=2)

    def _log_progress(self, trainer: Trainer, batches: float) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        before, total = len(data.finished), len(data.records)
        images = min(total, (before + batches) * data.batch_size)
        rate = (images - before * data.batch_size) / (self._latest - self._began)
        progress = {"progress/images": images, "progress/share": images / total, "progress/images_per_second": rate}
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_metrics(progress)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        results, writer = Evaluation.of(trainer).results, find(trainer, ResultsWriter)
        if results is None:
            return
        scalars = _scalars(results)
        for logger in trainer.loggers:
            if not isinstance(logger, WandbLogger):
                logger.log_metrics(scalars)
                logger.save()
                continue
            import wandb

            from xbench.report.wandb.log_run import log_run

            try:
                self._log_progress(trainer, inf)
                logger.log_metrics(scalars)
                (run,) = collect([writer.folder] if writer is not None else []).runs
                log_run(logger.experiment, run, logger.pictures(trainer.datamodule))  # type: ignore[attr-defined]
            except (wandb.errors.Error, OSError, UserError) as error:
                kept = "" if writer is None else f" The run's own files are complete: {writer.folder}."
                warnings.warn(f"{FAILED} ({error}).{kept}", stacklevel=2)


def _scalars(results: Results) -> dict[str, float]:
    parts = {"grounding": results.grounding.macro, "classification": results.classification.macro}
    if results.own_scale:
        parts["own_scale"] = results.own_scale.macro
    if results.answers:
        tokens = results.answers.tokens
        spent = {} if tokens is None else {"tokens_sent": tokens.sent, "tokens_received": tokens.received}
        parts["answers"] = results.answers.macro | spent
    if results.interventions:
        means = {fill: numbers.macro for fill, numbers in results.interventions.all_pairs.items()}
        parts["interventions"] = means.pop(ANY) | {
            f"{name}_{fill}": value for fill, macro in means.items() for name, value in macro.items()
        }
    named = {f"{part}/{name}": value for part, macro in parts.items() for name, value in macro.items()}
    return {name: value for name, value in named.items() if value is not None}
