"""Callback that owns the metrics and computes the results of a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from xbench.data.datamodule import ChestXrayDataModule
from xbench.models.base import SaliencyModel
from xbench.report.names import training_of
from xbench.runs.answers import AnswerRow, answer_rows, answers_table, rows_of
from xbench.runs.files import PAIRS, PREDICTIONS
from xbench.runs.journal import BatchRecord
from xbench.runs.provenance import collect_provenance
from xbench.runs.results import Results
from xbench.runs.summary import RunNumbers, summarize
from xbench.runtime.digests import source_sha256
from xbench.runtime.distributed import gather
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.notes import EXPLORATORY_NOTE, SUPERVISED_NOTE
from xbench.runtime.stopwatch import Stopwatch
from xbench.scoring.interventions import CONDITIONS
from xbench.scoring.map_measures import Measurer
from xbench.scoring.measure import measure
from xbench.scoring.metrics import metrics_of
from xbench.scoring.rows import CHANGED, SCHEMA, Rows, fixed_only, in_order, with_changes
from xbench.types import Answers, Batch, Failure, Note, Prediction, Rules, TieRule

from .case_keeper import CaseKeeper, kept_of, predictions_of
from .checks import check_no_limit, check_values

_AT_A_TIME = 1024  # rows per update of the metrics; an update with the rows of one batch costs nearly as much
_PAIRS, _SECONDS = 64, 1.0  # limits of pairs and time that wait for being scored together
_ONE_BY_ONE = 16  # first batches that do not wait, so that what is wrong with a model shows at once


class Evaluation(Callback):
    """Scores every batch, small ones together, and reduces over processes at the end.

    The metrics belong to the callback so that the trainer's precision does not affect them.

    Args:
        thresholds: Number of thresholds k / (thresholds - 1) of the sweep; odd, to include 0.5.
        ties: How to score several pixels with the maximum of a map: the `share` inside the region, `any` inside (the
            MedKLIP scripts), or the `first` in row-major order (CheXlocalize).
    """

    results: Results | None = None  # set on the first process at the end of the epoch
    rows: Rows | None = None  # from which the results follow
    # Batches that were scored since this hook began, some without their images; tables by name as in `BatchRecord`.
    scored: list[tuple[Batch, dict[str, Any]]]
    stopwatch: Stopwatch  # time of this process by stage, shared with later callbacks

    def __init__(self, thresholds: int = 101, ties: TieRule = "share") -> None:
        super().__init__()
        if thresholds < 3 or thresholds % 2 == 0:
            raise UsageError(
                f"Evaluation: thresholds={thresholds} omits the fixed threshold 0.5: give an odd number from 3, such "
                "as 101."
            )
        self.thresholds = thresholds
        self.ties = ties

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "test":
            check_no_limit(trainer, "test")
        # Cached now, so that edits during the run do not reach the provenance.
        source_sha256()
        self.stopwatch = Stopwatch()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model, data = _parts(trainer)
        self._groups = data.groups
        self.results = self.rows = None
        self._answering = model.answers
        self._metrics = metrics_of(len(self._groups), 1 if self._answering else self.thresholds)
        for metric in self._metrics.values():
            metric.to(model.device)
        self._measurer = Measurer()
        self._waiting_batches: list[tuple[Prediction | None, Batch]] = []
        self._kind: Any = None
        self._since = 0.0
        self.scored = []
        self._waiting: list[pa.Table] = []
        self._tables: list[pa.Table] = []
        self._done: list[int] = []  # images with rows or without queries
        self._answers: list[AnswerRow] = []
        self._failures: list[Failure] = []
        self._notes: list[Note] = []
        self._restored, self._decode = 0, 0.0
        self.stopwatch.lap("setup")

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stopwatch.lap("text")

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.stopwatch.lap("loading", until=_parts(trainer)[1].batch_arrived)
        self.stopwatch.lap("transfer")
        self._decode += batch.seconds

    def on_test_batch_end(  # type: ignore[override]
        self, trainer: Trainer, pl_module: LightningModule, outputs: Prediction | None, batch: Batch, batch_idx: int
    ) -> None:
        self.stopwatch.lap("forward")
        model, data = _parts(trainer)
        # The first batch of the dataset, so that notes do not depend on the number of processes.
        if batch_idx == 0 and batch.first < data.batch_size:
            unread = "the input of the network is unchecked: no image of the first batch could be read"
            lost = outputs is None and not self._answering
            problem = unread if lost else model.input_problem(batch, model.seen)
            odd = f"{EXPLORATORY_NOTE}: {model.exploratory}" if model.exploratory else None
            trained = training_of(model.trained_on, data.name) if model.trained_on else None
            for said in filter(None, (problem, odd, trained and f"{SUPERVISED_NOTE}: it was {trained}")):
                # In the batch, because the journal keeps its notes.
                images = batch.truth.image_ids or [failure.image_id for failure in batch.failures]
                batch.notes += [Note(said, image_id) for image_id in images]
                rank_zero_warn(f"{model.name}: {said}.")
        model.seen = None
        self._failures += batch.failures
        self._notes += batch.notes
        self._done += batch.truth.index[np.bincount(batch.truth.image, minlength=len(batch)) == 0].tolist()
        self.scored = []
        kind = None if outputs is None else _kind(outputs)
        if self._waiting_batches and kind != self._kind:
            self._score(trainer)
        now = time.monotonic()
        if not self._waiting_batches:
            self._kind, self._since = kind, now
        self._waiting_batches.append((outputs, batch))
        pairs = sum(len(one.truth.queries) for _, one in self._waiting_batches)
        enough = batch_idx < _ONE_BY_ONE or pairs >= _PAIRS or now - self._since >= _SECONDS or data.grid == "native"
        if outputs is None or kind is None or enough:
            self._score(trainer)
        else:
            self._waiting_batches[-1] = _light(outputs, batch)
        self.stopwatch.lap("metrics")

    def _score(self, trainer: Trainer) -> None:
        """Score the waiting batches together, because tables of few rows cost as much as those of many."""
        predictions, batches = zip(*self._waiting_batches, strict=True)
        self._waiting_batches = []
        outputs = predictions[0] if len(batches) == 1 else Prediction.join(predictions)
        whole, keeper, tables = Batch.join(batches), find(trainer, CaseKeeper), dict[str, Any]()
        if outputs is not None:
            tables = self._measured(trainer, outputs, whole)
            self._keep(tables)
            # Batch by batch, so that an image in two batches counts twice.
            for batch in batches:
                self._done += dict.fromkeys(batch.truth.index[batch.truth.image].tolist())
            if keeper:
                tables |= predictions_of(outputs, whole)
        for batch, of_batch in zip(batches, split(tables, batches), strict=True):
            self.scored.append((batch, of_batch | (kept_of(batch) if keeper else {})))

    def latest(self, trainer: Trainer) -> dict[str, Any]:
        """Return the tables of the last batch by file name, scored now if it waits."""
        if self._waiting_batches:
            self._score(trainer)
        return self.scored[-1][1]

    def add(self, trainer: Trainer, outputs: Prediction, batch: Batch) -> None:
        """Score and keep a prediction about the last batch under another condition, which the results leave out."""
        self.stopwatch.lap("forward")
        latest, tables = self.latest(trainer), self._measured(trainer, outputs, batch)
        if batch.condition in CONDITIONS:
            self._waiting.append(tables[PAIRS])
        if find(trainer, CaseKeeper):
            tables |= predictions_of(outputs, batch)
        latest |= {name: in_order([latest[name], table]) if name in latest else table for name, table in tables.items()}

    def _measured(self, trainer: Trainer, outputs: Prediction, batch: Batch) -> dict[str, pa.Table]:
        model, data = _parts(trainer)
        if outputs.shown is not None and isinstance(outputs.shown, Answers) != self._answering:
            raise UserError(
                f"{model.name} returned {type(outputs.shown).__name__}, but its class has "
                f"`answers = {self._answering}`. Set it to True for a model that returns answers, else to False."
            )
        check = partial(check_values, truth=batch.truth, model=model.name, given=outputs.given)
        rules = Rules(data.grid, model.saliency_upsample, data.gamma, self.thresholds, self.ties, model.map_scale)
        rows = measure(outputs, batch.truth, rules, self.stopwatch, self._measurer, check, batch.condition)
        if batch.condition and batch.changes:
            facts = {pair: change.facts for change in batch.changes for pair in change.pairs}
            rows = with_changes(rows, {name: [facts[pair][name] for pair in range(len(rows))] for name in CHANGED})
        if not isinstance(outputs.shown, Answers):
            return {PAIRS: rows}
        return {PAIRS: rows, PREDICTIONS: answers_table(answer_rows(outputs.shown, batch.truth), batch.condition)}

    def restore(self, record: BatchRecord, unasked: Iterable[int]) -> None:
        """Add a finished batch of an earlier attempt; `unasked` images have no queries."""
        self._done += {*unasked} - {failure.index for failure in record.failures}
        self._failures += record.failures
        self._notes += record.notes
        self._restored += 1
        if PAIRS in record.tables:
            self._keep(record.tables)
            self._done += dict.fromkeys(record.tables[PAIRS]["index"].to_numpy().tolist())

    def _keep(self, tables: Mapping[str, pa.Table]) -> None:
        self._waiting.append(tables[PAIRS])
        if self._answering and PREDICTIONS in tables:
            # Texts stay in the journal.
            self._answers += [replace(row, raw="", reasoning=None) for row in rows_of(tables[PREDICTIONS])]
        if sum(map(len, self._waiting)) >= _AT_A_TIME:
            self._count()

    def _count(self) -> None:
        """Update the metrics with pending rows, and drop most pixel counts."""
        table = pa.concat_tables([SCHEMA.empty_table(), *self._waiting]).combine_chunks()
        self._waiting.clear()
        rows = Rows.of(table, self._groups)
        for metric in self._metrics.values():
            metric.update(rows)
        self._tables.append(fixed_only(table))

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model, data = _parts(trainer)
        self.scored = []
        if self._waiting_batches:
            self._score(trainer)
        self._count()
        computed = {name: metric.compute() for name, metric in self._metrics.items()}
        own = self._tables, self._done, self._failures, self._notes, self._answers, self._measurer.problem
        gathered = gather(own)
        self.stopwatch.lap("metrics")
        if not trainer.is_global_zero:
            return
        tables, of_done, of_failures, of_notes, of_answers, of_problems = zip(*gathered, strict=True)
        failures = sorted(chain(*of_failures), key=lambda failure: failure.index)
        problems = [problem for problem in of_problems if problem is not None]
        done = [*chain(*of_done)]
        positions = done + [failure.index for failure in failures]
        if sorted(positions) != [*range(len(data.records))]:
            raise RuntimeError(
                f"Each of {len(data.records)} images must be processed once, but {len(positions)} were processed, "
                f"{len({*positions})} of them different. Set use_distributed_sampler to false."
            )
        if not done:
            raise UserError(
                f"{data.name}: none of the {len(failures)} images could be read. The "
                f"first: {failures[0].image_id}. {failures[0].reason}"
            )
        table = in_order([SCHEMA.empty_table(), *chain(*tables)])
        self.rows = Rows.of(table, self._groups)
        seconds = {**self.stopwatch.seconds, "decode": self._decode}
        self.results = summarize(
            (model.name, data.name, data.split),
            self.rows,
            RunNumbers(**computed),
            self.thresholds,
            failures,
            # Every process has the notes about annotations; notes about images come from one process each.
            [*data.notes, *chain(*of_notes)],
            collect_provenance(trainer, model, data, seconds)
            | {
                "evaluation": {"thresholds": self.thresholds, "ties": self.ties},
                "kernel_not_used": problems[0] if problems else None,
                "batches_of_earlier_attempts": self._restored,
            },
            [*chain(*of_answers)] if self._answering else None,
            {name: Rows.of(table, self._groups, name) for name in CONDITIONS},
        )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise a UserError, after all files are written, if every scored map is constant."""
        results = self.results
        scored = sum(count.with_region for count in results.counts.per_finding.values()) if results else 0
        if results and scored and results.counts.constant_maps.count == scored:
            raise UserError(
                f"{results.model}: all {scored} scored saliency maps are constant, so the grounding numbers are "
                "meaningless (recognition is unaffected). Check the saliency that the model returns, and its "
                "checkpoint."
            )

    @classmethod
    def of(cls, trainer: Trainer) -> Evaluation:
        """Return the trainer's evaluation, or raise a UsageError."""
        if (found := find(trainer, cls)) is None:
            raise UsageError("trainer.callbacks lacks Evaluation, which computes the results: add it.")
        return found


