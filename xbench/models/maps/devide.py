"""DeViDe, re-implemented from its description, because its authors published neither code nor weights.

H. Luo, Z. Zhou, C. Royer, A. Sekuboyina and B. Menze, "DeViDe: Faceted medical knowledge for improved medical
vision-language pre-training", arXiv 2404.03618, 2024. Where the paper is silent, the model follows KAD, on which it
builds, or a choice of this package; each choice is an option. Its numbers are not those of the authors' DeViDe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from xbench.models.maps.kad import SECTIONS, WIDTH, KEBERTModel, QueryModel, projection
from xbench.models.networks.checkpoint import read_remarks, read_tensors, without
from xbench.models.networks.vit import ViTB16, implementation_of, side_of, with_timm_names
from xbench.runtime.errors import UsageError, UserError

_SOURCE = (
    "DeViDe needs weights: give --model.checkpoint FILE. Its authors (arXiv 2404.03618) published neither code nor "
    "weights, so train this re-implementation yourself, or ask the authors."
)
_ADVICE = (
    "There is no official layout: --model.key_map renames the tensors of your file, and image_encoder_norm, "
    "description_pooling, head_outputs and decoder_* change the network."
)

_EPS = "image_encoder_eps"


class DeViDe(KEBERTModel):
    """A re-implementation of DeViDe: KAD's decoder over a ViT-B/16, with any number of descriptions per query.

    It could not be compared with the authors'. The vision transformer may have the names of timm, Hugging Face or
    pytorch_pretrained_vit. A checkpoint without an image projection uses an identity.

    Args:
        checkpoint: File of weights: the state dicts `image_encoder`, `text_encoder` and `model`, or one with these as
            prefixes, after `key_map`.
        description_pooling: How the descriptions' vectors become a query: their `mean`, or that of a trained `mlp`.
        head_outputs: 2 for logits of absent and present with a softmax, 1 for a single logit with a sigmoid.
        image_encoder_norm: Whether to apply the image encoder's last norm.
        image_encoder_eps: Epsilon of the image encoder's norms. By default as `convert` noted, else by the names: 1e-12
            for Hugging Face and 1e-6 otherwise.
        decoder_layers: Number of decoder layers.
        decoder_heads: Attention heads of the decoder, which its weights do not show.
        decoder_feedforward: Width of the decoder's hidden layers.
        ask: Findings to ask together: those of the `dataset`, or a list of names that includes them.
        key_map: New beginnings of names by those in the file; the longest match counts, and null drops a name.
    """

    model: _Model
    implementation = "re-implementation; the authors of DeViDe published neither code nor weights"
    stated = "implementation design"

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        description_pooling: Literal["mean", "mlp"] = "mean",
        head_outputs: Literal[1, 2] = 2,
        image_encoder_norm: bool = True,
        image_encoder_eps: float | None = None,
        decoder_layers: int = 4,
        decoder_heads: int = 4,
        decoder_feedforward: int = 1024,
        ask: Literal["dataset"] | list[str] = "dataset",
        key_map: dict[str, str | None] | None = None,
        **options: Any,
    ) -> None:
        if not checkpoint:
            raise UsageError(_SOURCE)
        if decoder_heads < 1 or WIDTH % decoder_heads:
            raise UsageError(f"--model.decoder_heads {decoder_heads} does not divide {WIDTH}, the decoder's width.")
        path = Path(checkpoint).expanduser()
        key_map = key_map or {}
        sections = dict.fromkeys([*SECTIONS, *(key.partition(".")[0] for key in key_map)])
        named = _renamed(read_tensors(path, tuple(sections)), key_map, path)
        tensors = with_timm_names(named)
        if image_encoder_eps is None:
            usual = 1e-12 if implementation_of(named) == "huggingface" else 1e-6
            image_encoder_eps = float(read_remarks(path).get(_EPS, usual))
        side = side_of(tensors)
        trained = any(name.startswith("model.image_proj.") for name in tensors)
        if not trained:
            tensors |= {"model.image_proj.weight": torch.eye(WIDTH), "model.image_proj.bias": torch.zeros(WIDTH)}
        with torch.device("meta"):
            image_encoder = ViTB16(side, norm_eps=image_encoder_eps, final_norm=image_encoder_norm)
            model = _Model(description_pooling, head_outputs, decoder_layers, decoder_heads, decoder_feedforward)
        if not image_encoder_norm:
            tensors = without(tensors, "image_encoder.norm.")
        super().__init__(path, tensors, image_encoder, model, 16, _ADVICE, ask, **options)
        self.design = {
            "image_encoder": f"ViT-B/16 of {side} pixels",
            "image_encoder_norm": image_encoder_norm,
            "image_encoder_eps": image_encoder_eps,
            "image_projection": "trained" if trained else "identity",
            "description_pooling": description_pooling,
            "head_outputs": head_outputs,
            "decoder_heads": decoder_heads,
        }

    def remarks(self) -> Mapping[str, str]:
        """Return the epsilon, because converted names no longer show it."""
        return {_EPS: repr(self.design[_EPS])}

    def encode_text(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return cast(Tensor, self.model.description_proj(super().encode_text(input_ids, attention_mask)))


class _Model(QueryModel):
    def __init__(self, pooling: str, outputs: int, layers: int, heads: int, feedforward: int) -> None:
        super().__init__(outputs, layers, heads, feedforward)
        self.image_proj = nn.Linear(WIDTH, WIDTH)
        self.description_proj = projection() if pooling == "mlp" else nn.Identity()

    def forward(self, tokens: Tensor, queries: Tensor, attention_of: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        return super().forward(self.image_proj(tokens), queries, attention_of)


def _renamed(tensors: Mapping[str, Tensor], key_map: Mapping[str, str | None], path: Path) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        beginning = max((beginning for beginning in key_map if name.startswith(beginning)), key=len, default="")
        if (new := key_map.get(beginning, "")) is None:
            continue
        new += name.removeprefix(beginning)
        if new in renamed:
            raise UserError(
                f"--model.key_map gives two names in {path} the name {new}, the second being {name}. Map one of them "
                "to null, which drops it, or to another name."
            )
        renamed[new] = tensor
    return renamed
