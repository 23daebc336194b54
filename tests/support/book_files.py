"""The files of MedKLIP and MAVL: checkpoints, a small text encoder, and books."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from deterministic import weight
from golden import shapes_of
from torch import Tensor
from transformers import BertConfig, BertModel

from xbench.findings.prompts import wording
from xbench.models.maps.medklip import OFFICIAL_ENTRIES

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "heart", "lung", "white", "large"]
VOCABULARY += ["##r", ",", ".", ":"]


def official_weights(model: str, draw: Callable[[str, tuple[int, ...]], Tensor] = weight) -> dict[str, Tensor]:
    return {name: draw(name, shape) for name, shape in shapes_of(model).items()}


def write_official(weights: dict[str, Tensor], folder: Path) -> str:
    path = folder / "checkpoint_final.pth"
    wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
    extra = {"optimizer": {"state": {}, "param_groups": [{"lr": 1e-4}]}, "config": {"d_model": 256}, "epoch": 39}
    torch.save({"model": wrapped, **extra}, path)
    return str(path)


def write_small_bert(folder: Path) -> str:
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(VOCABULARY), num_hidden_layers=1, intermediate_size=64)
    BertModel(config).eval().save_pretrained(folder)
    return str(folder)


def write_book(path: Path, *more: str, without: str = "", renamed: dict[str, str] | None = None) -> str:
    names = [name for name in (*OFFICIAL_ENTRIES, *more) if name != without]
    names = [(renamed or {}).get(name, name) for name in names]
    path.write_text(json.dumps({name: f"{name} at {number}" for number, name in enumerate(names)}))
    return str(path)


def write_concepts(path: Path, book: str, aspects: int = 8) -> str:
    # In another order than the book: entries are told by name.
    names, kinds = reversed(json.loads(Path(book).read_text())), [*wording("Nodule").aspects][:aspects]
    path.write_text(json.dumps({name: [f"{aspect}: {name}" for aspect in kinds] for name in names}))
    return str(path)
