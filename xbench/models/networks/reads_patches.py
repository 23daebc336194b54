"""Language models that read the patches of an image in the place of as many tokens.

Their checkpoints come with code of their own, which is not run: the parts are those of libraries, put together under
the names that the published tensors have.
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


class PatchProcessor:
    """What transformers' processors are to other networks: turns in words, and an image in numbers.

    Attributes:
        side: Pixels of the square that the network sees.
        mark: Stands in the words for an image; `span` is what the network reads there.
    """

    tokenizer: Any
    chat_template: Any = "built in"
    image_processor = "built in"
    side: int
    mark: str
    span: str

    @abstractmethod
    def words(self, turn: Sequence[Any]) -> str:
        """Return the words of a conversation, with the mark of its image."""

    @abstractmethod
    def pixels(self, image: Image.Image) -> Tensor:
        """Return an image of any size as the network gets it: (1, 3, S, S)."""

    def apply_chat_template(self, turns: Sequence[Any], tokenize: bool, **options: Any) -> Any:
        """Return the words of conversations that have an image each, or the tokens and the pixels of that image."""
        texts = [self.words(turn) for turn in turns]
        if not tokenize:
            return texts
        image = next(part["image"] for part in turns[0][-1]["content"] if part["type"] == "image")
        spanned = [text.replace(self.mark, self.span, 1) for text in texts]
        # A text begins once, whether the template or the tokeniser says so.
        begun = spanned[0].startswith(self.tokenizer.bos_token or "\0")
        tokens = self.tokenizer(
            spanned, padding=True, return_tensors="pt", return_token_type_ids=False, add_special_tokens=not begun
        )
        return BatchFeature({**tokens, "pixel_values": self.pixels(image)})
