"""Small stand-ins for networks that loaders build in one size only; `write_checkpoint` writes files that fit them."""

from __future__ import annotations

from typing import Any

import pytest
from deterministic_checkpoints import BERT, BLOCKS
from transformers import BertConfig, BertModel

from xbench.models import carzero, devide, kad
from xbench.models.components import kebert as _kebert
from xbench.models.components.vit import ViTB16


class ShallowViT(ViTB16):
    """A ViT-B/16 of its first two blocks."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.blocks = self.blocks[:BLOCKS]


def small_bert() -> BertModel:
    return BertModel(BertConfig(**BERT)).eval().requires_grad_(False)


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Make CARZero, KAD and DeViDe build small networks where their authors' are large."""
    patch.setattr(_kebert, "bert_base", small_bert)
    for module in (carzero, devide, kad):
        patch.setattr(module, "ViTB16", ShallowViT)
