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
    """ViT-B/16 that gives its patch tokens; parameters have the names of timm's `vit_base_patch16_224`, less the head.

    Position embeddings are for images of `image_size` pixels, and interpolated for others. Without the final norm there
    are no parameters for it either.
    """

    def __init__(self, image_size: int, *, norm_eps: float = 1e-6, final_norm: bool = True) -> None:
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

    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        """Return the patch tokens of images (B, 3, H, W), without the class token: (B, H / 16, W / 16, 768)."""
        grid = (images.shape[-2] // _PATCH, images.shape[-1] // _PATCH)
        return self.forward_features(images)[:, 1:].unflatten(1, grid)  # type: ignore[no-any-return]


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
    parts: dict[str, dict[int, Tensor]] = {}
    # Of two names for one tensor, the one that counts comes last.
    for name in sorted(tensors, key=lambda name: name.startswith(f"{PREFIX}vit.") == name.endswith(".class_token")):
        if not name.startswith(PREFIX):
            renamed[name] = tensors[name]
            continue
        own = name.removeprefix(PREFIX).removeprefix("vit.")
        if own.startswith(_UNUSED):
            continue
        if inner := _INNER.fullmatch(own):
            block, module, leaf = inner.groups()
            if module in _QKV:
                parts.setdefault(f"{PREFIX}blocks.{block}.attn.qkv.{leaf}", {})[_QKV[module]] = tensors[name]
                continue
            own = f"blocks.{block}.{_MODULES.get(module, module)}.{leaf}"
        elif outer := _OUTER.fullmatch(own):
            own = _OUTSIDE[outer[1]] + outer[2]
        renamed[PREFIX + own] = tensors[name]
    for name, three in parts.items():
        # An odd set cannot be put together; without the name, loading says what is missing.
        if len(three) == 3 and len({tensor.shape for tensor in three.values()}) == 1:
            renamed[name] = torch.cat([three[position] for position in range(3)])
    return renamed


_TELL_TALES = {
    "timm": "patch_embed.proj.weight",
    "huggingface": "embeddings.patch_embeddings.projection.weight",
    "pytorch_pretrained_vit": "patch_embedding.weight",
}
_UNUSED = ("head.", "fc.", "pooler.")
# `layers` is what transformers 5 made of `encoder.layer`.
_INNER = re.compile(r"(?:encoder\.layer|layers|transformer\.blocks)\.(\d+)\.(.+)\.(weight|bias)")
_QKV = {
    "attention.attention.query": 0,
    "attention.attention.key": 1,
    "attention.attention.value": 2,
    "attention.q_proj": 0,
    "attention.k_proj": 1,
    "attention.v_proj": 2,
    "attn.proj_q": 0,
    "attn.proj_k": 1,
    "attn.proj_v": 2,
}
_MODULES = {
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.output.dense": "attn.proj",
    "attention.o_proj": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "proj": "attn.proj",
    "pwff.fc1": "mlp.fc1",
    "pwff.fc2": "mlp.fc2",
}
_OUTSIDE = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "class_token": "cls_token",
    "positional_embedding.pos_embedding": "pos_embed",
    "patch_embedding": "patch_embed.proj",
}
_OUTER = re.compile(f"({'|'.join(map(re.escape, _OUTSIDE))})((?:\\.weight|\\.bias)?)")
