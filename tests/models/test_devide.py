"""DeViDe's files and options; its numbers are held to those of KAD's authors in `test_golden.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from kad_reference import IDS, MASK, Decoder, sections, varied, write
from safetensors.torch import load_file
from small_networks import BLOCKS, largest
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

from xbench.models.maps.devide import DeViDe
from xbench.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("small")
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def content(text: nn.Module, decoder: nn.Module) -> dict[str, Any]:
    torch.manual_seed(2)
    vit = varied(timm.create_model("vit_base_patch16_224", img_size=32, num_classes=0, depth=BLOCKS))
    return sections(vit, text, decoder)


@pytest.fixture(scope="module")
def checkpoint(content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("devide"), content)


@pytest.fixture(scope="module")
def model(small: None, checkpoint: str) -> DeViDe:
    return DeViDe(checkpoint=checkpoint)


def score(model: DeViDe) -> Tensor:
    return model(IMAGES, model.encode_tokens(IDS)).logits


@pytest.mark.parametrize("saved", [True, False])
def test_a_vit_of_hugging_face_is_renamed(saved: bool, content: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(3)
    vit = varied(ViTModel(ViTConfig(image_size=32, num_hidden_layers=BLOCKS)))
    tensors = vit.state_dict()
    if saved:
        vit.save_pretrained(tmp_path)
        tensors = load_file(tmp_path / "model.safetensors")
        assert "encoder.layer.0.attention.attention.query.weight" in tensors
        tensors = {f"vit.{name}": tensor for name, tensor in tensors.items()}
    model = DeViDe(checkpoint=write(tmp_path, {**content, "image_encoder": tensors}))
    assert model.design["image_encoder_eps"] == 1e-12
    assert largest(model.image_encoder(IMAGES).flatten(1, 2), vit(IMAGES).last_hidden_state[:, 1:]) < 1e-5


def test_descriptions_are_averaged_whatever_their_number(model: DeViDe) -> None:
    single = model.encode_tokens(IDS)
    thrice = model.encode_tokens(IDS[:, None].expand(-1, 3, -1))
    assert largest(thrice, single) < 1e-6
    assert largest(model(IMAGES, thrice).logits, model(IMAGES, single).logits) < 1e-5

    # Three, one and two descriptions.
    rows = [IDS[:3], IDS[3:], IDS[1:3]]
    ragged = torch.zeros(3, 3, 5, dtype=torch.int64)
    for row, descriptions in enumerate(rows):
        ragged[row, : len(descriptions)] = descriptions
    expected = torch.stack([model.encode_tokens(descriptions).mean(dim=0) for descriptions in rows])
    queries = model.encode_tokens(ragged, (ragged != 0).long())
    assert largest(queries, expected) < 1e-6
    # Plain averaging over the padding would be far off.
    assert largest(queries[1] / 3, expected[1]) > 0.01
    assert largest(model.encode_tokens(ragged.flip(1)), queries) < 1e-6


def test_the_mlp_comes_before_the_mean(content: dict[str, Any], text: nn.Module, tmp_path: Path) -> None:
    mlp = varied(nn.Sequential(nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 768)))
    trained = {f"description_proj.{name}": tensor for name, tensor in mlp.state_dict().items()}
    path = write(tmp_path, {**content, "model": {**content["model"], **trained}})
    model = DeViDe(checkpoint=path, description_pooling="mlp")
    expected = mlp(text(IDS, MASK)).unflatten(0, (2, 2)).mean(dim=1)
    assert largest(model.encode_tokens(IDS.unflatten(0, (2, 2))), expected) < 1e-5
    # A trained projection must not be passed over.
    with pytest.raises(UserError, match=r"4 unexpected \(model\.description_proj"):
        DeViDe(checkpoint=path)


def test_the_image_projection_is_an_identity_unless_there_is_one(
    model: DeViDe, content: dict[str, Any], decoder: nn.Module, tmp_path: Path
) -> None:
    def checkpoint_with(**projection: Tensor) -> str:
        named = {f"image_proj.{name}": tensor for name, tensor in projection.items()}
        return write(tmp_path, {**content, "model": {**content["model"], **named}})

    identity = DeViDe(checkpoint=checkpoint_with(weight=torch.eye(768), bias=torch.zeros(768)))
    assert torch.equal(score(identity), score(model))
    matrix = torch.randn(768, 768, generator=torch.Generator().manual_seed(1)) / 28
    trained = DeViDe(checkpoint=checkpoint_with(weight=matrix, bias=torch.ones(768)))
    assert (model.design["image_projection"], trained.design["image_projection"]) == ("identity", "trained")
    tokens = trained.image_encoder(IMAGES).flatten(1, 2) @ matrix.T + 1
    logits = decoder(tokens, trained.encode_tokens(IDS))[0]
    assert largest(score(trained), logits[..., 1] - logits[..., 0]) < 1e-5
    with pytest.raises(UserError, match=r"1 missing \(model\.image_proj\.bias\)"):
        DeViDe(checkpoint=checkpoint_with(weight=matrix))


def test_a_single_output_is_a_logit(content: dict[str, Any], tmp_path: Path) -> None:
    decoder = varied(Decoder(outputs=1))
    path = write(tmp_path, {**content, "model": decoder.state_dict()})
    model = DeViDe(checkpoint=path, head_outputs=1)
    queries = model.encode_tokens(IDS)
    output = model(IMAGES, queries)
    expected = decoder(model.image_encoder(IMAGES).flatten(1, 2), queries)[0][..., 0]
    assert largest(output.logits, expected) < 1e-5
    assert largest(output.probabilities, expected.sigmoid()) < 1e-6
    with pytest.raises(UserError, match=r"model\.mlp_head\.0\.weight \(1, 768\) instead of \(2, 768\)"):
        DeViDe(checkpoint=path)


def test_names_of_a_file_are_mapped_by_the_config(model: DeViDe, content: dict[str, Any], tmp_path: Path) -> None:
    parts = {
        new: content[old] for old, new in (("image_encoder", "visual"), ("text_encoder", "bert"), ("model", "head"))
    }
    parts["visual"] = {**parts["visual"], "projector.weight": torch.zeros(2)}
    key_map: dict[str, str | None] = {"visual.": "image_encoder.", "bert.": "text_encoder.", "head.": "model."}
    key_map["visual.projector."] = None
    assert torch.equal(score(DeViDe(checkpoint=write(tmp_path, parts), key_map=key_map)), score(model))
    flat = {f"{part}.{name}": tensor for part in parts for name, tensor in parts[part].items()}
    path = write(tmp_path, {"state_dict": flat, "epoch": 3})
    assert torch.equal(score(DeViDe(checkpoint=path, key_map=key_map)), score(model))
    with pytest.raises(UserError, match=r"do not fit DeViDe.*key_map renames"):
        DeViDe(checkpoint=path)
    both: dict[str, str | None] = {**key_map, "visual.projector.": "image_encoder.norm."}
    with pytest.raises(UserError, match=r"two names in .* the name image_encoder\.norm\.weight"):
        DeViDe(checkpoint=path, key_map=both)


def test_the_decoder_has_the_size_that_is_given(content: dict[str, Any], checkpoint: str, tmp_path: Path) -> None:
    shorter = {name: tensor for name, tensor in content["model"].items() if not name.startswith("decoder.layers.3.")}
    path = write(tmp_path, {**content, "model": shorter})
    with pytest.raises(UserError, match=r"18 missing \(model\.decoder\.layers\.3"):
        DeViDe(checkpoint=path)
    model = DeViDe(checkpoint=path, decoder_layers=3, decoder_heads=8)
    assert (model.layers, model.heads) == ([0, 1, 2], list(range(8)))
    assert model(IMAGES, model.encode_tokens(IDS)).saliency.shape == (2, 4, 2, 2)
    with pytest.raises(UserError, match=r"instead of \(512, 768\)"):
        DeViDe(checkpoint=checkpoint, decoder_feedforward=512)
    with pytest.raises(UserError, match="decoder_heads 5 does not divide"):
        DeViDe(checkpoint=checkpoint, decoder_heads=5)


def test_pixels_come_in_with_the_constants_that_are_given(checkpoint: str, model: DeViDe) -> None:
    image = np.full((40, 60), 255, np.uint8)
    white = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    pixels, view = model.preprocessing(image)
    assert pixels.shape == (3, 224, 224)
    assert view == (0.0, 0.0, 1.0, 1.0)
    assert largest(pixels, white[:, None, None].expand(3, 224, 224)) < 1e-6
    other = DeViDe(checkpoint=checkpoint, image_size=64, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert torch.equal(other.preprocessing(image)[0], torch.ones(3, 64, 64))
