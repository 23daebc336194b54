"""The demo model: a tiny CLIP-style model that comes with the package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from xbench.models.base import VLM, file_sha256
from xbench.models.demo_network import load_demo_network
from xbench.preprocessing import Preprocessing, stretch
from xbench.prompts import fill_templates
from xbench.types import ModelOutput

__all__ = ["Demo"]

_WEIGHTS = Path(__file__).parent / "weights"


class Demo(VLM):
    """A two-tower network of 0.7 million weights, trained on phantoms from images and sentences alone.

    It shows what the harness does without a download. On anything but phantoms its scores mean nothing.

    Args:
        template: The prompt, with `{finding}`.
    """

    def __init__(self, template: str = "There is {finding}.") -> None:
        super().__init__()
        self.template = template
        self.network = load_demo_network(_WEIGHTS).requires_grad_(False)
        self.tokenizer = Tokenizer.from_file(str(_WEIGHTS / "demo_tokenizer.json"))
        self.preprocessing = Preprocessing(stretch((224, 224)), mean=(0.5,) * 3, std=(0.25,) * 3)

    def default_prompts(self, finding: str) -> list[str]:
        """Return the one prompt."""
        return fill_templates([self.template], finding)

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Encode C prompts, one per finding, to (C, D) vectors of unit length."""
        encoded = self.tokenizer.encode_batch([prompt for (prompt,) in prompts])
        return self.encode_tokens(
            torch.tensor([tokens.ids for tokens in encoded]),
            torch.tensor([tokens.attention_mask for tokens in encoded]),
        )

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode token ids (C, L) with their mask (C, L), 1 for words and 0 for padding, to (C, D)."""
        return self.network.encode_text(input_ids.to(self.device), attention_mask.to(self.device))

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score images (B, 3, 224, 224) against queries (C, D); the map is the cosine of patch and prompt."""
        logits, saliency = self.network(images, queries)
        return ModelOutput(logits=logits, probabilities=torch.sigmoid(logits), saliency=saliency)

    def provenance(self) -> dict[str, Any]:
        """Return the digest of the weights, and the prompts."""
        return {"checkpoint_sha256": file_sha256(_WEIGHTS / "demo.safetensors"), **super().provenance()}
