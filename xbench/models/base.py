"""What the harness asks of a model."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from xbench.preprocessing import Preprocessing
from xbench.types import Batch, ModelOutput

__all__ = ["VLM", "SaliencyModel", "file_sha256"]


class SaliencyModel(pl.LightningModule, ABC):
    """Anything that gives every finding of a radiograph a score and a map.

    Vision-language models derive from `VLM`; derive from this class directly only for references that do without text.

    Attributes:
        name: Short name in results and run folders; the class name in lower case unless the class sets it.
        preprocessing: How the model wants its input. Set it in the constructor.
        findings: Names of the C findings of the dataset, known from `setup` on.
    """

    name: str = ""
    preprocessing: Preprocessing
    findings: tuple[str, ...]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def setup(self, stage: str) -> None:
        """Take the findings from the data module."""
        self.findings = tuple(self.trainer.datamodule.findings)  # type: ignore[attr-defined]

    @abstractmethod
    def score(self, batch: Batch) -> ModelOutput:
        """Score a batch of at least one image. The batch lies on the model's device."""

    def test_step(self, batch: Batch, batch_idx: int) -> ModelOutput | None:  # type: ignore[override]
        """Score a batch; None when none of its images could be read."""
        return self.score(batch) if len(batch) else None

    predict_step = test_step

    def provenance(self) -> dict[str, Any]:
        """Return what the numbers depend on besides code, as plain values.

        `checkpoint_sha256` and `prompts` have places of their own in `results.json`; add whatever else there is.
        """
        return {}


class VLM(SaliencyModel):
    """A vision-language model: prompts are encoded once per run, images batch by batch.

    A subclass gives `default_prompts`, `encode_prompts` and `forward`. Calling the model with images and queries works
    outside a trainer too.
    """

    prompts: list[list[str]]
    queries: Any

    def setup(self, stage: str) -> None:
        """Write the prompts of the dataset's findings."""
        super().setup(stage)
        self.prompts = [list(self.default_prompts(finding)) for finding in self.findings]

    @abstractmethod
    def default_prompts(self, finding: str) -> Sequence[str]:
        """Return the K prompts of a finding, K the same for every finding."""

    @abstractmethod
    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Any:
        """Encode C x K prompts into whatever `forward` needs for C classes, on the model's device."""

    @abstractmethod
    def forward(self, images: Tensor, queries: Any) -> ModelOutput:
        """Score images (B, 3, h, w), normalised, against the queries of C classes."""

    def on_test_start(self) -> None:
        """Encode the prompts, once."""
        self.queries = self.encode_prompts(self.prompts)

    on_predict_start = on_test_start

    def score(self, batch: Batch) -> ModelOutput:
        """Score a batch against the encoded prompts."""
        return self(batch.images, self.queries)

    def provenance(self) -> dict[str, Any]:
        """Return the prompts."""
        return {"prompts": dict(zip(self.findings, self.prompts, strict=True))}


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
