"""Small stand-ins for networks that loaders build in one size only, and what tests of models do with them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from deterministic_checkpoints import BERT, BLOCKS, SMALL_CLIP
from open_clip import factory
from torch import Tensor
from transformers import BertConfig, BertModel

from xbench.models import VLM
from xbench.models.maps import carzero, devide, kad, radzero
from xbench.models.maps import kad as _kebert
from xbench.models.networks.vit import ViTB16

Model = TypeVar("Model", bound=VLM)


class ShallowViT(ViTB16):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.blocks = self.blocks[:BLOCKS]


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Make CARZero, KAD, DeViDe, RadZero and CheXzero build small networks; their authors' are large."""
    patch.setitem(factory._MODEL_CONFIGS, "ViT-B-32-quickgelu", SMALL_CLIP)
    patch.setattr(_kebert, "empty_bert", lambda config, pooler: BertModel(BertConfig(**BERT)).eval())
    for module in (carzero, devide, kad):
        patch.setattr(module, "ViTB16", ShallowViT)
    small = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64}
    patch.setattr(radzero, "_VISION", {**radzero._VISION, **small})
    patch.setattr(radzero, "_TEXT", {**radzero._TEXT, **small, "vocab_size": 1000})


def attached(model: Model, *findings: str, classes: Sequence[str] = ()) -> Model:
    data = SimpleNamespace(findings=findings, classes=tuple(classes))
    model.trainer = SimpleNamespace(datamodule=data)  # type: ignore[assignment]
    model.setup("test")
    return model


def score(model: VLM, images: Tensor) -> Any:
    return model.score(SimpleNamespace(images=images))  # type: ignore[arg-type]


def largest(ours: Tensor, expected: Any) -> float:
    assert tuple(ours.shape) == tuple(np.shape(expected))
    return float((ours - torch.as_tensor(np.asarray(expected))).abs().max())
