"""What the pictures of a run are drawn from."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from numpy.typing import NDArray

from xbench.cases import Case, PackedCase
from xbench.data.base import ChestXrayDataModule
from xbench.distributed import gather
from xbench.geometry import region_on_grid
from xbench.journal import BatchRecord
from xbench.types import Batch, ModelOutput

_LONGEST_SIDE = 1024


class CaseKeeper(Callback):
    """Keeps, of every scored pair, the raw map and the region, and of every such image the radiograph.

    `ResultsWriter` writes them to `maps.parquet` and `pictures.parquet` in the run's folder. The radiographs are small
    JPEG files, but they are patients' images all the same: share a run's folder only with those who may see the
    dataset.

    Attributes:
        cases: The scored pairs, sorted; on the first process from the end of the epoch on.
        pictures: Radiographs as JPEG files, by name of the image; likewise.
        latest: The scored pairs of the last batch.
        latest_pictures: Its radiographs.
    """

    cases: list[PackedCase]
    pictures: dict[str, bytes]
    latest: tuple[PackedCase, ...] = ()
    latest_pictures: dict[str, bytes]

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the cases of an earlier run."""
        self.cases, self.pictures = [], {}
        self._same: dict[bytes, bytes] = {}

    def on_test_batch_end(  # type: ignore[override]
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: ModelOutput | None,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the scored pairs of a batch, compressed."""
        self.latest, self.latest_pictures = (), {}
        if outputs is None:
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        scored = (batch.labels == 1) & batch.has_region
        cases = []
        for row, column in scored.nonzero().tolist():
            display = batch.display[row].cpu().numpy()
            size = _picture_size(*display.shape)
            region = batch.regions[row][int(batch.has_region[row, :column].sum())].cpu().numpy()
            case = Case(
                index=int(batch.index[row]),
                image_id=batch.image_ids[row],
                finding=data.findings[column],
                saliency=outputs.saliency[row, column].float().cpu().numpy(),
                view=batch.views[row],
                region=region_on_grid(region, size),
                display=_smaller(display, size),
            )
            packed, picture = PackedCase.pack(column, case)
            # Maps that are the same for every image are kept once.
            saliency = self._same.setdefault(packed.saliency, packed.saliency)
            cases.append(replace(packed, saliency=saliency))
            self.latest_pictures[case.image_id] = picture
        self.latest = tuple(cases)
        self.cases += cases
        self.pictures |= self.latest_pictures

    def restore(self, record: BatchRecord) -> None:
        """Take up what an earlier attempt of the run kept of a batch."""
        self.cases += record.cases
        self.pictures |= record.pictures

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the cases of all processes together."""
        gathered = gather((self.cases, self.pictures))
        self.cases = sorted(case for cases, _ in gathered for case in cases)
        pictures = {image_id: picture for _, kept in gathered for image_id, picture in kept.items()}
        self.pictures = {case.image_id: pictures[case.image_id] for case in self.cases}

    @classmethod
    def find(cls, trainer: Trainer) -> CaseKeeper | None:
        """Return the trainer's keeper of cases, if it has one."""
        return next((callback for callback in trainer.callbacks if isinstance(callback, cls)), None)  # type: ignore[attr-defined]


def _picture_size(height: int, width: int) -> tuple[int, int]:
    """Return the grid's size, made smaller if needed: thousands of films of ten megapixels are too much to keep."""
    scale = min(1.0, _LONGEST_SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _smaller(display: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return cv2.resize(display, size[::-1], interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
