"""Transformer decoder of MedKLIP, MAVL, KAD, DeViDe and CARZero, with the authors' names of parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.geometry.grid import Upsampling
from xbench.models.base import VLM, check_image_size
from xbench.runtime.errors import UsageError, UserError
from xbench.types import MapScale, ModelOutput

Layers = Literal["all", "last"] | list[int]
"""Decoder layers, from 0, whose attention makes the map."""

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of the memory in one layer, each (B, heads, N, width of a head)."""
Decoded = tuple[Tensor, list[Tensor]]


class QueryDecoder(nn.Module):
    """Pre-norm decoder layers of width D, and a final layer norm that some models also apply to their inputs.

    With `self_attention`, queries first attend to one another. Attention is fused unless its weights are wanted.
    """

    def __init__(
        self, width: int, heads: int, *, self_attention: bool = True, layers: int = 4, feedforward: int = 1024
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width, heads, feedforward, self_attention) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def keys_values(self, memory: Tensor) -> list[KeysValues]:
        return [layer.multihead_attn.keys_values(memory) for layer in self.layers]  # type: ignore[union-attr, operator]

    def forward(self, queries: Tensor, memory: Sequence[KeysValues], attention_of: Collection[int] = ()) -> Decoded:
        """Decode queries (B, Q, D), or (1, Q, D) if all images have the same, with memory from `keys_values`.

        Also return the cross-attention weights (B, heads, Q, N) of each layer in `attention_of`, which sum to 1 over N.
        """
        attention = []
        for number, (layer, keys_values) in enumerate(zip(self.layers, memory, strict=True)):
            queries, weights = layer(queries, keys_values, number in attention_of)
            if weights is not None:
                attention.append(weights)
        return self.norm(queries), attention


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, feedforward: int, self_attention: bool) -> None:
        super().__init__()
        if self_attention:
            self.self_attn = _Attention(width, heads)
            self.norm1 = nn.LayerNorm(width)
        self.multihead_attn = _Attention(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, feedforward), nn.Linear(feedforward, width)
        self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width)
        self._self_attention = self_attention

    def forward(self, queries: Tensor, memory: KeysValues, wanted: bool) -> tuple[Tensor, Tensor | None]:
        if self._self_attention:
            normed = self.norm1(queries)
            queries = queries + self.self_attn(normed, self.self_attn.keys_values(normed))[0]
        seen, weights = self.multihead_attn(self.norm2(queries), memory, wanted)
        queries = queries + seen
        return queries + self.linear2(F.relu(self.linear1(self.norm3(queries)))), weights


class _Attention(nn.MultiheadAttention):
    """PyTorch's attention with keys and values that are projected once for many queries."""

    def keys_values(self, tokens: Tensor) -> KeysValues:
        width = self.embed_dim
        projected = F.linear(tokens, self.in_proj_weight[width:], self.in_proj_bias[width:])
        keys, values = projected.unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return keys, values

    def forward(  # type: ignore[override]
        self, queries: Tensor, memory: KeysValues, wanted: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        (keys, values), width, weights = memory, self.embed_dim, None
        projected = F.linear(queries, self.in_proj_weight[:width], self.in_proj_bias[:width])
        split = projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).expand(len(keys), -1, -1, -1)
        if wanted:
            weights = torch.softmax((split * split.shape[-1] ** -0.5) @ keys.transpose(-2, -1), dim=-1)
            attended = weights @ values
        else:
            attended = F.scaled_dot_product_attention(split, keys, values)
        return self.out_proj(attended.transpose(1, 2).flatten(2)), weights


class DecoderModel(VLM):
    """A model whose decoder queries image tokens with texts, and whose maps are the texts' attention.

    Args:
        cell: Side of an image token in pixels.
        decoder: Numbers of layers and heads of the decoder.
        text_encoder: Hugging Face id or local folder of the text encoder; by default only its tokenizer is used.
        image_size: Side of the square input in pixels. Position embeddings of another size are interpolated.
        layers: Decoder layers, from 0, whose attention makes the map, or `all` or `last`.
        heads: Attention heads, from 0, to average for the map; all by default.
        saliency_upsample: How to enlarge maps to the evaluation grid.
    """

    map_scale: MapScale = "attention"
    stated = "checkpoint text_encoder image_size saliency"

    def __init__(
        self,
        checkpoint: Path,
        cell: int,
        decoder: tuple[int, int],
        text_encoder: str,
        image_size: int = 224,
        layers: Layers = "all",
        heads: list[int] | None = None,
        saliency_upsample: Upsampling = "bilinear",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_image_size(image_size, cell)
        # Some checkpoints have a network named `text_encoder`.
        self.checkpoint, self.text_source, self.image_size = checkpoint, text_encoder, image_size
        self.layers = choose("layers", layers, decoder[0])
        self.heads = choose("heads", heads, decoder[1])
        self.saliency = {"kind": "cross-attention", "layers": self.layers, "heads": self.heads}
        self.saliency_upsample = saliency_upsample

    @abstractmethod
    def tokenise(self, prompts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask, each (C, L) or (C, K, L) int64, of the prompts of C classes."""

    @abstractmethod
    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        """Encode tokenized prompts, (C, L) or (C, K, L); the default mask is 0 where the id is."""

    def encode_prompts(self, prompts: Sequence[Sequence[str]]) -> Any:
        return self.encode_tokens(*self.tokenise(prompts))

    def by_class(self, input_ids: Tensor, attention_mask: Tensor | None, texts: int | None) -> tuple[Tensor, Tensor]:
        """Return ids and mask as (C, K, L) int64 on the model's device; raise a UserError if K is not `texts`."""
        mask = input_ids != 0 if attention_mask is None else attention_mask
        ids = input_ids[:, None] if input_ids.ndim == 2 else input_ids
        if ids.ndim != 3 or input_ids.shape != mask.shape or texts not in (None, ids.shape[1]):
            raise UserError(
                f"{self.name} takes token ids and attention mask of shape (C, {texts or 'K'}, L), not "
                f"{tuple(input_ids.shape)} and {tuple(mask.shape)}."
            )
        return ids.long().to(self.device), mask.reshape(ids.shape).long().to(self.device)

    def mean_attention(self, attention: Sequence[Tensor]) -> Tensor:
        """Average the attention (B, heads, Q, N) of the chosen layers over these and the heads, (B, Q, N) float32."""
        return torch.stack([weights[:, self.heads] for weights in attention]).float().mean(dim=(0, 2))


def classify(head: nn.Linear, decoded: Tensor) -> Tensor:
    """Return the logits of a linear head in float32, because half precision has too few digits to rank them."""
    with torch.autocast(decoded.device.type, enabled=False):
        return F.linear(decoded.float(), head.weight.float(), head.bias.float())


def absent_or_present(logits: Tensor, saliency: Tensor) -> ModelOutput:
    """Return the output for logits of absent and present (B, C, 2): their difference and softmax."""
    return ModelOutput(logits[..., 1] - logits[..., 0], logits.softmax(dim=-1)[..., 1], saliency)


def choose(option: str, given: str | Sequence[int] | None, count: int) -> list[int]:
    """Return the numbers, ascending, that an option selects from `count` layers or heads; None selects all."""
    everything = list(range(count))
    named = {"all": everything, "last": everything[-1:]}
    numbers = everything if given is None else named.get(given, []) if isinstance(given, str) else sorted(given)
    if not numbers or len({*numbers}) < len(numbers) or not {*numbers} <= {*everything}:
        advice = f"give different numbers from 0 to {count - 1}"
        raise UsageError(f"--model.{option} {given}: there are {count} {option}; {advice}.")
    return numbers
