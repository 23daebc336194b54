"""Language models that read the patches of an image in the place of as many tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import BatchFeature

from xbench.models.networks.checkpoint import first_line
from xbench.runtime.errors import UserError


class ReadsPatches:
    """Mixed into a causal language model of transformers, before its class.

    Attributes:
        image_token: Stands in the input wherever a patch is read.
    """

    image_token: int

    @abstractmethod
    def patches(self, pixels: Tensor) -> Tensor:
        """Return the patches of images (B, 3, S, S) as words, row by row: (B, N, D)."""

    def embedded(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        """Return what is read of queries (B, T) about one image (1, 3, S, S): (B, T, D)."""
        words = self.get_input_embeddings()(input_ids)  # type: ignore[attr-defined]
        seen = self.patches(pixel_values).to(words.dtype)
        words[input_ids == self.image_token] = seen.expand(len(words), -1, -1).flatten(0, 1)
        return words  # type: ignore[no-any-return]

    @torch.no_grad()
    def generate(self, *inputs: Any, **options: Any) -> Any:
        """Answer queries about one image, as any network of transformers does."""
        read = self.embedded(options["input_ids"], options.pop("pixel_values"))
        return super().generate(*inputs, inputs_embeds=read, **options)  # type: ignore[misc]


def with_image(tokenizer: Any, texts: Sequence[str], pixels: Tensor, special: bool = True) -> BatchFeature:
    """Return the input of queries about one image: tokens, padded as the tokeniser does, and its pixels (1, 3, S, S).

    Args:
        tokenizer: Of the words.
        texts: With the token of the image as often as it has patches.
        pixels: Of the image.
        special: Whether the tokeniser adds the tokens with which a text begins.
    """
    tokens = tokenizer(
        list(texts), padding=True, return_tensors="pt", return_token_type_ids=False, add_special_tokens=special
    )
    return BatchFeature({**tokens, "pixel_values": pixels})


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of all tensors of a checkpoint of safetensors.

    Raises:
        UserError: A file cannot be read.
    """
    try:
        shapes: dict[str, list[int]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        return shapes
    except (OSError, SafetensorError) as error:
        raise UserError(f"The weights in {folder} cannot be read ({first_line(error)}). Fetch them again.") from error
