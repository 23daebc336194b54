"""A dataset and a model outside the package, small enough to know every answer beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from xbench.data.datamodule import ChestXrayDataModule
from xbench.data.records import Radiograph, Record
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.geometry.transforms import CenterCrop, PillowResize
from xbench.models.base import VLM
from xbench.runtime.errors import UserError
from xbench.types import ModelOutput, Note


class Squares(ChestXrayDataModule):
    """Gray noise with a bright square (finding "Square") or a dark one ("Hole"), or both, or none.

    Args:
        images: Number of images.
        unreadable: Positions of images that cannot be read.
        widths: Widths of the images in pixels, in turn; all are 80 high.
        odd: Positions of images with something to note about each of their annotations.
    """

    findings = ("Square", "Hole", "Ghost")

    def __init__(
        self,
        images: int = 20,
        unreadable: Sequence[int] = (),
        widths: Sequence[int] = (64,),
        odd: Sequence[int] = (),
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.images, self.unreadable, self.widths, self.odd = images, unreadable, widths, odd

    def read_records(self, annotated: bool) -> list[Record]:
        if self.odd:
            self.notes += [Note("a row without an image", name) for name in ("square-999", "square-998", "square-999")]
        return [
            Record(f"square-{index:03d}", _labels(index) if annotated else {}, index) for index in range(self.images)
        ]

    def load(self, record: Record) -> Radiograph:
        if record.source in self.unreadable:
            raise UserError(f"The file of {record.image_id} is broken.")
        rng = np.random.default_rng(record.source)
        image = rng.integers(100, 140, (80, self.widths[record.source % len(self.widths)]), dtype=np.uint8)
        regions = {}
        for finding, gray in (("Square", 255), ("Hole", 0)):
            if _labels(record.source)[finding]:
                top, left = rng.integers(0, 40, 2)
                region = np.zeros(image.shape, bool)
                region[top : top + 12, left : left + 10] = True
                image[region] = gray
                regions[finding] = region
        notes = ("an annotation is odd",) * len(regions) if record.source in self.odd else ()
        return Radiograph(image, regions, notes)


def _labels(index: int) -> dict[str, int]:
    return {"Square": index % 2, "Hole": int(index % 3 == 0)}


class Brightness(VLM):
    """Looks for bright or dark places, as the prompt says: the 30 lines of a model of one's own, with faults."""

    map_scale = "logit"

    def __init__(
        self,
        gain: float = 8.0,
        fault: Literal["none", "nan", "large", "wide", "constant", "shape", "unnormalized"] = "none",
        crop: bool = False,
    ) -> None:
        super().__init__()
        geometry = [PillowResize(56), CenterCrop(56)] if crop else stretch((56, 56))
        said = {} if fault == "unnormalized" else {"mean": (0, 0, 0), "std": (1, 1, 1)}
        self.preprocessing = Preprocessing(geometry, **said)
        self.gain = gain
        self.fault = fault
        self.times_encoded = 0

    def default_prompts(self, finding: str) -> Sequence[str]:
        return [f"a dark {finding}" if finding == "Hole" else f"a bright {finding}"]

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        self.times_encoded += 1
        return torch.tensor([-1.0 if "dark" in prompt else 1.0 for (prompt,) in prompts], device=self.device)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        saliency = torch.einsum("bhw,c->bchw", images.mean(1) - 0.47, queries)
        logits = self.gain * saliency.amax((2, 3)) - self.gain / 3
        if self.fault == "nan":
            saliency[-1, 0, 3, 3] = torch.nan
        if self.fault == "large":
            # In a map of a finding that no image has, so that it is not scored.
            saliency = saliency.double()
            saliency[1, 2, 3, 3] = 1e39
        if self.fault == "wide":
            saliency[1, 2, 3, :2] = torch.tensor([-3e38, 3e38])
        if self.fault == "constant":
            saliency = torch.zeros_like(saliency)
        if self.fault == "shape":
            logits = logits[:, :1]
        return ModelOutput(logits, torch.sigmoid(logits), saliency)


def quiet_trainer(*callbacks: Callback, **options) -> Trainer:
    off = ("logger", "use_distributed_sampler", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    return Trainer(accelerator="cpu", devices=1, callbacks=[*callbacks], **dict.fromkeys(off, False), **options)
