"""MedKLIP and MAVL as plain functions of an official file's tensors, and what their golden vectors were made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from deterministic import weight
from golden import shapes_of
from torch import Tensor
from torchvision.models import resnet50  # type: ignore[import-untyped]
from transformers import BertConfig, BertModel

from xbench.models.networks.book import OFFICIAL_ENTRIES

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "heart", "lung", "white", "large"]
VOCABULARY += ["##r", ",", ".", ":"]


# Files


def official_weights(model: str, draw: Callable[[str, tuple[int, ...]], Tensor] = weight) -> dict[str, Tensor]:
    return {name: draw(name, shape) for name, shape in shapes_of(model).items()}


def write_official(weights: dict[str, Tensor], folder: Path) -> str:
    """Write a checkpoint as the authors' training scripts do."""
    path = folder / "checkpoint_final.pth"
    wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
    extra = {"optimizer": {"state": {}, "param_groups": [{"lr": 1e-4}]}, "config": {"d_model": 256}, "epoch": 39}
    torch.save({"model": wrapped, **extra}, path)
    return str(path)


def write_small_bert(folder: Path) -> str:
    """Write a text encoder of one layer that knows `VOCABULARY`."""
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(VOCABULARY), num_hidden_layers=1, intermediate_size=64)
    BertModel(config).eval().save_pretrained(folder)
    return str(folder)


def write_book(path: Path, *more: str, without: str = "", renamed: dict[str, str] | None = None) -> str:
    """Write a book with the names of the official one, and a text that tells where an entry stands."""
    names = [name for name in (*OFFICIAL_ENTRIES, *more) if name != without]
    names = [(renamed or {}).get(name, name) for name in names]
    path.write_text(json.dumps({name: f"{name} at {number}" for number, name in enumerate(names)}))
    return str(path)


# The networks


def trunk_features(weights: dict[str, Tensor], prefix: str, images: Tensor) -> Tensor:
    resnet = resnet50().eval()
    places = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3"}
    named = {}
    for name, tensor in weights.items():
        if name.startswith(prefix):
            place, _, rest = name.removeprefix(prefix).partition(".")
            named[f"{places[place]}.{rest}"] = tensor
    resnet.load_state_dict(named, strict=False)
    stem = resnet.maxpool(resnet.bn1(resnet.conv1(images)).relu())
    return resnet.layer3(resnet.layer2(resnet.layer1(stem)))


def decode(weights: dict[str, Tensor], queries: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Decode queries (Q, 256) for one image (N, 256), one head after the other; attention (layers, heads, Q, N)."""
    every = []

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (256,), weights[f"decoder.{name}.weight"], weights[f"decoder.{name}.bias"])

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"decoder.{name}.weight"], weights[f"decoder.{name}.bias"])

    def attend(name: str, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        matrix, bias = weights[f"decoder.{name}.in_proj_weight"], weights[f"decoder.{name}.in_proj_bias"]
        q = x @ matrix[:256].T + bias[:256]
        k = seen @ matrix[256:512].T + bias[256:512]
        v = seen @ matrix[512:].T + bias[512:]
        attention, outputs = [], []
        for head in range(4):
            own = slice(64 * head, 64 * head + 64)
            share = torch.softmax(q[:, own] @ k[:, own].T / 8, dim=1)
            attention.append(share)
            outputs.append(share @ v[:, own])
        return linear(f"{name}.out_proj", torch.cat(outputs, dim=1)), torch.stack(attention)

    x = queries
    for number in range(4):
        name = f"layers.{number}"
        y = norm(f"{name}.norm1", x)
        x = x + attend(f"{name}.self_attn", y, y)[0]
        seen, attention = attend(f"{name}.multihead_attn", norm(f"{name}.norm2", x), memory)
        every.append(attention)
        x = x + seen
        x = x + linear(f"{name}.linear2", linear(f"{name}.linear1", norm(f"{name}.norm3", x)).relu())
    return norm("norm", x), torch.stack(every)


def tokens_of(features: Tensor) -> Tensor:
    """The positions of one image (D, h, w), row by row."""
    return torch.stack(
        [features[:, row, column] for row in range(features.shape[1]) for column in range(features.shape[2])]
    )


@torch.no_grad()
def medklip(weights: dict[str, Tensor], images: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Two-way logits (B, C, 2) and attention (B, layers, heads, C, N) for queries (C, 256)."""
    logits, attention = [], []
    for image in trunk_features(weights, "res_features.", images):
        hidden = F.linear(tokens_of(image), weights["res_l1.weight"], weights["res_l1.bias"]).relu()
        memory = F.linear(hidden, weights["res_l2.weight"], weights["res_l2.bias"])
        decoded, seen = decode(weights, queries, memory)
        logits.append(F.linear(decoded, weights["classifier.weight"], weights["classifier.bias"]))
        attention.append(seen)
    return torch.stack(logits), torch.stack(attention)


@torch.no_grad()
def mavl(weights: dict[str, Tensor], images: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same for queries (C, 9, 256), of which each has its attention; and vectors of whole images (B, 256)."""
    logits, attention, pooled = [], [], []
    for image in trunk_features(weights, "backbone.", images):
        tokens = tokens_of(image)
        hidden = F.linear(tokens, weights["res_l1.0.weight"][:, :, 0, 0], weights["res_l1.0.bias"])
        hidden = torch.where(hidden > 0, hidden, weights["res_l1.1.weight"] * hidden)
        memory = F.linear(hidden, weights["res_l2.weight"][:, :, 0, 0], weights["res_l2.bias"])
        decoded, seen = decode(weights, queries.flatten(0, 1), memory)
        of_class = decoded.reshape(len(queries), 9 * 256)
        logits.append(F.linear(of_class, weights["classifier.weight"], weights["classifier.bias"]))
        attention.append(seen.unflatten(2, queries.shape[:2]))
        if len(tokens) == 196:
            pooled.append(_pool(weights, tokens))
    return torch.stack(logits), torch.stack(attention), torch.stack(pooled) if pooled else torch.empty(0)


def _pool(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Multi-head attention of the mean over itself and the tokens (N, 1024), one head after the other."""

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"pool.{name}.weight"], weights[f"pool.{name}.bias"])

    x = torch.cat([tokens.mean(dim=0, keepdim=True), tokens]) + weights["pool.positional_embedding"]
    q, k, v = linear("q_proj", x[0]), linear("k_proj", x), linear("v_proj", x)
    heads = [slice(128 * head, 128 * head + 128) for head in range(8)]
    seen = [torch.softmax(k[:, own] @ q[own] / 128**0.5, dim=0) @ v[:, own] for own in heads]
    return linear("c_proj", torch.cat(seen))
