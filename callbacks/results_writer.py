"""The files of a run."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from xbench.cases import write_cases
from xbench.data.base import ChestXrayDataModule
from xbench.errors import UserError
from xbench.journal import BatchRecord, Journal
from xbench.provenance import numbers_depend_on
from xbench.results import write_per_class, write_results
from xbench.rows import CURVES, PER_IMAGE, write_pair_counts, write_per_image
from xbench.types import Batch, ModelOutput

from .case_keeper import CaseKeeper
from .evaluation import Evaluation
from .run_folder import RunFolder, open_resumable_folder, open_run_folder, saved_config


class ResultsWriter(Callback):
    """Writes a run's tables, what its pictures are drawn from, and, last, `results.json`, each complete or not at all.

    While the run goes on, every finished batch is noted in `journal/`, so that the same command with `--resume true`
    goes on where a run was killed; the journal is deleted once the results are written. (Runs that are started from
    Python have none, for only the command line knows the configuration.) Comes after `Evaluation` and `CaseKeeper`.

    Attributes:
        folder: The run's folder, from `setup` on.
    """

    folder: Path

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the run's folder before any time is spent, or open the one to go on with.

        Raises:
            UserError: The folder cannot be created, or no unfinished run fits.
        """
        if stage != "test":
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        saved = saved_config(trainer)
        names = (str(pl_module.name), data.name)
        self._journal: Journal | None = None
        if saved is None:
            self._run = RunFolder(open_run_folder(trainer, *names))
        else:
            self._run = open_resumable_folder(
                trainer,
                *names,
                lambda: numbers_depend_on(pl_module, data, saved.config.as_dict()),  # type: ignore[arg-type]
                batches=-(-len(data.records) // data.batch_size),
                resume=getattr(trainer, "resume", False),
            )
            self._journal = Journal(self._run.journal, trainer.global_rank)
        self.folder = self._run.path
        data.finished = self._run.finished

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand what an earlier attempt has finished to those who would have collected it."""
        for record in self._run.records:
            Evaluation.of(trainer).restore(record)
            if keeper := CaseKeeper.find(trainer):
                keeper.restore(record)

    def on_test_batch_end(  # type: ignore[override]
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: ModelOutput | None,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Note that a batch is finished.

        Raises:
            UserError: The disk is full or has become read-only.
        """
        if self._journal is not None:
            self._note(self._journal, trainer, batch)
        # Else the next batch would seem to have been waited for all this time.
        Evaluation.of(trainer).lap("keeping")

    def _note(self, journal: Journal, trainer: Trainer, batch: Batch) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        keeper = CaseKeeper.find(trainer)
        first = min([*batch.index.tolist(), *(failure.index for failure in batch.failures)])
        journal.append(
            BatchRecord(
                batch=int(first) // data.batch_size,
                scores=Evaluation.of(trainer).latest,
                failures=tuple(batch.failures),
                notes=tuple(batch.notes),
                cases=() if keeper is None else keeper.latest,
                pictures={} if keeper is None else keeper.latest_pictures,
            )
        )

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the files.

        Raises:
            UserError: The disk is full or has become read-only.
        """
        if self._journal is not None:
            self._journal.close()
        evaluation, keeper = Evaluation.of(trainer), CaseKeeper.find(trainer)
        if evaluation.results is None or evaluation.rows is None or evaluation.pairs is None:
            return
        results = evaluation.results
        try:
            if keeper is not None:
                write_cases(self.folder, keeper.cases, keeper.pictures)
            write_per_image(self.folder / PER_IMAGE, evaluation.rows, results.findings)
            write_pair_counts(self.folder / CURVES, evaluation.pairs, results.findings)
            write_per_class(self.folder / "per_class.csv", results)
            write_results(self.folder / "results.json", results)
        except OSError as error:
            again = " with --resume true; no image is scored again" if self._journal is not None else ""
            raise UserError(
                f"The results cannot be written to {self.folder}: {error.strerror}. Make room or give another folder "
                f"with --trainer.default_root_dir, and run the command again{again}."
            ) from error
        self._run.remove_journal()

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
