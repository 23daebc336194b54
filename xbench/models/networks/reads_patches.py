"""Language models that read the patches of an image in place of image tokens.

Code from their checkpoints is not run: library parts are combined under the names of the published tensors.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import BatchFeature


class ReadsPatches:
    """Mixin for a causal language model of transformers; `image_token` marks the places of patches in the input."""

    image_token: int

    @abstractmethod
    def patches(self, pixels: Tensor) -> Tensor:
        """Return the patches of images (B, 3, S, S) as word embeddings, row by row, (B, N, D)."""

    def embedded(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        words = self.get_input_embeddings()(input_ids)  # type: ignore[attr-defined]
        seen = self.patches(pixel_values).to(words.dtype)
        words[input_ids == self.image_token] = seen.expand(len(words), -1, -1).flatten(0, 1)
        return words  # type: ignore[no-any-return]

    @torch.no_grad()
    def generate(self, *inputs: Any, **options: Any) -> Any:
        read = self.embedded(options["input_ids"], options.pop("pixel_values"))
        return super().generate(*inputs, inputs_embeds=read, **options)  # type: ignore[misc]


class PatchProcessor:
    """Counterpart of transformers' processors: words of turns, and pixels of an image.

    Attributes:
        side: Side in pixels of the square that the network sees.
        mark: Placeholder of an image in the words; the network reads `span` there.
    """

    tokenizer: Any
    side: int
    mark: str
    span: str

    @abstractmethod
    def words(self, turn: Sequence[Any]) -> str:
        """Return the words of a conversation, with the mark of its image."""

    @abstractmethod
    def pixels(self, image: Image.Image) -> Tensor:
        """Return the network's input (1, 3, S, S) for an image of any size."""

    def apply_chat_template(self, turns: Sequence[Any], tokenize: bool, **options: Any) -> Any:
        texts = [self.words(turn) for turn in turns]
        if not tokenize:
            return texts
        image = next(part["image"] for part in turns[0][-1]["content"] if part["type"] == "image")
        spanned = [text.replace(self.mark, self.span, 1) for text in texts]
        # Only one begin token, whether the template or the tokenizer adds it.
        begun = spanned[0].startswith(self.tokenizer.bos_token or "\0")
        tokens = self.tokenizer(
            spanned, padding=True, return_tensors="pt", return_token_type_ids=False, add_special_tokens=not begun
        )
        return BatchFeature({**tokens, "pixel_values": self.pixels(image)})
