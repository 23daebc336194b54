"""Base class of models that compare image and text vectors, like CLIP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from xbench.findings.prompts import fill_templates
from xbench.models.base import VLM
from xbench.runtime.errors import UserError


class DualEncoder(VLM):
    """A model with an image and a text encoder, and prompts from present and absent `templates`.

    Absent prompts come last. `worded` templates contain a finding's phrase, others its name.
    """

    templates: tuple[Sequence[str], Sequence[str]]
    worded: ClassVar[bool] = True
    stated = "checkpoint"

    def default_prompts(self, finding: str) -> list[str]:
        return fill_templates([*self.templates[0], *self.templates[1]], finding, self.worded)

    def word_prompts(self, finding: str, texts: Sequence[str]) -> list[str]:
        """Return the texts (names and phrases in the present templates), then the absent prompts."""
        present = self.templates[0]
        if self.prompt_source in ("name", "phrase"):
            texts = [template.format(finding=text) for text in texts for template in present]
        return [*texts, *self.default_prompts(finding)[len(present) :]]

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Encode N texts as vectors (N, ..., D) float32 for `average`."""

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Encode C classes as averages of prompts: pairs of present and absent (C, 2, ..., D), or (C, ..., D)."""
        counts, absent = [len(of_finding) for of_finding in prompts], len(self.templates[1])
        classes = self.encode_texts([prompt for of_finding in prompts for prompt in of_finding]).split(counts)
        if not absent or {*counts} == {1}:
            return torch.stack([self.average(texts) for texts in classes])
        if min(counts) <= absent:
            raise UserError(
                f"{self.name} takes {absent} absent prompts per finding after the present ones, or a single prompt of "
                "each."
            )
        pairs = ((texts[:-absent], texts[-absent:]) for texts in classes)
        return torch.stack([torch.stack([*map(self.average, pair)]) for pair in pairs])

    def average(self, vectors: Tensor) -> Tensor:
        """Return the mean direction of unit text vectors (P, ..., D) of one class."""
        return vectors[0] if len(vectors) == 1 else F.normalize(vectors.mean(dim=0), dim=-1)


def compare(images: Tensor, queries: Tensor) -> Tensor:
    """Return the cosines (B, C) of image vectors (B, D) with unit texts (C, D), or present minus absent (C, 2, D)."""
    # Under autocast the product would fall back to 16 bits, too few to rank cosines.
    with torch.autocast(images.device.type, enabled=False):
        cosines = torch.einsum("bd,c...d->bc...", F.normalize(images.float(), dim=-1), queries)
    return cosines if queries.ndim == 2 else cosines[..., 0] - cosines[..., 1]


def cosine_maps(cells: Tensor, text: Tensor, unit: bool = True) -> Tensor:
    """Return maps (B, C, rows, columns) of cells (B, rows, columns, D), normalized if `unit`, and texts (C, D)."""
    with torch.autocast(cells.device.type, enabled=False):
        cells = F.normalize(cells.float(), dim=-1) if unit else cells.float()
        return torch.einsum("bhwd,cd->bchw", cells, text)
