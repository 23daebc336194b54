"""The files of a run."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from xbench.errors import UserError
from xbench.results import write_per_class, write_results
from xbench.rows import CURVES, PER_IMAGE, write_pair_counts, write_per_image

from .evaluation import Evaluation
from .run_folder import open_run_folder


class ResultsWriter(Callback):
    """Writes a run's tables and, last, `results.json`, each complete or not at all.

    The tables are `per_image.parquet`, `curves.parquet` and `per_class.csv`.

    Attributes:
        folder: The run's folder, from `setup` on.
    """

    folder: Path

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the run's folder before any time is spent.

        Raises:
            UserError: The folder cannot be created.
        """
        if stage == "test":
            self.folder = open_run_folder(trainer, pl_module.name, trainer.datamodule.name)  # type: ignore[attr-defined, arg-type]

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the files.

        Raises:
            UserError: The disk is full or has become read-only.
        """
        evaluation = Evaluation.of(trainer)
        if evaluation.results is None or evaluation.rows is None or evaluation.pairs is None:
            return
        results = evaluation.results
        try:
            write_per_image(self.folder / PER_IMAGE, evaluation.rows, results.findings)
            write_pair_counts(self.folder / CURVES, evaluation.pairs, results.findings)
            write_per_class(self.folder / "per_class.csv", results)
            write_results(self.folder / "results.json", results)
        except OSError as error:
            raise UserError(
                f"The results cannot be written to {self.folder}: {error.strerror}. Make room or give another folder "
                "with --trainer.default_root_dir, and run the command again."
            ) from error

    @classmethod
    def of(cls, trainer: Trainer) -> ResultsWriter:
        """Return the trainer's writer of results.

        Raises:
            UserError: There is none among its callbacks.
        """
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, cls):
                return callback
        raise UserError("trainer.callbacks holds no ResultsWriter, so files have no folder: add it.", exit_status=2)
