"""ViT-B/16 as KAD and DeViDe use it, and the names that three implementations give its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from math import isqrt

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

# What the names of an image encoder start with in a checkpoint.
PREFIX = "image_encoder."

_PATCH = 16


class ViTB16(VisionTransformer):
    """ViT-B/16 that gives its tokens; parameters have the names of timm's `vit_base_patch16_224`, less the head.

    Position embeddings are for images of `image_size` pixels, and interpolated for others. Without the final norm there
    are no parameters for it either.
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
        """Return patch tokens of images (B, 3, H, W) as (B, H / 16, W / 16, 768), or if `flat` all (B, 1 + N, 768)."""
        tokens: Tensor = self.forward_features(images)
        grid = (images.shape[-2] // _PATCH, images.shape[-1] // _PATCH)
        return tokens if self._flat else tokens[:, 1:].unflatten(1, grid)


def side_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the side in pixels of the images that position embeddings, named as timm does, were learned on."""
    embeddings = tensors.get(f"{PREFIX}pos_embed")
    return 224 if embeddings is None or embeddings.ndim != 3 else _PATCH * isqrt(max(embeddings.shape[1] - 1, 1))


def implementation_of(tensors: Mapping[str, Tensor]) -> str | None:
    """Return whose vision transformer a checkpoint's image encoder is by its names: a key of `_TELL_TALES`, or None."""
    for implementation, tell_tale in _TELL_TALES.items():
        if {f"{PREFIX}{tell_tale}", f"{PREFIX}vit.{tell_tale}"} & tensors.keys():
            return implementation
    return None


def with_timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the image encoder of a checkpoint as timm does, and put its queries, keys and values together.

    Names of a classifier or a pooler are left out, unknown names kept. KAD's files have most names with and without
    `vit.` in front: the class token counts with it, as the official module reads it last, all else without.
    """
    renamed: dict[str, Tensor] = {}
    # Of two names for one tensor, the one that counts comes last.
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
        # An odd set cannot be put together; without the name, loading says what is missing.
        if {*names} <= {*renamed} and len({renamed[name].shape for name in names}) == 1:
            renamed[query.replace(".attn.q.", ".attn.qkv.")] = torch.cat([renamed.pop(name) for name in names])
    return renamed


_TELL_TALES = {
    "timm": "patch_embed.proj.weight",
    "huggingface": "embeddings.patch_embeddings.projection.weight",
    "pytorch_pretrained_vit": "patch_embedding.weight",
}
# Beginnings of names in Hugging Face's and in pytorch_pretrained_vit's files, and what they are in timm's, in turn.
_NAMES = (
    # `layers` is what transformers 5 made of `encoder.layer`.
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
