"""Command `convert`: reduce an official checkpoint to a file of tensors."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from safetensors.torch import save_file

from xbench.commands.configs import compose
from xbench.commands.look import check_options
from xbench.commands.options import RunParser, class_arguments, resolve_class
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UsageError
from xbench.runtime.files import writing


def convert(given: Namespace, more: Sequence[str]) -> None:
    """Convert a checkpoint by loading it strictly, which proves that it fits; `more` are options of the model."""
    composed = compose(["--config", given.model, *more], ["model"])
    words = check_options(f"convert {given.model}", composed, class_arguments)
    if strays := [word for word in words if word.startswith("-") and not word.startswith("--model.")]:
        raise UsageError(f"convert takes only options of the model, not {strays[0]}.")
    target = Path(given.out).expanduser()
    if target.suffix != ".safetensors":
        raise UsageError(f"convert: the file to write, {given.out}, must end in .safetensors.")
    model_class = resolve_class(composed.classes["model"])
    parser = RunParser()
    parser.add_class_arguments(model_class, "model", skip={"checkpoint"})
    options = parser.parse_args(words).get("model") or {}
    # The given path may be a folder, so ask the model for the file.
    model = model_class(checkpoint=given.checkpoint, **dict(options))
    tensors = {key: tensor.detach().clone().contiguous() for key, tensor in model.weights().items()}
    remarks = {"model": given.model, "converted_from": file_sha256(model.checkpoint), **model.remarks()}
    with writing(f"{target} cannot be written", "Give another file to write."):
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, target, metadata=remarks)
    size = target.stat().st_size / 1e6
    # soft_wrap: a wrapped path cannot be copied.
    Console(highlight=False).print(f"{len(tensors)} tensors, {size:.1f} MB in {target}", soft_wrap=True)
