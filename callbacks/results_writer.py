"""Callback that writes the files of a run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from xbench.data.datamodule import ChestXrayDataModule
from xbench.runs.files import PAIRS, PERTURBATIONS, PREDICTIONS, RESULTS, SCHEMAS
from xbench.runs.fingerprint import fingerprint, of_results
from xbench.runs.folder import open_journaled_folder, saved_config
from xbench.runs.images import with_attributes
from xbench.runs.journal import BatchRecord, all_batches, append_records, read_record
from xbench.runs.results import Results, write_results
from xbench.runs.tables import about_tables, write_tables
from xbench.runtime.files import writing
from xbench.runtime.strict import load_yaml

from .case_keeper import CaseKeeper
from .evaluation import Evaluation, find
from .perturbations import Perturbations


class ResultsWriter(Callback):
    """Writes a run's tables and, last, `results.json`, each complete or not at all.

    During the run, batches go to `journal/` once they are scored, so that memory does not grow with their number and
    the same command with `--resume true` continues a killed run. The journal is deleted once the results are written.
    Runs started from Python cannot be resumed, because their configuration is unknown. Must come after `Evaluation` and
    `CaseKeeper`. `folder` is that of the run, from `setup` on.
    """

    folder: Path

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "test":
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        saved = saved_config(trainer)
        self._depends_on: dict[str, Any] | None = None

        def depends_on() -> dict[str, Any] | None:
            if saved is not None:
                config = load_yaml(saved.parser.dump(saved.config, skip_none=False))
                self._depends_on = fingerprint(config, type(pl_module), data)  # type: ignore[arg-type]
            return self._depends_on

        self._run = open_journaled_folder(
            trainer,
            str(pl_module.name),
            data.name,
            depends_on,
            batches=-(-len(data.records) // data.batch_size),
            resume=getattr(trainer, "resume", False),
        )
        self.folder = self._run.path
        data.finished = frozenset(self._run.finished)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        for batch, place in self._run.finished.items() if trainer.is_global_zero else ():
            images = range(len(data.records))[batch * data.batch_size : (batch + 1) * data.batch_size]
            unasked = [image for image in images if not data.records[image].looked_for(data.findings)]
            Evaluation.of(trainer).restore(read_record(batch, place), unasked)

    def on_test_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the batches that `Evaluation` scored in this hook."""
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        evaluation = Evaluation.of(trainer)
        if not evaluation.scored:
            return
        with writing(
            f"The finished batches cannot be written to {self._run.journal}",
            "Earlier batches are kept: free disk space and run the same command with --resume true.",
        ):
            append_records(
                self._run.part(trainer.global_rank),
                *(
                    BatchRecord(batch.first // data.batch_size, tables, batch.failures, batch.notes)
                    for batch, tables in evaluation.scored
                ),
            )
        # Otherwise this time would count as waiting for the next batch.
        evaluation.stopwatch.lap("logging")

    def on_test_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        self.on_test_batch_end(trainer)
        trainer.strategy.barrier()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        evaluation = Evaluation.of(trainer)
        if (results := evaluation.results) is None:
            return
        if self._depends_on is not None:
            results.provenance["fingerprint"] = of_results(self._depends_on)
        again = "" if saved_config(trainer) is None else " with --resume true, which keeps the scored batches"
        hint = f"give another folder with --trainer.default_root_dir, and repeat the command{again}."
        with writing(f"The results cannot be written to {self.folder}", f"Free disk space or {hint}"):
            results = replace(results, tables=self._write_tables(trainer, results))
            evaluation.stopwatch.lap("writing")
            results.provenance["seconds"]["writing"] = round(evaluation.stopwatch.seconds["writing"], 3)
            write_results(self.folder / RESULTS, results)
        evaluation.results = results
        # Network file systems may keep small remains of open files; these do not matter.
        shutil.rmtree(self._run.journal, ignore_errors=True)

    def _write_tables(self, trainer: Trainer, results: Results) -> dict[str, str]:
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        batches = all_batches(self._run.journal, -(-len(data.records) // data.batch_size))
        # Here, because it would delay each next batch.
        about = [record.attributes for record in data.records]
        tables = (with_attributes(record.tables, about) for record in batches)
        alone = [PAIRS, PREDICTIONS] if results.answered else [PAIRS]
        names = [name for name in SCHEMAS if name != PERTURBATIONS] if find(trainer, CaseKeeper) else alone
        if (perturbed := find(trainer, Perturbations)) and perturbed.kinds:
            names.append(PERTURBATIONS)
        return write_tables(self.folder, tables, names, about_tables(results.findings, data.gamma, results.provenance))
