from __future__ import annotations

import pytest
import torch
from quantus.helpers.model.pytorch_model import PyTorchModel
from torch import nn

from xbench.models import Demo
from xbench.models.redrawing import layers_of, redrawn, same_words, words_of


class Own(nn.Module):
    """A module with weights and no way to initialize them, and a temperature that is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor([3.0]))
        self.inner = nn.Module()
        self.inner.weight = nn.Parameter(torch.linspace(4, 6, 5000))
        self.inner.register_buffer("count", torch.tensor(7))


def demo() -> Demo:
    model = Demo(image_size=32).eval()
    model.findings = ("Pneumothorax", "Cardiomegaly")
    model.prompts = [list(model.default_prompts(finding)) for finding in model.findings]
    model.on_test_start()
    return model


def bits(model: nn.Module) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]


def test_layers_come_from_the_output_down_as_those_of_quantus() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    theirs = [name for name, _ in PyTorchModel(network).get_random_layer_generator(order="top_down")]
    assert [layer.name.strip(".") for layer in layers_of(network)] == theirs == ["4", "1", "0"]
    # Ours take a block, which theirs open.
    names = [layer.name for layer in layers_of(Demo(image_size=32))]
    assert names[:4] == [f"network.text_tower.{name}" for name in ("projection", "norm", "blocks.1", "blocks.0")]
    assert names[-1] == "network.image_tower.0.0" and len({*names}) == len(names) and "network" not in names
    assert [layer.name for layer in layers_of(Own())] == ["inner"]


def test_everything_comes_back_to_the_bit() -> None:
    model = demo()
    before, queries, encoded = bits(model), model.queries.clone(), model._encoded
    state = torch.random.get_rng_state()
    places = [tensor.data_ptr() for tensor in model.state_dict().values()]
    with redrawn(model, layers_of(model)) as names:
        assert bits(model) == before
        changed = 0
        for _ in names:
            now = sum(one != other for one, other in zip(bits(model), before, strict=True))
            assert now > changed
            changed = now
    assert bits(model) == before and torch.equal(model.queries, queries) and model._encoded is encoded
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == places
    with pytest.raises(KeyboardInterrupt), redrawn(model, layers_of(model)) as names:
        next(names)
        raise KeyboardInterrupt
    assert bits(model) == before


def test_draws_depend_on_the_name_alone() -> None:
    drawn = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = demo()
        with redrawn(model, layers_of(model)[:3][:: 1 - 2 * seed]) as names:
            drawn.append(([*names], bits(model)))
    assert drawn[0][1] == drawn[1][1] and drawn[0][0] == drawn[1][0][::-1]


def test_what_cannot_initialise_itself_keeps_mean_and_deviation() -> None:
    model = demo()
    model.own = Own()
    (layer,) = (layer for layer in layers_of(model) if layer.name == "own.inner")
    before = model.own.inner.weight.clone()
    with redrawn(model, [layer]) as names:
        assert [*names] == ["own.inner"]
        now = model.own.inner.weight
        # 5,000 values: both within 4 standard errors.
        assert now.mean().item() == pytest.approx(5, abs=4 * before.std().item() / 5000**0.5)
        assert now.std().item() == pytest.approx(before.std().item(), rel=4 / 10000**0.5)
        assert not torch.equal(now.sort().values, now) and model.own.inner.count == 7
    # A linear layer initializes itself: uniform within the root of its inputs.
    (layer,) = (layer for layer in layers_of(model) if layer.name.endswith("projection"))
    with redrawn(model, [layer]) as names:
        next(names)
        (module,) = layer.modules
        assert module.weight.abs().max() <= module.in_features**-0.5


def test_layers_of_the_text_tower_change_the_words() -> None:
    model = demo()
    for layer in layers_of(model):
        before = words_of(model)
        with redrawn(model, [layer]) as names:
            next(names)
            assert same_words(before, words_of(model)) is ("text_tower" not in layer.name)
        assert same_words(before, words_of(model))
