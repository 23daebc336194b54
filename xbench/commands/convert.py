"""What `convert` does: an official checkpoint as a file of tensors and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from jsonargparse import ArgumentParser
from rich.console import Console
from safetensors.torch import save_file

from xbench.commands.arguments import check_convertible
from xbench.commands.configs import did_you_mean, resolve_class, shipped
from xbench.commands.look import wrong_value
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UserError
from xbench.runtime.yaml_files import load_yaml


def convert(arguments: Sequence[str]) -> None:
    """Convert a checkpoint, which is loaded into the model, strictly, so that what is written is known to fit."""
    if not arguments:
        raise UserError(_WANTED, exit_status=2)
    name = arguments[0]
    check_convertible(name)
    model_class = resolve_class(load_yaml(shipped("models")[name])["class_path"])
    usage = f"xbench convert {name} CHECKPOINT OUT.safetensors [--model.X value ...]"
    parser = _Parser(prog=f"convert {name}", usage=usage, allow_abbrev=False)
    for dest, metavar in (("name", "MODEL"), ("checkpoint", "CHECKPOINT"), ("out", "OUT.safetensors")):
        parser.add_argument(dest, metavar=metavar)
    parser.add_class_arguments(model_class, "model", as_group=False, skip={"checkpoint"})
    given = parser.parse_args([*arguments])
    target = Path(given.out).expanduser()
    if target.suffix != ".safetensors":
        raise UserError(f"convert {name}: the file to write, {given.out}, must end in .safetensors.", exit_status=2)
    # Where it found the weights, it says itself: what was given may be a folder.
    model = model_class(checkpoint=given.checkpoint, **given.model.as_dict())
    tensors = {key: tensor.detach().clone().contiguous() for key, tensor in model.weights().items()}
    remarks = {"model": name, "converted_from": file_sha256(model.checkpoint), **model.remarks()}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, target, metadata=remarks)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}.") from error
    size = target.stat().st_size / 1e6
    # soft_wrap: a path that the terminal breaks cannot be copied.
    Console(highlight=False).print(f"{len(tensors)} tensors, {size:.1f} MB in {target}", soft_wrap=True)


_WANTED = "convert takes MODEL CHECKPOINT OUT.safetensors, and options of the model as --model.X value."


class _Parser(ArgumentParser):
    """Parser that reports errors in one paragraph."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what jsonargparse found wrong."""
        key = re.search(r'Parser key "([^"]+)"', message)
        if key and (wrong := wrong_value(key[1], message)):
            raise UserError(f"{self.prog}: {wrong}", exit_status=2)
        unknown = re.match(r"unrecognized arguments: (--\S+)", message)
        near = did_you_mean(unknown[1], self._option_string_actions) if unknown else ""
        raise UserError(f"{_WANTED} Wrong here: {message}.{near} `xbench {self.prog} --help` shows all options.", 2)
