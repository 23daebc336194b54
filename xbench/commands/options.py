"""Options of commands that build a model: configurations, then the command line."""

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
from xbench.commands.look import check_options
from xbench.data.datamodule import ChestXrayDataModule
from xbench.models.base import SaliencyModel
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.strict import load_yaml

# In order of building: a wrong data folder is found before weights are loaded.
_BASES: Mapping[str, tuple[type, str]] = {
    "data": (ChestXrayDataModule, "xbench.data.PhantomCXR"),
    "model": (SaliencyModel, "xbench.models.CLIP"),
}


class RunParser(LightningArgumentParser):
    """Parser with errors of one paragraph; jsonargparse also creates it for nested options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"prog": "xbench test"} | kwargs)
        self.command = "test"

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise jsonargparse's error as one paragraph without its list of alternatives."""
        if not self.exit_on_error:
            # Errors of nested options go to the outer parser.
            super().error(message, ex)
        text = " ".join(message.split())
        # Keys are nested for an option of a class.
        keys, value = re.findall(r'Parser key "([^"]+)"', text), re.search(r"Given value: (.+)$", message, re.M)
        if keys and value:
            text = f"--{'.'.join(keys[: 2 if keys[0] in _BASES else 1])}: {value[1]!r:.100} is not one of its values."
            if nested := re.match(r"NestedArg\(key='([\w.]+)'", value[1]):
                text = f"This {keys[0]} has no option --{keys[0]}.{nested[1]}."
        see = f"See `xbench {self.command} --help-all`."
        raise user_error_behind(ex) or UsageError(f"{text:.600} {see}")

    def read(self, words: Sequence[str]) -> Namespace:
        """Return the options of a command's words, or raise a UserError."""
        composed = compose(words)
        for part, name in composed.classes.items():
            _check_class(part, name)
        # Configurations first, because they silently override earlier options.
        first = [f"--config={json.dumps(config, default=str)}" for config in composed.configs]
        config = self.parse_args([*first, *check_options(self.command, composed, class_arguments)])
        if config.trainer.use_distributed_sampler:
            raise UsageError("--trainer.use_distributed_sampler true would score some images twice: omit it.")
        for option in ("limit_test_batches", "limit_predict_batches"):
            # The value may be wrong: typing caches unions in any order, so jsonargparse can read 1 as 1.0.
            if config.trainer[option] is not None:
                raise UsageError(f"--trainer.{option} would omit images: use --data.limit N for the first N images.")
        return config

    def resolve(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the `config.yaml` of a `test` with these options."""
        config: dict[str, Any] = load_yaml(self.dump(self.read(words), skip_none=False))
        return config


def build(part: dict[str, Any], stage: str | None = None) -> Any:
    """Build a model, or set up a data module, from `class_path` and `init_args`; return errors of users."""
    try:
        built = instantiate_class((), part | {"init_args": part.get("init_args") or {}})
        if stage is not None:
            built.setup(stage)
        return built
    except UserError as error:
        return error
    except FileNotFoundError as error:
        return UserError(f"{part['class_path']}: {error}.")


def run_parser(command: Literal["test", "intervene", "predict", "prepare", "check"]) -> RunParser:
    """Return the parser of a command."""
    parser = RunParser(
        default_config_files=[str(path) for path in defaults("test" if command == "intervene" else command)],
        description=COMMANDS[command]["summary"],
        usage=f"xbench {command} --config NAME_OR_PATH [--model.X ...] [--data.X ...] [--trainer.X ...]",
    )
    parser.command = command
    named = "Configuration file or shipped name, such as demo or clip_siim; may be repeated."
    parser.add_argument("-c", "--config", action=ActionConfigFile, metavar="NAME_OR_PATH", help=named)
    seeds = "Seed of random numbers; true for a random seed, false for none."
    parser.add_argument("--seed_everything", type=bool | int, default=0, help=seeds)
    parser.add_lightning_class_args(Trainer, "trainer")
    threads = "CPU threads per process. The last bits of results depend on it. --trainer.devices N starts N processes."
    parser.add_argument("--threads", type=PositiveInt, default=1, help=threads)
    more = "On a CPU, let --trainer.devices exceed the number of cores, which is slower."
    parser.add_argument("--oversubscribe", type=bool, default=False, help=more)
    resume = "test: continue the newest unfinished run of this model and dataset under --trainer.default_root_dir."
    parser.add_argument("--resume", type=bool, default=False, help=resume)
    if command == "predict":
        drawn = "Findings to draw, as a list or separated by commas; true for all, false for no "
        parser.add_argument("--overlays", type=bool | list[str] | str, default=True, help=f"{drawn}pictures.")
    # Lightning's sampler would count some images twice.
    parser.set_defaults({"trainer.use_distributed_sampler": False})
    for part, (base, _) in _BASES.items():
        parser.add_lightning_class_args(base, part, subclass_mode=True)
    return parser


def resolve_class(path: str) -> type[Any]:
    """Import the class of a `class_path`, even if it has the name of its module."""
    found: type[Any] = resolve_name(":".join(path.rsplit(".", 1)))
    return found


def user_error_behind(error: BaseException | None) -> UserError | None:
    """Return the `UserError` at or behind an exception; jsonargparse wraps those of constructors."""
    while error is not None:
        if isinstance(error, UserError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _check_class(part: str, path: str) -> None:
    base, example = _BASES[part]
    try:
        found = resolve_class(path)
        if isinstance(found, type) and issubclass(found, base):
            return
        problem = f"that is not a {'model' if part == 'model' else 'dataset'}."
    # Modules of users may raise anything.
    except Exception as error:
        problem = f"{error}."
        module, _, name = path.rpartition(".")
        with suppress(Exception):
            there = import_module(module)
            near = did_you_mean(name, getattr(there, "__all__", dir(there)), f"{module}.")
            problem = f"{module} has no {name}.{near}"
    raise UsageError(
        f"--{part} {path}: {problem} Give the full path of a class, such as {example}; or use --config with files "
        "or shipped names, such as --config mine.yaml --config siim, or --config clip_siim."
    )


def class_arguments(path: str) -> Mapping[str, Any]:
    """Return the argument types of a class, with those of `**kwargs`, by name."""
    found: dict[str, Any] = {}
    for init in [vars(owner)["__init__"] for owner in resolve_class(path).__mro__ if "__init__" in vars(owner)]:
        hints, taken = {}, [*inspect.signature(init).parameters.values()][1:]
        # Names for type checkers only cannot be resolved.
        with suppress(NameError, TypeError):
            hints = get_type_hints(init)
        named = [one for one in taken if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        found = {one.name: hints.get(one.name, one.annotation) for one in named} | found
        if all(one.kind is not one.VAR_KEYWORD for one in taken):
            break
    return found
