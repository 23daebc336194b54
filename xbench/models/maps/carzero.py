"""CARZero: cross-attention between sentence and image in both directions, with one decoder.

H. Lai, Q. Yao, Z. Jiang, R. Wang, Z. He, X. Tao and S. K. Zhou, "CARZero: Cross-Attention Alignment for Radiology
Zero-Shot Classification", CVPR 2024. In direction A the sentence vector of a class queries the 197 image tokens; in
direction B the image's class token queries the sentence vector and 97 word vectors of a class. One head turns each
decoded query into a number, and the score is the mean of the two. The map is the cross-attention of direction A.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import chain, pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from xbench.geometry.transforms import Preprocessing, on_black_canvas
from xbench.models.networks.checkpoint import fill, locate, read_tensors, renamed, undrawn
from xbench.models.networks.query_decoder import Decoded, DecoderModel, KeysValues, QueryDecoder
from xbench.models.networks.report_text import ReportText, clean
from xbench.models.networks.vit import ViTB16
from xbench.types import ModelOutput

_TOKENISER = "Laihaoran/BioClinicalMPBERT"
_WIDTH, _LAYERS, _HEADS, _PATCH = 768, 4, 4, 16
_SOURCE = (
    "It is CARZero_best_model.ckpt, linked from the README of github.com/laihaoran/CARZero; the weights have no stated "
    "license."
)
_UNUSED = (
    "text_encoder.model.pooler.*",
    "text_encoder.model.embeddings.position_ids",
    "fusion_module.logit_scale",
    "fusion_module.decoder.layers.*.self_attn.*",
    "fusion_module.decoder.layers.*.norm1.*",
)

OFFICIAL_NAMES = {
    "Calcification": "Tissue Calcification",
    "Consolidation": "Pulmonary Consolidation",
    "Edema": "Pulmonary Edema",
    "Emphysema": "Pulmonary Emphysema",
    "Fracture": "Bone Fracture",
    "Infiltration": "Pulmonary Infiltration",
    "Mass": "Pulmonary Mass",
    "Nodule": "Lung Nodule",
    "Pulmonary Fibrosis": "Fibrosis",
}
"""The authors' names for findings in their prompts for ChestX-ray14, CheXpert and ChestX-Det10, where they differ."""

TextQueries = tuple[Tensor, list[KeysValues]]
"""Queries of C classes: the sentence vectors (C, 768) of direction A, and the keys and values of direction B for each
layer (C, heads, 98, 768 / heads)."""


class CARZero(DecoderModel):
    """CARZero: a vision transformer (ViT-B/16), a BERT and a fusion decoder from one checkpoint.

    Only the rank of the official score within a class has a meaning. Probabilities are its sigmoid, which keeps the
    ranks.

    Args:
        checkpoint: The authors' `CARZero_best_model.ckpt`, or its tensors in a .safetensors file.
        text_encoder: Hugging Face id or local folder of the tokenizer. The weights come from the checkpoint.
        **options: Those of `xbench.models.networks.query_decoder.DecoderModel`. The canvas around the crop grows with
            `image_size`. The authors repeat each value of a map 16 x 16 (`nearest` as `saliency_upsample`).
    """

    wording, called, cleaned = "There is {}", OFFICIAL_NAMES, staticmethod(clean)

    def __init__(self, checkpoint: str | None = None, text_encoder: str = _TOKENISER, **options: Any) -> None:
        path = locate(checkpoint, "CARZero", _SOURCE)
        super().__init__(path, _PATCH, (_LAYERS, _HEADS), text_encoder=text_encoder, **options)
        self.preprocessing = preprocessing(self.image_size)
        # Official names begin with the module `CARZero` of the training script.
        tensors = {name.rpartition("CARZero.")[2]: tensor for name, tensor in read_tensors(path).items()}
        first = tensors.get("fusion_module.mlp_head.0.weight")
        self.img_encoder = undrawn(lambda: nn.Sequential(OrderedDict(model=ViTB16(224, flat=True))))
        self.fusion_module = undrawn(lambda: _Fusion(linear_head=first is not None and len(first) == 1))
        self.text_encoder = ReportText(tensors, text_encoder, "CARZero", _TOKENISER)
        tensors = renamed(tensors, {"fusion_module.decoder_norm.": "fusion_module.decoder.norm."})
        fill(self, tensors, path, "CARZero", _UNUSED)

    def tokenise(self, prompts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        return self.text_encoder.tokenise(self.one_of_each(prompts))

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> TextQueries:
        """Encode token ids (C, L) or (C, 1, L) int64, each row [CLS] to [SEP] and padding, L at most 97, as queries."""
        text = self.encode_text(input_ids, attention_mask)
        return text[:, 0], self.fusion_module.keys_values(text)

    def encode_text(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the text vectors (C, 98, 768) of tokenized prompts: sentence, words, then zeros."""
        ids, mask = (part[:, 0] for part in self.by_class(input_ids, attention_mask, 1))
        return cast(Tensor, self.text_encoder(ids, mask))

    def forward(self, images: Tensor, queries: TextQueries) -> ModelOutput:
        """Score normalized images (B, 3, image_size, image_size); maps lack the class token's share of 1."""
        sentences, text_memory = queries
        fusion = self.fusion_module
        tokens = self.img_encoder(images)
        by_sentence, attention = fusion(sentences, fusion.keys_values(tokens), attention_of=self.layers)
        # Queries do not interact, so all images query a class at once, and the classes are the batch.
        by_image, _ = fusion(tokens[:, 0], text_memory)
        logits = (by_sentence + by_image.T) / 2
        saliency = self.mean_attention(attention)[..., 1:]
        rows = images.shape[-2] // _PATCH
        return ModelOutput(logits, torch.sigmoid(logits), saliency.unflatten(-1, (rows, -1)))


class _Fusion(nn.Module):
    def __init__(self, linear_head: bool) -> None:
        super().__init__()
        self.decoder = QueryDecoder(_WIDTH, _HEADS, self_attention=False, layers=_LAYERS, feedforward=1024)
        widths = [_WIDTH] if linear_head else [_WIDTH, 1024, 512, 256]
        hidden = [(nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.1)) for before, after in pairwise(widths)]
        self.mlp_head = nn.Sequential(*chain.from_iterable(hidden), nn.Linear(widths[-1], 1))

    def keys_values(self, memory: Tensor) -> list[KeysValues]:
        return self.decoder.keys_values(self.decoder.norm(memory))

    def forward(self, queries: Tensor, memory: list[KeysValues], attention_of: Collection[int] = ()) -> Decoded:
        """Return scores (batch, Q) float32 of queries (Q, D), and the attention weights of `QueryDecoder`."""
        decoded, attention = self.decoder(self.decoder.norm(queries)[None], memory, attention_of)
        # Under autocast the head would round scores to 16 bits, too few to rank them.
        with torch.autocast(decoded.device.type, enabled=False):
            scores = self.mlp_head(decoded.to(self.mlp_head[0].weight.dtype))
        return scores.squeeze(-1).float(), attention


def preprocessing(image_size: int) -> Preprocessing:
    """Return the authors' preprocessing: fitted on a black square canvas, then cropped at the border."""
    canvas = image_size + 2 * round(image_size * 16 / 224)
    return Preprocessing(on_black_canvas(canvas, image_size), mean=(0.4978,) * 3, std=(0.2449,) * 3)
