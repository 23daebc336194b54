"""What goes to the experiment loggers: scalars to all of them, tables, curves and overlays to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
import wandb
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from numpy.typing import NDArray

from xbench.data.base import ChestXrayDataModule
from xbench.distributed import gather
from xbench.geometry import region_on_grid, saliency_on_grid
from xbench.metrics.functional import normalise
from xbench.results import Results
from xbench.types import Batch, ModelOutput

from .evaluation import Evaluation
from .wandb_logger import WandbLogger


@dataclass(frozen=True)
class Overlay:
    """A radiograph, the map of one finding that it has, and the annotated region.

    All three lie on the evaluation grid, or on a coarser one of the same proportions if a side of it is longer than
    1,024 pixels.

    Attributes:
        index: Position of the image in the dataset.
        image_id: Name of the image.
        finding: Name of the finding.
        probability: The model's probability of the finding.
        display: (H, W) uint8.
        saliency: (H, W) float32 in [0, 1].
        region: (H, W) bool.
    """

    index: int
    image_id: str
    finding: str
    probability: float
    display: NDArray[np.uint8]
    saliency: NDArray[np.float32]
    region: NDArray[np.bool_]

    def picture(self) -> NDArray[np.uint8]:
        """Return the radiograph tinted by the map, (H, W, 3) uint8, RGB; where the map is 0 the film is untouched."""
        heat = cv2.applyColorMap((self.saliency * 255).round().astype(np.uint8), cv2.COLORMAP_TURBO)[..., ::-1]
        weight = 0.6 * self.saliency[..., None]
        return (self.display[..., None] * (1 - weight) + heat * weight).round().astype(np.uint8)


_COLUMNS = (
    "finding",
    "positives",
    "with_region",
    "pointing_game",
    "dice_fixed",
    "dice_best",
    "dice_best_threshold",
    "iou_fixed",
    "iou_best",
    "auroc",
    "average_precision",
    "f1",
    "accuracy",
)


_LONGEST_SIDE = 1024


class ExperimentLogging(Callback):
    """Logs a run's configuration, numbers and pictures.

    Every logger gets the macro numbers under the names `grounding/<number>` and `classification/<number>`. Weights &
    Biases gets besides: the table `findings`, the charts `dice_curve` and `iou_curve` over thresholds, and `overlays`
    with the annotated regions as masks and boxes that can be toggled.

    Args:
        overlays: Number of pictures: the first so many pairs of image and finding that have a region.
    """

    def __init__(self, overlays: int = 24) -> None:
        super().__init__()
        self.overlays = overlays

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the configuration and forget the pictures of an earlier run."""
        self._pictures: list[Overlay] = []
        saved = next((c for c in trainer.callbacks if isinstance(c, SaveConfigCallback)), None)  # type: ignore[attr-defined]
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        config: dict[str, Any] = {"model_name": pl_module.name, "dataset_name": data.name, "split": data.split}
        if saved is not None:
            config |= saved.config.as_dict()
        for logger in trainer.loggers:
            logger.log_hyperparams(config)

    def on_test_batch_end(  # type: ignore[override]
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: ModelOutput | None,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the first pairs for pictures."""
        if outputs is None or len(self._pictures) >= self.overlays or not _wandb_loggers(trainer):
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        pairs = ((batch.labels == 1) & batch.has_region).nonzero()[: self.overlays - len(self._pictures)]
        for row, column in pairs.tolist():
            display, region = batch.display[row].cpu().numpy(), batch.regions[row]
            size = _picture_size(*display.shape)
            raw = outputs.saliency[row, column][None]
            view = raw.new_tensor([batch.views[row]], dtype=torch.float32)
            saliency = saliency_on_grid(raw, view, size, pl_module.saliency_upsample)  # type: ignore[arg-type]
            place = int(batch.has_region[row, :column].sum())
            self._pictures.append(
                Overlay(
                    index=int(batch.index[row]),
                    image_id=batch.image_ids[row],
                    finding=data.findings[column],
                    probability=float(outputs.probabilities[row, column]),
                    display=cv2.resize(display, size[::-1], interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False),
                    saliency=normalise(saliency)[0].cpu().numpy(),
                    region=region_on_grid(region[place].cpu().numpy(), size),
                )
            )

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the pictures of all processes together."""
        pictures = [picture for part in gather(self._pictures) for picture in part]
        self._pictures = sorted(pictures, key=lambda picture: (picture.index, picture.finding))[: self.overlays]

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the results."""
        results = Evaluation.of(trainer).results
        if results is None:
            return
        scalars = _scalars(results)
        for logger in trainer.loggers:
            logger.log_metrics(scalars)
            logger.save()
        for logger in _wandb_loggers(trainer):
            _log_panels(logger.experiment, results, self._pictures)
            _describe(logger.experiment, results)


def _picture_size(height: int, width: int) -> tuple[int, int]:
    """Return the grid's size, made smaller if needed: two dozen films of ten megapixels are too much to send."""
    scale = min(1.0, _LONGEST_SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _wandb_loggers(trainer: Trainer) -> list[WandbLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]


def _scalars(results: Results) -> dict[str, float]:
    named: Mapping[str, float | None] = {
        **{f"grounding/{name}": value for name, value in results.grounding_macro.items()},
        **{f"classification/{name}": value for name, value in results.classification_macro.items()},
    }
    return {name: value for name, value in named.items() if value is not None}


def _describe(run: Any, results: Results) -> None:
    if run.name is None or not run.settings.run_name:
        run.name = f"{results.model}_{results.dataset}"
    run.tags = tuple(dict.fromkeys([*(run.tags or ()), results.model, results.dataset]))
    run.config.update({"provenance": results.provenance}, allow_val_change=True)


def _log_panels(run: Any, results: Results, pictures: list[Overlay]) -> None:
    table = wandb.Table(columns=list(_COLUMNS))
    for finding in results.findings:
        numbers = {**vars(results.grounding[finding]), **vars(results.classification[finding])}
        numbers |= {"finding": finding, "with_region": results.counts[finding].with_region}
        table.add_data(*[numbers[column] for column in _COLUMNS])
    panels: dict[str, Any] = {"findings": table}

    curves = {name: scores for name, scores in results.grounding.items() if scores.count}
    if curves:
        for kind in ("dice", "iou"):
            panels[f"{kind}_curve"] = wandb.plot.line_series(
                xs=results.thresholds,
                ys=[getattr(scores, f"{kind}_curve") for scores in curves.values()],
                keys=list(curves),
                title=f"Mean {'Dice' if kind == 'dice' else 'IoU'} by threshold",
                xname="threshold",
            )
    if pictures:
        panels["overlays"] = [_wandb_image(picture) for picture in pictures]
    run.log(panels)


def _wandb_image(picture: Overlay) -> wandb.Image:
    y, x = picture.region.nonzero()
    box = {"minX": int(x.min()), "minY": int(y.min()), "maxX": int(x.max()) + 1, "maxY": int(y.max()) + 1}
    names = {1: picture.finding}
    return wandb.Image(
        picture.picture(),
        caption=f"{picture.image_id} {picture.finding} p={picture.probability:.2f}",
        masks={"region": {"mask_data": picture.region.astype(np.uint8), "class_labels": names}},
        boxes={
            "region": {
                "box_data": [{"position": box, "domain": "pixel", "class_id": 1, "box_caption": picture.finding}],
                "class_labels": names,
            }
        },
    )
