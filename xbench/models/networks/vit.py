"""ViT-B/16 of KAD and DeViDe, and the names of its parameters in three implementations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from math import isqrt

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

PREFIX = "image_encoder."

_PATCH = 16


class ViTB16(VisionTransformer):
    """ViT-B/16 that returns its tokens, with the parameter names of timm's `vit_base_patch16_224` without the head.

    Position embeddings fit `image_size` and are interpolated for other sizes.
    """

    def __init__(self, image_size: int, *, norm_eps: float = 1e-6, final_norm: bool = True, flat: bool = False) -> None:
        super().__init__(
            img_size=image_size,
            patch_size=_PATCH,
            num_classes=0,
            norm_layer=partial(nn.LayerNorm, eps=norm_eps),
            dynamic_img_size=True,
            weight_init="skip",
        )
        if not final_norm:
            self.norm = nn.Identity()
        self._flat = flat

    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        """Return patch tokens (B, H / 16, W / 16, 768) of images (B, 3, H, W), or all (B, 1 + N, 768) if `flat`."""
        tokens: Tensor = self.forward_features(images)
        grid = (images.shape[-2] // _PATCH, images.shape[-1] // _PATCH)
        return tokens if self._flat else tokens[:, 1:].unflatten(1, grid)


def side_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the side in pixels of the images for which position embeddings with timm's name were trained."""
    embeddings = tensors.get(f"{PREFIX}pos_embed")
    return 224 if embeddings is None or embeddings.ndim != 3 else _PATCH * isqrt(max(embeddings.shape[1] - 1, 1))


def implementation_of(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the key of `_TELL_TALES` that fits the names of a checkpoint's image encoder, or None."""
    names = {name.removeprefix(PREFIX).removeprefix("vit.") for name in tensors if name.startswith(PREFIX)}
    return next((implementation for implementation, tell_tale in _TELL_TALES.items() if tell_tale in names), None)


def with_timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a checkpoint's image encoder to timm's names, and join its queries, keys and values.

    Drops classifier and pooler, and keeps unknown names. KAD's files have most tensors with and without `vit.`: the
    class token with it counts, because the official module reads it last, all others without it.
    """
    renamed: dict[str, Tensor] = {}
    for name in sorted(tensors, key=lambda name: name.startswith(f"{PREFIX}vit.") == name.endswith(".class_token")):
        if not name.startswith(PREFIX):
            renamed[name] = tensors[name]
            continue
        own = name.removeprefix(PREFIX).removeprefix("vit.")
        for pattern, timm in _NAMES:
            own = re.sub(pattern, timm, own)
        if not own.startswith(("head.", "fc.", "pooler.")):
            renamed[PREFIX + own] = tensors[name]
    for query in [name for name in renamed if ".attn.q." in name]:
        names = [query.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]
        # An incomplete set stays, so that loading reports the missing names.
        if {*names} <= {*renamed} and len({renamed[name].shape for name in names}) == 1:
            renamed[query.replace(".attn.q.", ".attn.qkv.")] = torch.cat([renamed.pop(name) for name in names])
    return renamed


_TELL_TALES = {
    "timm": "patch_embed.proj.weight",
    "huggingface": "embeddings.patch_embeddings.projection.weight",
    "pytorch_pretrained_vit": "patch_embedding.weight",
}
# Beginnings of names in the files of Hugging Face and pytorch_pretrained_vit, and in timm's.
_NAMES = (
    # `layers` in transformers 5 was `encoder.layer`.
    (r"^(encoder\.layer|layers|transformer\.blocks)\.", "blocks."),
    (r"^(blocks\.\d+)\.(attention\.attention\.query|attention\.q_proj|attn\.proj_q)\b", r"\1.attn.q"),
    (r"^(blocks\.\d+)\.(attention\.attention\.key|attention\.k_proj|attn\.proj_k)\b", r"\1.attn.k"),
    (r"^(blocks\.\d+)\.(attention\.attention\.value|attention\.v_proj|attn\.proj_v)\b", r"\1.attn.v"),
    (r"^(blocks\.\d+)\.(attention\.output\.dense|attention\.o_proj|proj)\b", r"\1.attn.proj"),
    (r"^(blocks\.\d+)\.(intermediate\.dense|pwff\.fc1)\b", r"\1.mlp.fc1"),
    (r"^(blocks\.\d+)\.(output\.dense|pwff\.fc2)\b", r"\1.mlp.fc2"),
    (r"^(blocks\.\d+)\.layernorm_before\b", r"\1.norm1"),
    (r"^(blocks\.\d+)\.layernorm_after\b", r"\1.norm2"),
    (r"^layernorm\b", "norm"),
    (r"^(embeddings\.cls_token|class_token)\b", "cls_token"),
    (r"^(embeddings\.position_embeddings|positional_embedding\.pos_embedding)\b", "pos_embed"),
    (r"^(embeddings\.patch_embeddings\.projection|patch_embedding)\b", "patch_embed.proj"),
)
