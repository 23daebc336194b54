"""What MedKLIP and MAVL share: a ResNet-50 cut after its third stage, Bio_ClinicalBERT, and a book asked as a whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torchvision  # type: ignore[import-untyped]
from torch import Tensor, nn

from xbench.errors import UserError
from xbench.geometry.grid import Upsampling
from xbench.geometry.preprocessing import HistogramEqualisation, PillowResize, Preprocessing
from xbench.models.base import VLM, file_sha256
from xbench.models.components.bert import (
    config_file,
    encode_in_chunks,
    load_bert,
    tokenise_without_separator,
    weights_file,
)
from xbench.models.components.book import (
    OFFICIAL_ENTRIES,
    Book,
    entry_of,
    own_entries,
    own_texts,
    read_entries,
    with_findings,
)
from xbench.models.components.query_decoder import Layers, QueryDecoder, choose
from xbench.types import ModelOutput

__all__ = ["BookModel", "BookNetwork", "Layers", "Upsampling", "preprocessing", "trunk"]

WIDTH = 256
"""Width of queries and image tokens."""

TRUNK_WIDTH = 1024
"""Channels of the third stage of a ResNet-50."""

_STRIDE = 16


def trunk() -> nn.Sequential:
    """Return a ResNet-50 up to its third stage: images (B, 3, H, W) to (B, 1024, H / 16, W / 16)."""
    resnet = torchvision.models.resnet50(weights=None)
    return nn.Sequential(*list(resnet.children())[:7])


def preprocessing(image_size: int, equalise: bool) -> Preprocessing:
    """Return the preprocessing of both: stretched to a square, before that equalised if so wanted."""
    resize = PillowResize(image_size, "both", "bilinear")
    return Preprocessing(
        [HistogramEqualisation(), resize] if equalise else [resize],
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )


class BookNetwork(nn.Module):
    """The parts that both networks have, under the names of the authors' files."""

    def __init__(self, head_inputs: int) -> None:
        super().__init__()
        self.disease_embedding_layer = nn.Linear(768, WIDTH)
        self.decoder = QueryDecoder(WIDTH, heads=4)
        self.classifier = nn.Linear(head_inputs, 2)

    def classify(self, decoded: Tensor) -> Tensor:
        """Return the logits of absent and present (..., 2), float32, as half precision has too few digits to rank."""
        with torch.autocast(decoded.device.type, enabled=False):
            return nn.functional.linear(decoded.float(), self.classifier.weight.float(), self.classifier.bias.float())


