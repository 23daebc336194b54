"""The transformer decoder that MedKLIP, MAVL, KAD, DeViDe and CARZero share: text queries look at image tokens.

Parameters have the names of the authors' files (`layers.0.multihead_attn.in_proj_weight`, ..., `norm.weight`). Where a
model's saliency map is read, attention weights are computed explicitly; everywhere else attention is fused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.errors import UserError

Layers = Literal["all", "last"] | list[int]
"""Decoder layers, from 0, whose attention makes the map."""

KeysValues = tuple[Tensor, Tensor]
"""What one layer makes of the memory: keys and values, each (B, heads, N, width of a head)."""


class QueryDecoder(nn.Module):
    """Pre-norm decoder layers with a final layer norm; dropout, masks and position terms play no part at test time.

    Args:
        width: D, width of queries and memory.
        self_attention: Whether queries attend to one another before they look at the memory.
        feedforward: Width of the hidden layer, which is ReLU.

    Some models apply the final norm, `norm`, to queries and memory beforehand as well.
    """

    def __init__(
        self, width: int, heads: int, *, self_attention: bool = True, layers: int = 4, feedforward: int = 1024
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width, heads, feedforward, self_attention) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def keys_values(self, memory: Tensor) -> list[KeysValues]:
        """Project the memory (B, N, D) for every layer, which none of them changes; it can serve many queries."""
        return [layer.multihead_attn.keys_values(memory) for layer in self.layers]  # type: ignore[union-attr, operator]

    def forward(
        self, queries: Tensor, memory: Sequence[KeysValues], attention_of: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Decode queries.

        Args:
            queries: (B, Q, D), or (1, Q, D) for the same queries on every image.
            memory: From `keys_values`.
            attention_of: Layers, from 0, whose attention to the memory is wanted.

        Returns:
            Decoded queries (B, Q, D), and by layer the cross-attention weights (B, heads, Q, N), which sum to 1 over N.
        """
        weights = {}
        for number, (layer, keys_values) in enumerate(zip(self.layers, memory, strict=True)):
            queries, attention = layer(queries, keys_values, number in attention_of)
            if attention is not None:
                weights[number] = attention
        return self.norm(queries), weights


def choose(option: str, given: str | Sequence[int] | None, count: int) -> list[int]:
    """Return the layers, heads or the like that an option names, of `count` that there are; None stands for all.

    Raises:
        UserError: It names none, one twice, or one that there is not.
    """
    everything = list(range(count))
    named = {"all": everything, "last": everything[-1:]}
    numbers = everything if given is None else named.get(given, []) if isinstance(given, str) else list(given)
    if not numbers or len({*numbers}) < len(numbers) or not {*numbers} <= {*everything}:
        raise UserError(
            f"--model.{option} {given}: there are {count} {option}; give different numbers from 0 to {count - 1}.",
            exit_status=2,
        )
    return numbers


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, feedforward: int, self_attention: bool) -> None:
        super().__init__()
        if self_attention:
            self.self_attn = _Attention(width, heads)
            self.norm1 = nn.LayerNorm(width)
        self.multihead_attn = _Attention(width, heads)
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)
        self.norm2 = nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width)
        self._self_attention = self_attention

    def forward(self, queries: Tensor, memory: KeysValues, wanted: bool) -> tuple[Tensor, Tensor | None]:
        if self._self_attention:
            normed = self.norm1(queries)
            queries = queries + self.self_attn(normed, self.self_attn.keys_values(normed))[0]
        seen, weights = self.multihead_attn(self.norm2(queries), memory, wanted)
        queries = queries + seen
        return queries + self.linear2(F.relu(self.linear1(self.norm3(queries)))), weights


class _Attention(nn.Module):
    """Multi-head attention with the parameters of `torch.nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        self._heads = heads
        nn.init.xavier_uniform_(self.in_proj_weight)

    def keys_values(self, tokens: Tensor) -> KeysValues:
        width = tokens.shape[-1]
        projected = F.linear(tokens, self.in_proj_weight[width:], self.in_proj_bias[width:])
        keys, values = projected.unflatten(-1, (2, self._heads, -1)).permute(2, 0, 3, 1, 4)
        return keys, values

    def forward(self, queries: Tensor, memory: KeysValues, wanted: bool = False) -> tuple[Tensor, Tensor | None]:
        """Attend with queries (B, Q, D); where wanted, weights (B, heads, Q, N) come with the result."""
        keys, values = memory
        width = queries.shape[-1]
        projected = F.linear(queries, self.in_proj_weight[:width], self.in_proj_bias[:width])
        split = projected.unflatten(-1, (self._heads, -1)).transpose(1, 2)
        split = split.expand(len(keys), -1, -1, -1)
        weights = None
        if wanted:
            weights = torch.softmax((split * split.shape[-1] ** -0.5) @ keys.transpose(-2, -1), dim=-1)
            attended = weights @ values
        else:
            attended = F.scaled_dot_product_attention(split, keys, values)
        return self.out_proj(attended.transpose(1, 2).flatten(2)), weights
