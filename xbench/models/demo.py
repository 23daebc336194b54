"""The demo model: a tiny CLIP-style model that comes with the package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from xbench.errors import UserError
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.models.base import VLM, file_sha256
from xbench.models.components.demo_network import load_demo_network
from xbench.protocol.prompts import fill_templates
from xbench.types import ModelOutput

__all__ = ["Demo"]

_WEIGHTS = Path(__file__).parent / "weights"
_PATCH = 8


class Demo(VLM):
    """A two-tower network of 0.7 million weights, trained on phantoms from images and sentences alone.

    It shows what the harness does without a download. On anything but phantoms its scores mean nothing.

    Args:
        template: The prompt, with `{finding}`.
        image_size: Side of the input in pixels, a multiple of 8; it was trained at 224.
        **options: Those of every vision-language model. Of a finding it takes one prompt, so `aspects` are too many.

    Raises:
        UserError: `image_size` is no multiple of 8.
    """

    def __init__(self, template: str = "There is {finding}.", image_size: int = 224, **options: Any) -> None:
        super().__init__(**options)
        if image_size < _PATCH or image_size % _PATCH:
            raise UserError(
                f"--model.image_size {image_size}: the demo model makes a token of every {_PATCH} x {_PATCH} pixels; "
                f"give a multiple of {_PATCH}.",
                exit_status=2,
            )
        self.template = template
        self.image_size = image_size
        self.network = load_demo_network(_WEIGHTS).requires_grad_(False)
        self.tokenizer = Tokenizer.from_file(str(_WEIGHTS / "demo_tokenizer.json"))
        self.preprocessing = Preprocessing(stretch((image_size, image_size)), mean=(0.5,) * 3, std=(0.25,) * 3)

    def default_prompts(self, finding: str) -> list[str]:
        """Return the one prompt."""
        return fill_templates([self.template], finding)

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Encode C prompts, one per finding, to (C, D) vectors of unit length.

        Raises:
            UserError: A finding has several.
        """
        if any(len(of_finding) != 1 for of_finding in prompts):
            raise UserError(
                "The demo model takes one prompt per finding: give --model.prompts a style other than aspects, or a "
                "file with one text each.",
                exit_status=2,
            )
        encoded = self.tokenizer.encode_batch([prompt for (prompt,) in prompts])
        return self.encode_tokens(
            torch.tensor([tokens.ids for tokens in encoded]),
            torch.tensor([tokens.attention_mask for tokens in encoded]),
        )

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode token ids (C, L) with their mask (C, L), 1 for words and 0 for padding, to (C, D)."""
        return self.network.encode_text(input_ids.to(self.device), attention_mask.to(self.device))

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score images (B, 3, H, W) against queries (C, D); the map is the cosine of patch and prompt."""
        logits, saliency = self.network(images, queries)
        return ModelOutput(logits=logits, probabilities=torch.sigmoid(logits), saliency=saliency)

    def provenance(self) -> dict[str, Any]:
        """Return the digest of the weights, the size of the input, and the prompts."""
        return {
            "checkpoint_sha256": file_sha256(_WEIGHTS / "demo.safetensors"),
            "image_size": self.image_size,
            **super().provenance(),
        }
