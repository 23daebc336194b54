"""Scoring: the callback that owns the metrics and turns them into the results of a run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from xbench.data.base import ChestXrayDataModule
from xbench.distributed import gather
from xbench.errors import UserError
from xbench.geometry import saliency_on_grid
from xbench.metrics import PointingGame, ThresholdSweep
from xbench.metrics.classification import classification_scores, macro
from xbench.models.base import SaliencyModel
from xbench.provenance import collect_provenance
from xbench.results import (
    FindingClassification,
    FindingCounts,
    FindingGrounding,
    ImageRows,
    Macro,
    Results,
    macro_mean,
)
from xbench.types import Batch, Failure, ModelOutput, Note

from .output_checks import check_output

_GROUNDING_NUMBERS = ("pointing_game", "dice_fixed", "iou_fixed", "dice_best", "iou_best")
_CLASSIFICATION_NUMBERS = ("auroc", "average_precision", "f1", "accuracy")

_PIXELS_AT_A_TIME = 2**24
"""On the grid: one map of 4,096 x 4,096, or all pairs of any usual batch on 224 x 224."""


class Evaluation(Callback):
    """Scores every batch, and at the end reduces over processes.

    The metrics live here and not in the model, so that the trainer's precision never touches them.

    Args:
        thresholds: Number of thresholds k / (thresholds - 1) of the sweep; odd, so that 0.5 is one of them.
        ties: What counts when several pixels share the maximum of a map: the `share` of them inside the region, `any`
            (the MedKLIP scripts), or the `first` in row-major order (CheXlocalize).

    Attributes:
        results: Results of the run; on the first process from the end of the epoch on, else None.
        rows: Scores per image and finding; likewise.

    Raises:
        UserError: An option is out of its range.
    """

    results: Results | None = None
    rows: ImageRows | None = None

    def __init__(self, thresholds: int = 101, ties: Literal["share", "any", "first"] = "share") -> None:
        super().__init__()
        if thresholds < 3 or thresholds % 2 == 0:
            raise UserError(
                f"Evaluation: thresholds={thresholds} leaves out the fixed threshold 0.5; give an odd number from 3, "
                "such as 101.",
                exit_status=2,
            )
        self.thresholds = thresholds
        self.ties = ties

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse settings under which some images would silently not be scored.

        Raises:
            UserError: The trainer limits batches, which it does per process.
        """
        # The integer 1 means one batch, the fraction 1.0 all of them.
        if stage == "test" and repr(trainer.limit_test_batches) != "1.0":
            raise UserError(
                f"--trainer.limit_test_batches {trainer.limit_test_batches} (also set by --trainer.fast_dev_run) "
                "limits each process by itself and leaves images out without a trace: use --data.limit N for the first "
                "N images.",
                exit_status=2,
            )
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._setup_started = time.perf_counter()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create empty metrics on the model's device."""
        model, data = _parts(trainer)
        classes = len(data.findings)
        self.results = self.rows = None
        self._pointing_game = PointingGame(classes, ties=self.ties).to(model.device)
        self._sweep = ThresholdSweep(classes, thresholds=self.thresholds).to(model.device)
        self._parts: list[ImageRows] = []
        self._failures: list[Failure] = []
        self._constant: list[tuple[int, str, str]] = []
        self._notes: list[Note] = []
        self._clock = time.perf_counter()
        self._seconds["setup"] += self._clock - self._setup_started

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note how long the model took to encode its prompts."""
        self._lap("text")

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Note how long the batch was waited for."""
        self._lap("loading")

    def on_test_batch_end(  # type: ignore[override]
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: ModelOutput | None,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Score a batch.

        Raises:
            UserError: The model's output has the wrong shape, or is not finite.
        """
        self._lap("forward")
        self._failures += batch.failures
        self._notes += batch.notes
        if outputs is not None:
            model, data = _parts(trainer)
            check_output(outputs, batch, model.name, data.findings)
            self._score(outputs, batch, model, data)
        self._lap("metrics")

    def _score(self, output: ModelOutput, batch: Batch, model: SaliencyModel, data: ChestXrayDataModule) -> None:
        views = torch.tensor(batch.views, dtype=torch.float32, device=output.saliency.device)
        pointing_hit, dice, iou = (np.full(tuple(batch.labels.shape), np.nan) for _ in range(3))
        for image, finding, regions in _pairs(batch, image_by_image=data.grid == "native"):
            raw = output.saliency[image, finding]
            place = (image.cpu().numpy(), finding.cpu().numpy())
            flat = raw.flatten(1)
            for pair in (flat.amin(1) == flat.amax(1)).nonzero()[:, 0].tolist():
                row, column = int(place[0][pair]), int(place[1][pair])
                self._constant.append((int(batch.index[row]), batch.image_ids[row], data.findings[column]))
            size = (regions.shape[1], regions.shape[2])
            on_grid = saliency_on_grid(raw, views[image], size, model.saliency_upsample)
            self._pointing_game.update_pairs(on_grid, regions, finding)
            self._sweep.update_pairs(on_grid, regions, finding)
            pointing_hit[place] = self._pointing_game.pairs.hit.cpu().numpy()
            dice[place] = self._sweep.pairs.dice[:, self.thresholds // 2].cpu().numpy()
            iou[place] = self._sweep.pairs.iou[:, self.thresholds // 2].cpu().numpy()

        has_region = batch.has_region.cpu().numpy()
        region_area = np.full(has_region.shape, np.nan)
        each = [region for regions in batch.regions for region in regions]
        region_area[has_region] = [region.count_nonzero().item() / region.numel() for region in each]
        self._parts.append(
            ImageRows(
                index=batch.index.cpu().numpy(),
                image_ids=batch.image_ids,
                labels=batch.labels.cpu().numpy(),
                has_region=has_region,
                logits=output.logits.double().cpu().numpy(),
                probabilities=output.probabilities.double().cpu().numpy(),
                pointing_hit=pointing_hit,
                dice=dice,
                iou=iou,
                region_area=region_area,
            )
        )

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reduce over processes and prove that each image was scored exactly once."""
        model, data = _parts(trainer)
        pointing_game, sweep = self._pointing_game.compute(), self._sweep.compute()
        gathered = gather((self._parts, self._failures, self._constant, self._notes))
        self._lap("metrics")
        if not trainer.is_global_zero:
            return
        parts = [part for parts, *_ in gathered for part in parts]
        failures = sorted((f for _, failures, *_ in gathered for f in failures), key=lambda failure: failure.index)
        constant = sorted(pair for *_, pairs, _ in gathered for pair in pairs)
        # What the annotation files say every process knows; what the images say, only the process that read them.
        notes = [*data.notes, *(note for *_, notes in gathered for note in notes)]
        seen = sorted([i for part in parts for i in part.index.tolist()] + [failure.index for failure in failures])
        if seen != list(range(len(data.records))):
            raise RuntimeError(
                f"{len(data.records)} images were to be scored once each, but {len(seen)} were, {len({*seen})} of them "
                "different. Set use_distributed_sampler to false and let the data module deal the batches."
            )
        if not parts:
            raise UserError(
                f"{data.name}: none of the {len(failures)} images could be read, so there is nothing to score. The "
                f"first: {failures[0].image_id}. {failures[0].reason}"
            )
        self.rows = ImageRows.concatenate(parts)
        scores = classification_scores(torch.from_numpy(self.rows.labels), torch.from_numpy(self.rows.probabilities))
        recognition = macro(scores)
        grounding = _grounding(data.findings, pointing_game, sweep)
        labels, scored = self.rows.labels, (self.rows.labels == 1) & self.rows.has_region
        self.results = Results(
            model=model.name,
            dataset=data.name,
            split=data.split,
            findings=tuple(data.findings),
            images=len(self.rows.image_ids),
            skipped=[{"image_id": failure.image_id, "reason": failure.reason} for failure in failures],
            constant_maps={
                "count": len(constant),
                "first": [{"image_id": image_id, "finding": finding} for _, image_id, finding in constant[:10]],
            },
            notes=_count_images(notes),
            counts={
                finding: FindingCounts(
                    positives=int((labels[:, c] == 1).sum()),
                    negatives=int((labels[:, c] == 0).sum()),
                    with_region=int(scored[:, c].sum()),
                )
                for c, finding in enumerate(data.findings)
            },
            thresholds=[k / (self.thresholds - 1) for k in range(self.thresholds)],
            grounding=grounding,
            grounding_macro=_macro(grounding),
            classification={
                finding: FindingClassification(**asdict(score))
                for finding, score in zip(data.findings, scores, strict=True)
            },
            classification_macro={name: getattr(recognition, name) for name in _CLASSIFICATION_NUMBERS},
            provenance=collect_provenance(trainer, model, data, dict(self._seconds)),
        )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End in an error, after everything is written, when no map says anything.

        Raises:
            UserError: Every scored saliency map is constant.
        """
        results = self.results
        scored = sum(count.with_region for count in results.counts.values()) if results else 0
        if results and scored and results.constant_maps["count"] == scored:
            raise UserError(
                f"{results.model}: all {scored} scored saliency maps are constant, each the same value at every pixel, "
                "so the grounding numbers of this run mean nothing (the classification numbers stand). Check what the "
                "model returns as saliency and whether the checkpoint fits."
            )

    @classmethod
    def of(cls, trainer: Trainer) -> Evaluation:
        """Return the trainer's evaluation.

        Raises:
            UserError: There is none among its callbacks.
        """
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, cls):
                return callback
        raise UserError("trainer.callbacks holds no Evaluation, so there are no results: add it.", exit_status=2)

    def _lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[stage] += now - self._clock
        self._clock = now


def _parts(trainer: Trainer) -> tuple[SaliencyModel, ChestXrayDataModule]:
    model, data = trainer.lightning_module, trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(model, SaliencyModel) or not isinstance(data, ChestXrayDataModule):
        raise TypeError(
            f"Evaluation needs a SaliencyModel and a ChestXrayDataModule, got {type(model).__name__} and "
            f"{type(data).__name__}."
        )
    return model, data


def _pairs(batch: Batch, image_by_image: bool) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Scored pairs, row by row, in portions that bound the memory.

    Args:
        batch: At least one image, on any device.
        image_by_image: Keep images apart, which may differ in size.

    Yields:
        Place of the image in the batch (P,), finding (P,), both int64, and region (P, H, W) bool; P is at least 1.
    """
    scored = (batch.labels == 1) & batch.has_region
    for rows in torch.arange(len(batch), device=scored.device).split(1 if image_by_image else len(batch)):
        image, finding = scored[rows].nonzero(as_tuple=True)
        regions = [
            region
            for row in rows.tolist()
            for region, wanted in zip(batch.regions[row], scored[row, batch.has_region[row]].tolist(), strict=True)
            if wanted
        ]
        step = max(1, _PIXELS_AT_A_TIME // regions[0].numel()) if regions else 1
        for start in range(0, len(regions), step):
            part = slice(start, start + step)
            yield rows[image[part]], finding[part], torch.stack(regions[part])


def _count_images(notes: Iterable[Note]) -> list[dict[str, Any]]:
    images: defaultdict[str, set[str]] = defaultdict(set)
    for note in notes:
        images[note.text].add(note.image_id)
    return [{"note": text, "count": len(ids), "first": sorted(ids)[:10]} for text, ids in sorted(images.items())]


def _grounding(
    findings: tuple[str, ...], pointing_game: dict[str, Tensor], sweep: dict[str, Tensor]
) -> dict[str, FindingGrounding]:
    scores = {}
    fixed = len(sweep["thresholds"]) // 2
    for c, finding in enumerate(findings):
        count = int(sweep["count"][c])
        if not count:
            scores[finding] = FindingGrounding(0, *[None] * 9)
            continue
        dice, iou = sweep["dice"][c].tolist(), sweep["iou"][c].tolist()
        best_dice, best_iou = max(dice), max(iou)
        steps = len(dice) - 1
        scores[finding] = FindingGrounding(
            count=count,
            pointing_game=pointing_game["pointing_game"][c].item(),
            dice_fixed=dice[fixed],
            iou_fixed=iou[fixed],
            dice_best=best_dice,
            iou_best=best_iou,
            # index() finds the first and so the lowest of several best thresholds.
            dice_best_threshold=dice.index(best_dice) / steps,
            iou_best_threshold=iou.index(best_iou) / steps,
            dice_curve=dice,
            iou_curve=iou,
        )
    return scores


def _macro(grounding: dict[str, FindingGrounding]) -> Macro:
    return {name: macro_mean([getattr(scores, name) for scores in grounding.values()]) for name in _GROUNDING_NUMBERS}
