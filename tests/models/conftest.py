from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
import transformers
from deterministic import drawn
from deterministic_checkpoints import write_tokeniser
from kad_reference import Decoder, Text, varied
from small_networks import shrink
from torch import nn

from xbench.models.maps import clip as _open_clip


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


@pytest.fixture(scope="module")
def text() -> nn.Module:
    torch.manual_seed(4)
    return varied(Text())


@pytest.fixture(scope="module")
def decoder() -> nn.Module:
    torch.manual_seed(1)
    return varied(Decoder())


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no network in tests")

    monkeypatch.setattr(_open_clip, "download_pretrained_from_hf", refuse)
    monkeypatch.setattr(open_clip, "download_pretrained", refuse)
    monkeypatch.setattr(transformers.utils.hub, "hf_hub_download", refuse)


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as BiomedCLIP's: timm image tower, BERT of one layer with its tokeniser, own mean and resizing."""
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "chest", "x", "-", "ray", "showing", "without", "edema"]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    write_tokeniser(folder, words, transformers.BertConfig(vocab_size=len(words), **sizes))
    text_cfg = {
        "hf_model_name": str(folder),
        "hf_tokenizer_name": str(folder),
        "hf_proj_type": "mlp",
        "hf_pooler_type": "cls_last_hidden_state_pooler",
        "context_length": 12,
    }
    vision_cfg = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "", "timm_proj": "linear"}
    config = {
        "model_cfg": {"embed_dim": 16, "vision_cfg": vision_cfg, "text_cfg": text_cfg},
        "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7], "resize_mode": "squash"},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False)
    positions = {"text.transformer.embeddings.position_ids": torch.arange(512)[None]}
    torch.save(drawn(model) | positions, folder / "open_clip_pytorch_model.bin")
    return folder
