"""The options of the commands that build a model: configurations by name, over them the command line."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, Literal, NoReturn, get_type_hints

from jsonargparse import ActionConfigFile, Namespace
from jsonargparse.typing import PositiveInt
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, instantiate_class

from xbench.commands.arguments import COMMANDS
from xbench.commands.configs import compose, defaults, did_you_mean
from xbench.commands.look import check_options, constructor
from xbench.data.datamodule import ChestXrayDataModule
from xbench.models.base import SaliencyModel
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.yaml_files import load_yaml

# Parts are built in this order: a wrong data folder is found before weights are loaded.
_BASES: Mapping[str, tuple[type, str]] = {
    "data": (ChestXrayDataModule, "xbench.data.PhantomCXR"),
    "model": (SaliencyModel, "xbench.models.CLIP"),
}


class RunParser(LightningArgumentParser):
    """Parser that reports errors in one paragraph; jsonargparse makes further ones of this class for nested options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"prog": "xbench test"} | kwargs)
        # Whose options these are.
        self.command = "test"

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what jsonargparse found wrong as one paragraph: it lists all that an option could be."""
        if not self.exit_on_error:
            # A parser of nested options: the outer one collects its errors.
            super().error(message, ex)
        text = " ".join(message.split())
        # One within the other for an option of a class.
        keys, value = re.findall(r'Parser key "([^"]+)"', text), re.search(r"Given value: (.+)$", message, re.M)
        if keys and value:
            text = f"--{'.'.join(keys[: 2 if keys[0] in _BASES else 1])}: {value[1]!r:.100} is not one of its values."
        see = f"See `xbench {self.command} --help-all`."
        raise user_error_behind(ex) or UsageError(f"{text:.600} {see}")

    def read(self, words: Sequence[str]) -> Namespace:
        """Return the options that the words after a command stand for; UserError where they are wrong."""
        composed = compose(words)
        for part, name in composed.classes.items():
            _check_class(part, name)
        # Configurations first, for they would overwrite other options without a word.
        first = [f"--config={json.dumps(config, default=str)}" for config in composed.configs]
        config = self.parse_args([*first, *check_options(self.command, composed, class_arguments)])
        if config.trainer.use_distributed_sampler:
            raise UsageError(
                "--trainer.use_distributed_sampler true would score some images twice: leave it out, the data module "
                "deals the images to the processes."
            )
        return config

    def resolve(self, words: Sequence[str]) -> dict[str, Any]:
        """Return what the `config.yaml` of a `test` with these options would hold."""
        config: dict[str, Any] = load_yaml(self.dump(self.read(words), skip_none=False))
        return config


def build(part: dict[str, Any], stage: str | None = None) -> Any:
    """Build a model of its `class_path` and `init_args`, or set up a data module; return a `UserError` in its place."""
    try:
        built = instantiate_class((), part | {"init_args": part.get("init_args") or {}})
        if stage is not None:
            built.setup(stage)
        return built
    except UserError as error:
        return error


def run_parser(command: Literal["test", "intervene", "predict", "prepare", "check"]) -> RunParser:
    """Return the parser of a command."""
    parser = RunParser(
        default_config_files=[str(path) for path in defaults("test" if command == "intervene" else command)],
        description=COMMANDS[command]["summary"],
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
    for part, (base, _) in _BASES.items():
        parser.add_lightning_class_args(base, part, subclass_mode=True)
    return parser


def resolve_class(path: str) -> type[Any]:
    """Import the class that a `class_path` names, also one that has the name of its module."""
    found: type[Any] = resolve_name(":".join(path.rsplit(".", 1)))
    return found


def user_error_behind(error: BaseException | None) -> UserError | None:
    """Return the `UserError` that an exception is or was caused by; jsonargparse wraps what a constructor raises."""
    while error is not None:
        if isinstance(error, UserError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _check_class(part: str, path: str) -> None:
    """Refuse what is no model or no dataset."""
    base, example = _BASES[part]
    try:
        found = resolve_class(path)
        if isinstance(found, type) and issubclass(found, base):
            return
        problem = f"that is no {'model' if part == 'model' else 'dataset'}."
    # A module of the user's may raise anything.
    except Exception as error:
        problem = f"{error}."
        module, _, name = path.rpartition(".")
        with suppress(Exception):
            there = import_module(module)
            problem = (
                f"{module} has no {name}.{did_you_mean(name, getattr(there, '__all__', dir(there)), f'{module}.')}"
            )
    raise UsageError(
        f"--{part} {path}: {problem} Give a class by its full path, such as {example}, or a file, or the name of a "
        "shipped model or dataset, after --config: --config mine.yaml --config siim, or --config clip_siim."
    )


def class_arguments(path: str) -> Mapping[str, Any]:
    """Return the types of the arguments of a class, and of those that it derives from, by name."""
    owners: list[Any] = [vars(owner)["__init__"] for owner in resolve_class(path).__mro__ if "__init__" in vars(owner)]
    names = constructor(path)
    if names is None:
        names = {name: "" for init in owners for name in inspect.signature(init).parameters}
    hints: dict[str, Any] = {}
    for init in reversed(owners):
        # Names that only a type checker knows cannot be told.
        with suppress(NameError, TypeError):
            hints |= get_type_hints(init)
    return {name: hints.get(name, annotation) for name, annotation in names.items()}
