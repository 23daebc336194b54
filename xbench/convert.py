"""What `convert` does: an official checkpoint as a file of tensors and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from rich.console import Console
from safetensors.torch import save_file

from xbench.errors import UserError
from xbench.models.base import VLM, file_sha256
from xbench.shipped import shipped

__all__ = ["convert"]


def convert(arguments: Sequence[str]) -> None:
    """Convert a checkpoint; `arguments` are MODEL, CHECKPOINT and OUT.safetensors.

    The checkpoint is loaded into the model, strictly, so that what is written is known to fit.

    Raises:
        UserError: Wrong arguments, a checkpoint that does not fit, or a file that cannot be written.
    """
    if len(arguments) != 3:
        raise UserError("convert takes MODEL CHECKPOINT OUT.safetensors.", exit_status=2)
    name, checkpoint, out = arguments
    target = Path(out).expanduser()
    if target.suffix != ".safetensors":
        raise UserError(f"convert {name}: the file to write, {out}, must end in .safetensors.", exit_status=2)
    # Where it found the weights, it says itself: what was given may be a folder.
    model: Any = _model_class(name)(checkpoint=checkpoint)
    tensors = {key: tensor.detach().clone().contiguous() for key, tensor in model.weights().items()}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, target, metadata={"model": name, "converted_from": file_sha256(model.checkpoint)})
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}.") from error
    size = target.stat().st_size / 1e6
    # soft_wrap: a path that the terminal breaks cannot be copied.
    Console(highlight=False).print(f"{len(tensors)} tensors, {size:.1f} MB in {target}", soft_wrap=True)


def _model_class(name: str) -> Callable[..., VLM]:
    """The class of a shipped model that takes a checkpoint."""
    configs = shipped("models")
    if name in configs:
        module, _, cls = yaml.safe_load(configs[name].read_text(encoding="utf-8"))["class_path"].rpartition(".")
        found = resolve_name(f"{module}:{cls}")
        if issubclass(found, VLM) and "checkpoint" in inspect.signature(found).parameters:
            return found
    takers = [model for model in configs if model not in ("centre", "demo", "oracle", "random")]
    raise UserError(
        f"convert {name}: there is no such model, or it has no checkpoint. Those that have: {', '.join(takers)}.",
        exit_status=2,
    )
