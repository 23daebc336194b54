"""The options of `test`, `predict`, `prepare` and `check`: configurations by name, over them the command line."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal, NoReturn

from jsonargparse import ActionConfigFile, Namespace
from jsonargparse.typing import PositiveInt
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, instantiate_class

from xbench.commands.arguments import PURPOSES
from xbench.commands.configs import compose, defaults, did_you_mean, resolve_class
from xbench.commands.look import check_options, constructor, wrong_value
from xbench.data.datamodule import ChestXrayDataModule
from xbench.models.base import SaliencyModel
from xbench.runtime.errors import UserError
from xbench.runtime.yaml_files import load_yaml


class RunParser(LightningArgumentParser):
    """Parser that reports errors in one paragraph; jsonargparse makes further ones of this class for nested options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"prog": "xbench test"} | kwargs)
        # Whose options these are.
        self.command = "test"

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what jsonargparse found wrong as one paragraph."""
        if not self.exit_on_error:
            # A parser of nested options: the outer one collects its errors.
            super().error(message, ex)
        raise user_error_behind(ex) or UserError(in_one_paragraph(message, self.command), exit_status=2)

    def read(self, words: Sequence[str]) -> Namespace:
        """Return the options that the words after a command stand for; UserError where they are wrong."""
        composed = compose(words)
        # Configurations first, for they would overwrite other options without a word.
        first = [f"--config={json.dumps(config, default=str)}" for config in composed.configs]
        config = self.parse_args([*first, *check_options(self.command, composed, _arguments)])
        if config.trainer.use_distributed_sampler:
            raise UserError(
                "--trainer.use_distributed_sampler true would score some images twice: leave it out, the data module "
                "deals the images to the processes.",
                exit_status=2,
            )
        return config

    def resolve(self, words: Sequence[str]) -> dict[str, Any]:
        """Return what the `config.yaml` of a `test` with these options would hold."""
        config: dict[str, Any] = load_yaml(self.dump(self.read(words), skip_none=False))
        return config


def build(part: dict[str, Any]) -> Any:
    """Build a model or a data module of its `class_path` and `init_args`; return the `UserError` if it cannot be."""
    try:
        return instantiate_class((), part | {"init_args": part.get("init_args") or {}})
    except UserError as error:
        return error


def run_parser(command: Literal["test", "predict", "prepare", "check"]) -> RunParser:
    """Return the parser of a command."""
    parser = RunParser(
        default_config_files=[str(path) for path in defaults(command)],
        description=PURPOSES[command],
        usage=f"xbench {command} --config NAME_OR_PATH [--model.X ...] [--data.X ...] [--trainer.X ...]",
    )
    parser.command = command
    named = "A configuration file, or the name of a shipped one, such as demo or clip_siim; may be repeated."
    parser.add_argument("-c", "--config", action=ActionConfigFile, metavar="NAME_OR_PATH", help=named)
    seeds = "Seed of all random numbers; true chooses one, false sets none."
    parser.add_argument("--seed_everything", type=bool | int, default=0, help=seeds)
    parser.add_lightning_class_args(Trainer, "trainer")
    threads = (
        "CPU threads that each process computes with. Results depend on it in their last bits, so it is the same "
        "whatever the number of processes; on a CPU, --trainer.devices N makes N processes work."
    )
    parser.add_argument("--threads", type=PositiveInt, default=1, help=threads)
    more = (
        "On a CPU, let --trainer.devices start more processes than there are cores for this one to use, which is "
        "refused otherwise: each loads the model, and together they are slower."
    )
    parser.add_argument("--oversubscribe", type=bool, default=False, help=more)
    resume = (
        "test: go on with the newest unfinished run of this model and dataset under --trainer.default_root_dir, if "
        "there is one; its finished images are not done again, and the results are those of an unbroken run."
    )
    parser.add_argument("--resume", type=bool, default=False, help=resume)
    if command == "predict":
        drawn = "The findings to draw over each image, in a list or with commas between; true for all, false for no "
        parser.add_argument("--overlays", type=bool | list[str] | str, default=True, help=f"{drawn}pictures.")
    # The data module deals the batches; Lightning's sampler would count some images twice.
    parser.set_defaults({"trainer.use_distributed_sampler": False})
    # Parts are built in this order: a wrong data folder is found before weights are loaded.
    parser.add_lightning_class_args(ChestXrayDataModule, "data", subclass_mode=True)
    parser.add_lightning_class_args(SaliencyModel, "model", subclass_mode=True)
    return parser


def user_error_behind(error: BaseException | None) -> UserError | None:
    """Return the `UserError` that an exception is or was caused by; jsonargparse wraps what a constructor raises."""
    while error is not None:
        if isinstance(error, UserError):
            return error
        error = error.__cause__ or error.__context__
    return None


def in_one_paragraph(message: str, command: str) -> str:
    """Shorten jsonargparse's message about the options of a run, which lists every member of a union, to one paragraph.

    Its exceptions hold nothing but this text.
    """
    key = re.search(r'Parser key "([^"]+)"', message)
    chosen = re.search(r"Problem with given class_path '([^']+)':\s*(.+)", message, re.S)
    if key and chosen:
        return _about_class(key[1], chosen[1], chosen[2], command)
    text = re.sub(r"\s*\n[\s-]*", "; ", message.strip().rstrip(".")) + ("" if message.endswith("?") else ".")
    if key and key[1] in ("model", "data") and "NestedArg" not in message:
        example = {"model": "xbench.models.CLIP", "data": "xbench.data.PhantomCXR"}[key[1]]
        given = "".join(re.findall(r"Import path (\S+ )does not", message))
        text = (
            f"--{key[1]} {given}expects a class by its full path, such as {example}. Give a file, or the name of a "
            "shipped model or dataset, after --config: --config mine.yaml --config siim, or --config clip_siim."
        )
    elif key and (wrong := wrong_value(key[1], message)):
        text = wrong
    return f"{text} See `xbench {command} --help`."


def _about_class(part: str, name: str, problem: str, command: str) -> str:
    """Say what is wrong with the options of a class, or with its name."""
    see = f"`xbench {command} --help-all` shows all options."
    option = re.match(r'Parser key "([^"]+)":', problem)
    if option and (wrong := wrong_value(f"{part}.{option[1]}", problem)):
        return f"{wrong} {see}"
    if required := re.search(r"arguments are required: (.+)", problem):
        options = ", ".join(f"--{part}.{one.strip()}" for one in required[1].split(","))
        return f"{name.rpartition('.')[2]} needs {options}. {see}"
    if absent := re.match(r"module '([\w.]+)' has no attribute '(\w+)'", problem):
        module = import_module(absent[1])
        near = did_you_mean(absent[2], getattr(module, "__all__", dir(module)), f"{absent[1]}.")
        return f"--{part} {name}: {absent[1]} has no {absent[2]}.{near}"
    return f"--{part} {name}: {problem.splitlines()[0]}."


def _arguments(name: str) -> Mapping[str, str] | None:
    """Return the annotations of the arguments of a class, and of those that it derives from, by name."""
    found = constructor(name)
    # What is wrong with the class is said when it is asked to be one.
    with suppress(Exception):
        if found is None:
            given = [inspect.signature(owner).parameters for owner in resolve_class(name).__mro__]
            return {name: str(one.annotation) for parameters in given for name, one in parameters.items()}
    return found
