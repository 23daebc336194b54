"""RadZero's arithmetic in plain NumPy, its files and options; the authors' numbers are in `test_golden.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deterministic_checkpoints import write_checkpoint
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from scipy.special import erf
from small_networks import attached

from xbench.geometry.transforms import MinMax
from xbench.models import RadZero
from xbench.runtime.errors import UsageError, UserError

LOSS = "loss_fns.RadZeroLoss."
Array = NDArray[np.float64]


@pytest.fixture
def files(small: None, tmp_path: Path) -> Path:
    write_checkpoint("radzero", tmp_path)
    return tmp_path


def change(files: Path, rename: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    save_file(rename(load_file(files / "model.safetensors")), files / "model.safetensors")
    return str(files)


def norm(x: Array, weights: dict[str, Array], name: str, eps: float = 1e-6) -> Array:
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def block(x: Array, weights: dict[str, Array], name: str, heads: int) -> Array:
    def linear(x: Array, part: str) -> Array:
        return x @ weights[f"{name}.{part}.weight"].T + weights[f"{name}.{part}.bias"]

    seen, attended = norm(x, weights, f"{name}.norm1"), np.empty_like(x)
    query, key, value = (linear(seen, f"attention.attention.{part}") for part in ("query", "key", "value"))
    for columns in np.split(np.arange(x.shape[1]), heads):
        shares = np.exp(query[:, columns] @ key[:, columns].T / math.sqrt(len(columns)))
        attended[:, columns] = shares / shares.sum(-1, keepdims=True) @ value[:, columns]
    x = x + weights[f"{name}.layer_scale1.lambda1"] * linear(attended, "attention.output.dense")
    hidden = linear(norm(x, weights, f"{name}.norm2"), "mlp.fc1")
    return x + weights[f"{name}.layer_scale2.lambda1"] * linear(hidden * (1 + erf(hidden / 2**0.5)) / 2, "mlp.fc2")


def bicubic(positions: int, cells: int, factor: float) -> Array:
    """Weights (cells, positions) of cubic convolution (a = -0.75) with repeated borders."""
    weights = np.zeros((cells, positions))
    for cell in range(cells):
        place = (cell + 0.5) / factor - 0.5
        for tap in range(math.floor(place) - 1, math.floor(place) + 3):
            d = abs(place - tap)
            near, far = 1.25 * d**3 - 2.25 * d**2 + 1, -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
            weights[cell, min(max(tap, 0), positions - 1)] += near if d <= 1 else far
    return weights


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize(("positions", "more"), [("scale", 0.1), ("size", 0.0)])
def test_the_network_in_plain_numpy(files: Path, positions: Any, more: float) -> None:
    model = RadZero(str(files), image_size=70, positions=positions)
    weights = {name: tensor.double().numpy() for name, tensor in load_file(files / "model.safetensors").items()}
    generator = torch.Generator().manual_seed(11)
    images, queries = torch.randn(2, 3, 70, 70, generator=generator), torch.randn(3, 64, generator=generator)
    output = model(images, queries)
    sentences = unit(norm(queries.double().numpy(), weights, f"{LOSS}layer_norm", 1e-5))
    along = bicubic(16, 5, (5 + more) / 16)
    stored = weights["vision_model.embeddings.position_embeddings"][0]
    grid = np.einsum("ri,cj,ijd->rcd", along, along, stored[1:].reshape(16, 16, 64)).reshape(25, 64)
    kernel = weights["vision_model.embeddings.patch_embeddings.projection.weight"]
    for row, image in enumerate(images.double().numpy()):
        patches = np.einsum("cyixj,dcij->yxd", image.reshape(3, 5, 14, 5, 14), kernel).reshape(25, 64)
        patches += weights["vision_model.embeddings.patch_embeddings.projection.bias"] + grid
        x = np.concatenate([weights["vision_model.embeddings.cls_token"][0] + stored[:1], patches])
        x = norm(block(x, weights, "vision_model.encoder.layer.0", 2), weights, "vision_model.layernorm")
        for layer in range(2):
            x = block(x, weights, f"align_transformer.transformer_layers.layer.{layer}", 2)
        tokens = unit(norm(x, weights, f"{LOSS}layer_norm", 1e-5))
        similarities = sentences @ tokens.T / 0.07
        shares = np.exp(similarities) / np.exp(similarities).sum(-1, keepdims=True)
        logits = (unit(shares @ tokens) * sentences).sum(-1) / 0.07
        np.testing.assert_allclose(output.logits[row], logits, rtol=0, atol=2e-5)
        np.testing.assert_allclose(output.saliency[row], similarities[:, 1:].reshape(3, 5, 5), rtol=0, atol=5e-5)
    assert model.map_scale == "logit"


def test_a_sentence_is_the_mean_of_its_tokens_in_whatever_company(files: Path) -> None:
    model = attached(RadZero(str(files)), "Nodule", "Fracture")
    with torch.inference_mode():
        together = model.encode_prompts(model.prompts)
        alone = torch.cat([model.encode_prompts([prompts]) for prompts in model.prompts])
        ids = torch.tensor([[0, 30, 31, 32, 2]])
        states = model.text_model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        padded = torch.tensor([[0, 30, 31, 32, 2, 1, 1]])
        torch.testing.assert_close(model.encode_tokens(padded), states.mean(dim=1), rtol=0, atol=1e-6)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    with pytest.raises(UsageError, match="exactly one prompt per finding"):
        model.encode_prompts([["There is Edema", "There is Mass"]])
    assert attached(RadZero(str(files), prompts="name"), "Edema").prompts == [["There is Edema"]]


@pytest.mark.parametrize("old, new", [(LOSS, ""), (LOSS, "loss."), ("attention.attention.query", "attention.q_proj")])
def test_names_that_files_may_have(files: Path, old: str, new: str) -> None:
    expected = RadZero(str(files)).state_dict()
    model = RadZero(change(files, lambda tensors: {name.replace(old, new): own for name, own in tensors.items()}))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
    assert model.weights().keys() == load_file(files / "model.safetensors").keys()


@pytest.mark.parametrize("name", ["loss_temperature", "layer_norm.bias"])
def test_what_belongs_to_the_loss_may_not_be_missing(files: Path, name: str) -> None:
    folder = change(files, lambda tensors: {key: tensor for key, tensor in tensors.items() if key != LOSS + name})
    with pytest.raises(UserError, match=rf"do not fit RadZero: 1 missing \({name}\)"):
        RadZero(folder)


def test_unused_tensors_and_more_positions(files: Path) -> None:
    name = "vision_model.embeddings.position_embeddings"
    unused = {"text_model.pooler.dense.bias": torch.zeros(64), "vision_model.embeddings.mask_token": torch.zeros(1, 64)}
    folder = change(files, lambda tensors: {**tensors, **unused, name: tensors[name][:, :26].contiguous()})
    model = RadZero(folder, image_size=70)
    assert model._position_embeddings(5, 5) is model.vision_model.embeddings.position_embeddings


def test_settings_come_from_the_authors_file(files: Path, tmp_path: Path) -> None:
    pixels = np.arange(20, 220, dtype=np.uint8).reshape(10, 20)
    model = RadZero(str(files))
    tensor, view = model.preprocessing(pixels)
    assert tensor.shape == (3, 224, 224) and view == (0, 0, 1, 1)
    for channel, mean, std in zip(tensor, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), strict=True):
        assert (float(channel.min()), float(channel.max())) == pytest.approx((-mean / std, (1 - mean) / std))
    noted = tmp_path / "clean.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in model.weights().items()}, noted, model.remarks())
    settings = files / "preprocessor_config.json"
    settings.write_text(json.dumps({"size": {"height": 224, "width": 200}}))
    assert torch.equal(RadZero(str(noted)).preprocessing(pixels)[0], tensor)
    for content in (settings.read_text(), "{}", "no JSON"):
        settings.write_text(content)
        with pytest.raises(UserError, match=r"preprocessor_config\.json is not .* of RadZero"):
            RadZero(str(files))
    with pytest.raises(UserError, match=r"does not exist.*Deepnoid/RadZero on huggingface\.co"):
        RadZero(str(tmp_path / "gone.safetensors"))


def test_grey_values_are_stretched_per_image() -> None:
    image = np.array([[10, 60], [110, 35]], np.uint8)
    np.testing.assert_array_equal(MinMax().apply(image), [[0, 128], [255, 64]])
    assert not MinMax().apply(np.full((2, 2), 7, np.uint8)).any()
