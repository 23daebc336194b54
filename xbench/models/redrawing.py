"""Model parameter randomization (Adebayo et al., NeurIPS 2018): weights drawn anew, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from xbench.models.base import VLM, SaliencyModel
from xbench.scoring.perturbations import random_of


class Layer(NamedTuple):
    """Modules whose own parameters are drawn together."""

    name: str
    modules: tuple[nn.Module, ...]


def layers_of(model: nn.Module) -> list[Layer]:
    """Return the layers of a model in reverse order of registration, for most models from the output down.

    In a row of modules of one class, such as the blocks of a transformer, each is a layer with its content. Elsewhere
    each module with parameters is one. Scalars, such as a temperature, do not count, because they do not change maps.
    """
    found: list[Layer] = []

    def visit(name: str, module: nn.Module) -> None:
        parts = [*module.named_children()]
        blocks = isinstance(module, nn.ModuleList | nn.Sequential) and len(parts) > 1
        if blocks and len({type(part) for _, part in parts}) == 1:
            held = [Layer(f"{name}.{own}", tuple(part.modules())) for own, part in parts]
            found.extend(layer for layer in held if any(map(_has_weights, layer.modules)))
            return
        if _has_weights(module):
            found.append(Layer(name, (module,)))
        for own, part in parts:
            visit(f"{name}.{own}" if name else own, part)

    visit("", model)
    return found[::-1]


@contextmanager
def redrawn(model: SaliencyModel, layers: Sequence[Layer]) -> Iterator[Iterator[str]]:
    """Yield an iterator that redraws one more of the layers with each step, and restore every bit at the end.

    Modules initialize themselves by `reset_parameters`; other parameters become normal with their mean and standard
    deviation. The layer's name is the seed, so every process draws the same. Prompts are encoded again. Tensors stay in
    place, so that compiled code remains valid.
    """
    # Includes children, which `reset_parameters` may also draw.
    modules = (module for layer in layers for module in layer.modules)
    held = (tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
    kept = {id(tensor): (tensor, tensor.detach().clone()) for tensor in held}
    words: dict[str, Any] = {name: vars(model)[name] for name in ("queries", "_encoded") if name in vars(model)}

    def names() -> Iterator[str]:
        for layer in layers:
            _draw(layer, model.device)
            if isinstance(model, VLM):
                model._encoded, asked = {}, model.asked()
                model.queries = model.encode_prompts(asked) if asked else None
            yield layer.name

    try:
        yield names()
    finally:
        with torch.no_grad():
            for tensor, value in kept.values():
                tensor.copy_(value)
        vars(model).update(words)


def words_of(model: SaliencyModel) -> dict[Any, Any]:
    """Return a model's encoded prompts by their texts."""
    return {None: getattr(model, "queries", None), **getattr(model, "_encoded", {})}


def same_words(before: dict[Any, Any], now: dict[Any, Any]) -> bool:
    """Return whether words are encoded to the same bits before and now, as far as both have them."""
    first, second = (pytree.tree_leaves([words[key] for key in now if key in before]) for words in (before, now))
    same = (torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(first, second, strict=False))
    return len(first) == len(second) and all(same)


def _has_weights(module: nn.Module) -> bool:
    return any(one.numel() > 1 and one.is_floating_point() for one in module.parameters(recurse=False))


def _draw(layer: Layer, device: torch.device) -> None:
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(int(random_of("weights", layer.name).integers(2**63)))
        for module in layer.modules:
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
                continue
            for tensor in module.parameters(recurse=False):
                if tensor.is_floating_point():
                    values = tensor.float()
                    tensor.normal_(values.mean().item(), values.std(correction=0).item())
