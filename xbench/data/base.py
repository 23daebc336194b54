"""What the harness asks of a dataset, and everything that datasets share."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import cv2
import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from xbench.data.sampler import DealtBatchSampler
from xbench.errors import UserError
from xbench.geometry import region_on_grid
from xbench.preprocessing import Preprocessing, stretch
from xbench.types import Batch, Failure, Sample

__all__ = ["ChestXrayDataModule", "Radiograph", "Record"]


@dataclass(frozen=True)
class Record:
    """What the annotation files say about one image, before a pixel is read.

    Attributes:
        image_id: The dataset's own name of the image.
        labels: 1 (present) or 0 (absent) per finding; a finding that is not a key is unknown.
        source: Whatever the data module needs to load the image: a path, rows of an annotation file ...
        missing: The annotations name the image, but there is no file; `load` must fail with a `UserError`.
    """

    image_id: str
    labels: Mapping[str, int]
    source: Any = None
    missing: bool = False


@dataclass(frozen=True)
class Radiograph:
    """One decoded image with its annotations.

    Attributes:
        image: Grey image (H, W), uint8, bright where the body attenuates.
        regions: Union of the annotations per finding (h, w), bool. The frame may be of another size than the image as
            long as it shows the same extent. A finding that is not a key has no region.
    """

    image: NDArray[np.uint8]
    regions: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)


class ChestXrayDataModule(pl.LightningDataModule, ABC):
    """A chest radiograph dataset for evaluation.

    A subclass sets `findings` and gives `read_records` and `load`.

    Args:
        split: Name of the split, one of `splits`.
        limit: Take only the first so many images.
        batch_size: Images per batch. The forward pass depends on it in its last bits, and therefore so do results.
        num_workers: Processes that load images; None for as many as there are cores, four at most.
        on_error: `stop` ends the run at the first image that cannot be read; `skip` leaves such images out, counts them
            and names them in the results.
        grid: Height and width of the evaluation grid in pixels; one number for both.
        gamma: Share of a grid pixel that an annotation must cover for the pixel to belong to the region.

    Attributes:
        name: Short name in results and run folders; the class name in lower case unless the class sets it.
        findings: Names of the C findings, in the order of the results.
        splits: Names of the splits; the first is the default.

    Raises:
        UserError: An option is out of its range.
    """

    name: str = ""
    findings: tuple[str, ...]
    splits: tuple[str, ...] = ("test",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def __init__(
        self,
        split: str | None = None,
        limit: int | None = None,
        batch_size: int = 8,
        num_workers: int | None = None,
        on_error: Literal["stop", "skip"] = "stop",
        grid: int | tuple[int, int] = 224,
        gamma: float = 0.5,
    ) -> None:
        super().__init__()
        self.split = self.splits[0] if split is None else split
        if self.split not in self.splits:
            raise UserError(f"--data.split {split}: {self.name} has {', '.join(self.splits)}.", exit_status=2)
        if limit is not None and limit < 1:
            raise UserError(f"--data.limit {limit} leaves no image: give at least 1.", exit_status=2)
        if num_workers is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            num_workers = min(4, cores)
        if batch_size < 1 or num_workers < 0:
            raise UserError(
                f"--data.batch_size {batch_size} --data.num_workers {num_workers}: the first must be at least 1, the "
                "second at least 0.",
                exit_status=2,
            )
        if not 0 < gamma <= 1:
            raise UserError(f"--data.gamma {gamma} must lie in (0, 1].", exit_status=2)
        self.limit = limit
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.on_error = on_error
        self.grid = (grid, grid) if isinstance(grid, int) else grid
        self.gamma = gamma
        self.records: Sequence[Record] = ()

    @abstractmethod
    def read_records(self, annotated: bool) -> Sequence[Record]:
        """Read the annotation files and list the images of the split, in a fixed order.

        Args:
            annotated: False for prediction, which must do without annotations.

        Raises:
            UserError: Files are missing or malformed.
        """

    @abstractmethod
    def load(self, record: Record) -> Radiograph:
        """Decode the image of a record and draw its annotated regions. Runs in worker processes.

        Raises:
            UserError: The image or its annotation cannot be read.
        """

    def annotation_files(self) -> Sequence[Path]:
        """Return the files that the ground truth comes from; their digests go into the results."""
        return ()

    def setup(self, stage: str) -> None:
        """Read the records.

        Raises:
            UserError: No image is left to score, or images are missing and `on_error` is `stop`.
        """
        records = self.read_records(annotated=stage != "predict")
        self.records = records[: self.limit]
        if not self.records:
            raise UserError(f"{self.name}: the split {self.split!r} holds no image, so there is nothing to score.")
        missing = [record.image_id for record in self.records if record.missing]
        # Found now and not when their turn comes, hours into a run.
        if missing and self.on_error == "stop":
            raise UserError(
                f"{self.name}: {len(missing)} of {len(self.records)} annotated images have no file (first: "
                f"{', '.join(missing[:3])}). Complete the download, or leave out such images with --data.on_error skip "
                "(they are counted and named in results.json)."
            )

    def test_dataloader(self) -> DataLoader[Sample | Failure]:
        """Return the loader of this process's batches, with images as the trainer's model wants them.

        Without a trainer all batches come, with images stretched to the evaluation grid, in [0, 1].
        """
        trainer = self.trainer
        if trainer is None:
            preprocessing, rank, processes = Preprocessing(stretch(self.grid)), 0, 1
        else:
            preprocessing = trainer.lightning_module.preprocessing  # type: ignore[assignment]
            rank, processes = trainer.global_rank, trainer.world_size
        return DataLoader(
            self.samples(preprocessing),
            batch_sampler=DealtBatchSampler(len(self.records), self.batch_size, rank, processes),
            num_workers=self.num_workers,
            collate_fn=Batch.collate,
            pin_memory=trainer is not None and trainer.strategy.root_device.type == "cuda",
            worker_init_fn=_one_thread,
        )

    predict_dataloader = test_dataloader

    def samples(self, preprocessing: Preprocessing) -> Dataset[Sample | Failure]:
        """Return the records as samples for a model with the given preprocessing."""
        return _Samples(self.records, self.load, self.findings, preprocessing, self.grid, self.gamma)

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Stop at an unreadable image unless asked to skip it.

        Raises:
            UserError: An image could not be read and `on_error` is `stop`.
        """
        # Raised here and not in the worker, which would wrap the message in its traceback.
        if batch.failures and self.on_error == "stop":
            failure = batch.failures[0]
            raise UserError(
                f"{self.name}: image {failure.image_id} cannot be read. {failure.reason} Mend the file, or leave out "
                "such images with --data.on_error skip (they are counted and named in results.json)."
            )
        return batch


