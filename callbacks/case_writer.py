"""What the pictures of a run are drawn from."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from numpy.typing import NDArray

from xbench.cases import Case, PackedCase, write_cases
from xbench.data.base import ChestXrayDataModule
from xbench.distributed import gather
from xbench.errors import UserError
from xbench.geometry import region_on_grid
from xbench.types import Batch, ModelOutput

from .results_writer import ResultsWriter

_LONGEST_SIDE = 1024


class CaseWriter(Callback):
    """Keeps, of every scored pair, the raw map and the region, and of every such image the radiograph.

    They go to `maps.parquet` and `pictures.parquet` in the run's folder. The radiographs are small JPEG files, but they
    are patients' images all the same: share a run's folder only with those who may see the dataset. Goes before
    `ResultsWriter`, whose `results.json` is the last file of a run.

    Attributes:
        cases: The scored pairs, sorted; on the first process from the end of the epoch on.
        pictures: Radiographs as JPEG files, by name of the image; likewise.
    """

    cases: list[PackedCase]
    pictures: dict[str, bytes]

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
        if outputs is None:
            return
        data: ChestXrayDataModule = trainer.datamodule  # type: ignore[attr-defined]
        scored = (batch.labels == 1) & batch.has_region
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
            self.cases.append(replace(packed, saliency=saliency))
            self.pictures[case.image_id] = picture

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the cases of all processes together."""
        gathered = gather((self.cases, self.pictures))
        self.cases = sorted(case for cases, _ in gathered for case in cases)
        pictures = {image_id: picture for _, kept in gathered for image_id, picture in kept.items()}
        self.pictures = {case.image_id: pictures[case.image_id] for case in self.cases}

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the files.

        Raises:
            UserError: The disk is full or has become read-only.
        """
        if not trainer.is_global_zero:
            return
        folder = ResultsWriter.of(trainer).folder
        try:
            write_cases(folder, self.cases, self.pictures)
        except OSError as error:
            raise UserError(
                f"The maps and pictures of the run cannot be written to {folder}: {error.strerror}. Make room or give "
                "another folder with --trainer.default_root_dir, and run the command again."
            ) from error


def _picture_size(height: int, width: int) -> tuple[int, int]:
    """Return the grid's size, made smaller if needed: thousands of films of ten megapixels are too much to keep."""
    scale = min(1.0, _LONGEST_SIDE / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _smaller(display: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return cv2.resize(display, size[::-1], interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
