"""The base class of models that compare an image vector with text vectors, as CLIP does."""

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
    """A model of an image encoder and a text encoder, whose prompts come from present and absent `templates`.

    With absent ones, a finding is scored against its own absent prompts, the last of its prompts. `worded` templates
    hold the phrase of a finding, others its name.
    """

    templates: tuple[Sequence[str], Sequence[str]]
    worded: ClassVar[bool] = True
    stated = "checkpoint"

    def default_prompts(self, finding: str) -> list[str]:
        return fill_templates([*self.templates[0], *self.templates[1]], finding, self.worded)

    def word_prompts(self, finding: str, texts: Sequence[str]) -> list[str]:
        """Return the texts, names and phrases in the present templates, and the absent prompts last."""
        present = self.templates[0]
        if self.prompt_source in ("name", "phrase"):
            texts = [template.format(finding=text) for text in texts for template in present]
        return [*texts, *self.default_prompts(finding)[len(present) :]]

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Encode N texts as vectors (N, ..., D) float32 for `average`, or raise a UserError."""

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Encode C pairs (C, 2, ..., D) of present and absent, or C single prompts (C, ..., D), or raise a UserError.

        Several prompts are averaged. The absent prompts of a class are its last ones, as many as there are templates.
        """
        counts, absent = [len(of_finding) for of_finding in prompts], len(self.templates[1])
        classes = self.encode_texts([prompt for of_finding in prompts for prompt in of_finding]).split(counts)
        if not absent or {*counts} == {1}:
            return torch.stack([self.average(texts) for texts in classes])
        if min(counts) <= absent:
            raise UserError(
                f"{self.name} takes {absent} absent prompts of every finding, and present ones before them, or a "
                "single prompt of each."
            )
        pairs = ((texts[:-absent], texts[-absent:]) for texts in classes)
        return torch.stack([torch.stack([*map(self.average, pair)]) for pair in pairs])

    def average(self, vectors: Tensor) -> Tensor:
        """Average text vectors (P, ..., D) of one class, of unit length: return their mean direction."""
        return vectors[0] if len(vectors) == 1 else F.normalize(vectors.mean(dim=0), dim=-1)


def compare(images: Tensor, queries: Tensor) -> Tensor:
    """Return the cosines (B, C) of image vectors (B, D) with texts (C, D) of unit length.

    With pairs (C, 2, D), subtract the cosine with the absent text from that with the present one.
    """
    # Under autocast the product would fall back to 16 bits, too few to rank cosines.
    with torch.autocast(images.device.type, enabled=False):
        cosines = torch.einsum("bd,c...d->bc...", F.normalize(images.float(), dim=-1), queries)
    return cosines if queries.ndim == 2 else cosines[..., 0] - cosines[..., 1]


def cosine_maps(cells: Tensor, text: Tensor, unit: bool = True) -> Tensor:
    """Compare vectors (B, rows, columns, D), made `unit` ones, with texts (C, D) to maps (B, C, rows, columns)."""
    with torch.autocast(cells.device.type, enabled=False):
        cells = F.normalize(cells.float(), dim=-1) if unit else cells.float()
        return torch.einsum("bhwd,cd->bchw", cells, text)