class _Samples(Dataset[Sample | Failure]):
    """Records turned into samples on demand."""

    def __init__(
        self,
        records: Sequence[Record],
        load: Callable[[Record], Radiograph],
        findings: Sequence[str],
        preprocessing: Preprocessing,
        grid: tuple[int, int],
        gamma: float,
    ) -> None:
        self._records = records
        self._load = load
        self._findings = findings
        self._preprocessing = preprocessing
        self._grid = grid
        self._gamma = gamma

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Sample | Failure:
        record = self._records[index]
        try:
            radiograph = self._load(record)
        except UserError as error:
            return Failure(index, record.image_id, str(error))
        image, view = self._preprocessing(radiograph.image)
        display = cv2.resize(radiograph.image, self._grid[::-1], interpolation=cv2.INTER_AREA)
        regions = np.zeros((len(self._findings), *self._grid), np.bool_)
        for position, finding in enumerate(self._findings):
            if finding in radiograph.regions:
                regions[position] = region_on_grid(radiograph.regions[finding], self._grid, self._gamma)
        return Sample(
            index=index,
            image_id=record.image_id,
            image=image,
            view=view,
            display=torch.from_numpy(display),
            labels=torch.tensor([record.labels.get(finding, -1) for finding in self._findings], dtype=torch.int8),
            regions=torch.from_numpy(regions),
            has_region=torch.from_numpy(regions.any(axis=(1, 2))),
        )


def _one_thread(worker: int) -> None:
    # Workers are many; threads of their own would only contend with the forward pass.
    cv2.setNumThreads(0)
