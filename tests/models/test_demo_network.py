"""The demo network: its weights load, its features are what they claim, and it knows more than chance."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from places import ROOT
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from xbench.models.demo import DemoNetwork
from xbench.phantom import FINDINGS, draw_phantom

WEIGHTS = ROOT / "xbench" / "models" / "weights"


@pytest.fixture(scope="module")
def network() -> DemoNetwork:
    return DemoNetwork.trained()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "demo_tokenizer.json"))


def _text(network: DemoNetwork, tokenizer: Tokenizer, prompts: list[str]) -> Tensor:
    encoded = tokenizer.encode_batch(prompts)
    input_ids = torch.tensor([one.ids for one in encoded])
    return network.encode_text(input_ids, torch.tensor([one.attention_mask for one in encoded]))


def _images(seed: int, indices: range) -> Tensor:
    return _pixels([draw_phantom(seed, index).image for index in indices])


def _pixels(films: list[NDArray[np.uint8]]) -> Tensor:
    small = np.stack([cv2.resize(film, (224, 224), interpolation=cv2.INTER_AREA) for film in films])
    return ((torch.from_numpy(small).float() / 255 - 0.5) / 0.25)[:, None].expand(-1, 3, -1, -1)


def test_the_package_data_is_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 4 * 2**20


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    weights = load_file(WEIGHTS / "demo.safetensors")
    del weights["bias"]
    save_file(weights, tmp_path / "demo.safetensors")
    with pytest.raises(RuntimeError, match="bias"):
        DemoNetwork.trained(tmp_path)


def test_the_network_is_in_evaluation_mode(network: DemoNetwork) -> None:
    assert not any(module.training for module in network.modules())


@torch.inference_mode()
def test_shapes_and_unit_length(network: DemoNetwork, tokenizer: Tokenizer) -> None:
    images = torch.randn(2, 3, 224, 224)
    text = _text(network, tokenizer, ["There is a mass.", "There is a nodule.", "Broken rib"])
    patches = network.encode_image(images)
    logits, saliency = network(images, text)
    assert patches.shape[0] == 2
    assert patches.shape[2:] == (28, 28)
    assert text.shape == (3, patches.shape[1])
    assert torch.allclose(patches.norm(dim=1), torch.ones(2, 28, 28), atol=1e-5)
    assert torch.allclose(text.norm(dim=1), torch.ones(3), atol=1e-5)
    assert logits.shape == (2, 3)
    assert saliency.shape == (2, 3, 28, 28)
    assert saliency.abs().max() <= 1 + 1e-5


def test_a_patch_looks_at_its_own_place() -> None:
    fresh = DemoNetwork().eval()
    for module in fresh.image_tower.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.constant_(module.weight, 0.01)
    image = torch.ones(1, 1, 224, 224, requires_grad=True)
    fresh.image_tower(image)[0, 0, 13, 15].backward()
    assert image.grad is not None
    influence = image.grad[0, 0].abs()
    pixels = torch.arange(224.0)
    # Upsampling takes patch i to be centred at 8 i + 3.5; half a pixel is as near as odd kernels come.
    assert float((influence.sum(1) * pixels).sum() / influence.sum()) == pytest.approx(8 * 13 + 3.5, abs=0.51)
    assert float((influence.sum(0) * pixels).sum() / influence.sum()) == pytest.approx(8 * 15 + 3.5, abs=0.51)


@torch.inference_mode()
def test_the_logit_is_the_smooth_maximum_of_the_map(network: DemoNetwork, tokenizer: Tokenizer) -> None:
    logits, saliency = network(_images(2, range(2)), _text(network, tokenizer, ["There is a mass."]))
    scale, bias = float(network.log_scale.exp()), float(network.bias)
    for image in range(2):
        terms = [np.exp(scale * float(value)) for value in saliency[image, 0].flatten()]
        assert float(logits[image, 0]) == pytest.approx(np.log(np.mean(terms)) + bias, abs=1e-3)


@torch.inference_mode()
def test_an_image_does_not_depend_on_its_batch(network: DemoNetwork, tokenizer: Tokenizer) -> None:
    images = _images(2, range(4))
    text = _text(network, tokenizer, ["There is a nodule.", "There is a fracture."])
    logits, saliency = network(images, text)
    for index in range(4):
        alone, its_map = network(images[index : index + 1], text)
        assert torch.allclose(alone[0], logits[index], atol=1e-4)
        assert torch.allclose(its_map[0], saliency[index], atol=1e-4)


@torch.inference_mode()
def test_padding_does_not_change_a_sentence(network: DemoNetwork, tokenizer: Tokenizer) -> None:
    alone = _text(network, tokenizer, ["There is a nodule."])
    padded = _text(
        network, tokenizer, ["There is a nodule.", "Evidence of plate-like atelectasis is seen, and more words"]
    )
    assert torch.allclose(alone[0], padded[0], atol=1e-5)


@torch.inference_mode()
def test_it_tells_present_from_absent_findings_and_points_at_them(network: DemoNetwork, tokenizer: Tokenizer) -> None:
    count = 40
    text = _text(network, tokenizer, [f"There is {finding.lower()}." for finding in FINDINGS])
    phantoms = [draw_phantom(5, index) for index in range(count)]
    logits, saliency = network(_pixels([phantom.image for phantom in phantoms]), text)
    present = [phantom.masks for phantom in phantoms]
    right = pairs = 0.0
    hits = []
    for column, finding in enumerate(FINDINGS):
        for ill in (index for index in range(count) if finding in present[index]):
            for other in (index for index in range(count) if finding not in present[index]):
                right += float(logits[ill, column] > logits[other, column])
                pairs += 1
            row, patch = divmod(int(saliency[ill, column].argmax()), 28)
            mask = cv2.resize(present[ill][finding].astype(np.float32), (28, 28), interpolation=cv2.INTER_AREA)
            hits.append(float(mask[row, patch] > 0))
    assert right / pairs > 0.85
    assert np.mean(hits) > 0.5