def split(tables: Mapping[str, pa.Table], batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """Return the rows of each batch, from tables by name with a row for each pair, or any rows of a single batch."""
    if len(batches) == 1:
        return [{**tables}]
    ends = [*accumulate((len(batch.truth.queries) for batch in batches), initial=0)]
    return [{name: table[start:end] for name, table in tables.items()} for start, end in pairwise(ends)]


def _kind(outputs: Prediction) -> tuple[Any, ...] | None:
    """Return what predictions that can be joined have in common; None for answers, which take long."""
    if isinstance(outputs.shown, Answers) or outputs.texts:
        return None
    if outputs.shown is None:
        return outputs.given
    values = outputs.shown.values
    return outputs.given, values.shape[1:], values.dtype, outputs.shown.missing is None


def _light(outputs: Prediction, batch: Batch) -> tuple[Prediction, Batch]:
    """Copy outputs, because compiled models use their memory again, and leave out images."""
    images = batch.images.new_empty(len(batch), 0)
    return Prediction.join([outputs]), replace(batch, images=images, display=[], radiographs=[], changes=[])


Kind = TypeVar("Kind", bound=Callback)


def find(trainer: Trainer, kind: type[Kind]) -> Kind | None:
    """Return the trainer's first callback of a kind, or None."""
    return next((one for one in trainer.callbacks if isinstance(one, kind)), None)  # type: ignore[attr-defined]


def _parts(trainer: Trainer) -> tuple[SaliencyModel, ChestXrayDataModule]:
    model, data = trainer.lightning_module, trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(model, SaliencyModel) or not isinstance(data, ChestXrayDataModule):
        raise TypeError(
            f"Evaluation needs a SaliencyModel and a ChestXrayDataModule, got {type(model).__name__} and "
            f"{type(data).__name__}."
        )
    return model, data
