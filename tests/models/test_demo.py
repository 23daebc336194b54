from __future__ import annotations

import numpy as np
import pytest
import torch

from xbench.models import Demo
from xbench.models.demo import DemoNetwork


def test_the_demo_recognises_and_points(command):
    options = ("--data.seed", "5", "--data.images", "70", "--data.num_workers", "0", "--trainer.logger", "false")
    demo = command("test", "--config", "demo", *options).results
    center = command("test", "--config", "centre_phantom", *options).results
    assert demo["classification"]["macro"]["auroc"] > 0.9
    for finding in ("Nodule", "Fracture"):
        found = demo["grounding"]["per_class"][finding]
        assert found["count"] > 5
        # The center of a film is the spine, where the prior finds nothing; an absolute bound keeps the ratio honest.
        assert found["pointing_game"] > max(0.3, 3 * center["grounding"]["per_class"][finding]["pointing_game"])
        assert found["dice_best"] > 3 * center["grounding"]["per_class"][finding]["dice_best"]
    for right in (demo, center):
        assert right["grounding"]["sign_test"]["may_be_wrong"] == []
    assert demo["provenance"]["checkpoint_sha256"]
    assert demo["provenance"]["prompts"]["Pleural Effusion"] == ["There is pleural effusion."]


def test_other_words_and_other_sizes(command):
    few = ("--data.limit", "4", "--data.num_workers", "0", "--trainer.logger", "false")
    run = command("test", "--config", "demo", *few, "--model.prompts", "name", "--model.image_size", "64", status=0)
    assert run.results["provenance"]["prompts"]["Pleural Effusion"] == ["Pleural Effusion"]
    assert run.results["provenance"]["model"]["image_size"] == 64
    wrong = command("test", "--config", "demo", *few, "--model.prompts", "aspects")
    assert wrong.status == 2 and "one prompt per finding" in wrong.errors
    wrong = command("test", "--config", "demo", *few, "--model.image_size", "100")
    assert wrong.status == 2 and "multiple of 8" in wrong.errors


@pytest.fixture(scope="module")
def demo() -> Demo:
    return Demo()


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
    # Upsampling takes patch i to be centered at 8 i + 3.5; half a pixel is as near as odd kernels come.
    assert float((influence.sum(1) * pixels).sum() / influence.sum()) == pytest.approx(8 * 13 + 3.5, abs=0.51)
    assert float((influence.sum(0) * pixels).sum() / influence.sum()) == pytest.approx(8 * 15 + 3.5, abs=0.51)


@torch.inference_mode()
def test_the_logit_is_the_smooth_maximum_of_the_map(demo: Demo) -> None:
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    output = demo(images, demo.encode_prompts([["There is a mass."]]))
    scale, bias = float(demo.network.log_scale.exp()), float(demo.network.bias)
    for image in range(2):
        terms = [np.exp(scale * float(value)) for value in output.saliency[image, 0].flatten()]
        assert float(output.logits[image, 0]) == pytest.approx(np.log(np.mean(terms)) + bias, abs=1e-3)


def test_padding_does_not_change_a_sentence(demo: Demo) -> None:
    alone = demo.encode_prompts([["There is a nodule."]])
    padded = demo.encode_prompts([["There is a nodule."], ["Evidence of plate-like atelectasis, and more words"]])
    torch.testing.assert_close(alone[0], padded[0])