class BookModel(VLM):
    """A model that reads every image with a book. The arguments are those of `xbench.models.medklip.MedKLIP`.

    Args:
        model: The network with its weights.
        texts: Number of texts of an entry.
        concepts: File of the texts beside the explanation.
        **options: Those of every vision-language model, see `xbench.models.base.VLM`. Prompts stand in the place of a
            finding's entry: a single one in that of its explanation, eight for MAVL in that of its aspects.
    """

    model: Any
    book: Book

    def __init__(
        self,
        model: BookNetwork,
        checkpoint: Path,
        *,
        texts: int,
        text_encoder: str,
        book: str | None,
        concepts: str | None,
        equalise: bool,
        image_size: int,
        layers: Layers,
        heads: list[int] | None,
        saliency_upsample: Upsampling,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if image_size < _STRIDE or image_size % _STRIDE:
            raise UserError(
                f"--model.image_size {image_size}: the image encoder makes a token of every {_STRIDE} x {_STRIDE} "
                f"pixels; give a multiple of {_STRIDE}.",
                exit_status=2,
            )
        self.model = model.eval().requires_grad_(False)
        self.checkpoint = checkpoint
        self.texts = texts
        self.text_encoder = text_encoder
        self.image_size = image_size
        self.equalise = equalise
        self.layers = choose("layers", layers, 4)
        self.heads = choose("heads", heads, 4)
        self.saliency_upsample = saliency_upsample
        self._files = [Path(file).expanduser() for file in (book, concepts) if file is not None]
        self._entries = own_entries(texts) if book is None else read_entries(book, concepts, texts)
        self.preprocessing = preprocessing(image_size, equalise)

    def default_prompts(self, finding: str) -> list[str]:
        """Return the texts of the finding's entry in the book; for lack of one, those of the package."""
        name = entry_of(finding, self._entries)
        return own_texts(finding, self.texts) if name is None else list(self._entries[name])

    def setup(self, stage: str) -> None:
        """Put the prompts of the dataset's findings into the book."""
        super().setup(stage)
        self.book = with_findings(self._entries, self.findings, self.prompts)
        self.prompts = [list(self.book.entries[column]) for column in self.book.columns]
        self.columns = self.book.indices

    def weights(self) -> Mapping[str, Tensor]:
        """Return the tensors under the authors' names."""
        return self.model.state_dict()

    def asked(self) -> Sequence[Sequence[str]]:
        """Return the texts of the whole book."""
        return list(self.book.entries.values())

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Tensor:
        """Encode the texts of C classes as `encode_tokens` does, those beyond 64 word pieces cut off as by the authors.

        Raises:
            UserError: Not the number of texts that the model takes, or the vocabulary cannot be had.
        """
        counts = {len(of_class) for of_class in prompts}
        if counts != {self.texts}:
            raise UserError(
                f"{self.name} takes {self.texts} prompts per class, got {' and '.join(map(str, sorted(counts)))}."
            )
        return self.encode_tokens(*self._tokenise(prompts))

    @torch.no_grad()
    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode the tokenised texts of all classes, which are to be asked together.

        Args:
            input_ids: (C, L), or (C, K, L) for K texts per class; int64, [CLS] first.
            attention_mask: Same shape. Without it, all tokens count but the padding, which has id 0.

        Returns:
            Queries (C, K, 256) float32.

        Raises:
            UserError: Other shapes, or a text encoder that cannot be had.
        """
        if attention_mask is None:
            attention_mask = (input_ids != 0).long()
        given = input_ids.shape if input_ids.ndim == 3 else (*input_ids.shape[:1], 1, *input_ids.shape[1:])
        if len(given) != 3 or given[1] != self.texts or attention_mask.shape != input_ids.shape:
            wanted = "(C, L)" if self.texts == 1 else f"(C, {self.texts}, L)"
            raise UserError(
                f"{self.name} takes token ids and attention mask of shape {wanted}, got {tuple(input_ids.shape)} and "
                f"{tuple(attention_mask.shape)}."
            )
        bert = self._bert.to(self.device)
        first = encode_in_chunks(
            lambda ids, mask: bert(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0],
            input_ids.reshape(-1, input_ids.shape[-1]).to(self.device),
            attention_mask.reshape(-1, input_ids.shape[-1]).to(self.device),
        )
        return self.model.disease_embedding_layer(first).unflatten(0, (-1, self.texts))

    @abstractmethod
    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score images (B, 3, H, W), normalised, against the queries of C classes, from `encode_tokens`."""

    def decode(self, tokens: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Look at image tokens with all queries together.

        Args:
            tokens: (B, 256, rows, columns).
            queries: (C, K, 256).

        Returns:
            Decoded queries (B, C, K, 256), and their attention to the tokens, mean over the chosen layers and heads,
            (B, C, K, rows, columns), which sums to 1 over the tokens.
        """
        decoder = self.model.decoder
        memory = decoder.keys_values(tokens.flatten(2).transpose(1, 2))
        decoded, attention = decoder(queries.flatten(0, 1)[None].to(tokens.dtype), memory, self.layers)
        weights = torch.stack([attention[layer][:, self.heads] for layer in self.layers]).float().mean(dim=(0, 2))
        shape = queries.shape[:2]
        return decoded.unflatten(1, shape), weights.unflatten(1, shape).unflatten(-1, tokens.shape[2:])

    def provenance(self) -> dict[str, Any]:
        """Return weights, text encoder, preprocessing, map, book and prompts."""
        book = self.book
        return {
            "checkpoint": str(self.checkpoint),
            "checkpoint_sha256": file_sha256(self.checkpoint),
            "text_encoder": self.text_encoder,
            "text_encoder_sha256": file_sha256(weights_file(self.text_encoder)),
            "image_size": self.image_size,
            "equalise": self.equalise,
            "saliency": {"kind": "cross-attention", "layers": self.layers, "heads": self.heads},
            "book": {
                "files": {str(file): file_sha256(file) for file in self._files},
                "official": {*OFFICIAL_ENTRIES} <= {*book.entries},
                "entries": list(book.entries),
                "columns": dict(zip(self.findings, book.columns, strict=True)),
                "added": list(book.added),
            },
            **super().provenance(),
        }

    def queries_depend_on(self) -> Mapping[str, Any]:
        """Return checkpoint, text encoder and the token ids of the book."""
        return {
            "checkpoint_sha256": file_sha256(self.checkpoint),
            "text_encoder": [file_sha256(file(self.text_encoder)) for file in (config_file, weights_file)],
            "token_ids": self._tokenise(self.asked())[0].tolist(),
        }

    def _tokenise(self, prompts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask (C, K, 64) of the texts of C classes."""
        flat = [text for of_class in prompts for text in of_class]
        input_ids, attention_mask = tokenise_without_separator(self.text_encoder, flat)
        return input_ids.unflatten(0, (-1, self.texts)), attention_mask.unflatten(0, (-1, self.texts))

    @cached_property
    def _bert(self) -> Any:
        # Beside the modules, as its weights are not the checkpoint's.
        return load_bert(self.text_encoder)
