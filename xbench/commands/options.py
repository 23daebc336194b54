"""The options of `test`, `predict`, `prepare` and `check`: configurations by name, over them the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal, NoReturn

import yaml
from jsonargparse import ActionConfigFile, Namespace
from jsonargparse.typing import PositiveInt
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, instantiate_class

from xbench.commands.arguments import PURPOSES, none_chosen
from xbench.commands.configs import defaults, did_you_mean, resolve_class, resolve_config
from xbench.data.datamodule import ChestXrayDataModule
from xbench.errors import UserError
from xbench.models.base import SaliencyModel


class _NamedConfig(ActionConfigFile):
    """`--config` by path or by name; remembers which classes the configurations chose."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        # Untyped in jsonargparse.
        read: Callable[..., None] = super().__call__
        read(parser, cfg, resolve_config(str(values)), option_string)
        for part in ("model", "data"):
            chosen = cfg.get(f"{part}.class_path")
            if chosen is not None:
                _refuse_change(part, parser.chosen.setdefault(part, chosen), chosen)


class RunParser(LightningArgumentParser):
    """Parser that reports errors in one paragraph; jsonargparse makes further ones of this class for nested options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"prog": "xbench test"} | kwargs)
        # The classes that the configurations chose, by part (`model`, `data`).
        self.chosen: dict[str, str] = {}
        # Whose options these are.
        self.command = "test"

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what jsonargparse found wrong as one paragraph."""
        if not self.exit_on_error:
            # A parser of nested options: the outer one collects its errors.
            super().error(message, ex)
        missing = re.search(r"arguments are required: (.+)", message)
        if missing and "class_path" not in message and (parts := re.findall(r"\b(data|model)\b", missing[1])):
            raise none_chosen(*sorted(parts, reverse=True))
        if unknown := re.match(r"unrecognized arguments: --([\w.]+)", message):
            known = [*self.get_defaults(skip_validation=True).keys()]
            known += [f"{part}.{option}" for part, name in self.chosen.items() for option in _options(name)]
            part, _, name = unknown[1].rpartition(".")
            siblings = [one.rpartition(".")[2] for one in known if part and one.rpartition(".")[0] == part]
            near = did_you_mean(name, siblings, f"--{part}.") if siblings else did_you_mean(unknown[1], known, "--")
            message += f".{near}"
        raise user_error_behind(ex) or UserError(in_one_paragraph(message, self.command), exit_status=2)

    def read(self, words: Sequence[str]) -> Namespace:
        """Return the options that the words after a command stand for.

        Raises:
            UserError: They are wrong, or choose another model or dataset than the configuration.
        """
        self.chosen.clear()
        config = self.parse_args(_configs_first(words))
        for part, chosen in self.chosen.items():
            _refuse_change(part, chosen, config[part].class_path)
        if config.trainer.use_distributed_sampler:
            raise UserError(
                "--trainer.use_distributed_sampler true would score some images twice: leave it out, the data module "
                "deals the images to the processes.",
                exit_status=2,
            )
        return config

    def resolve(self, words: Sequence[str]) -> dict[str, Any]:
        """Return what the `config.yaml` of a `test` with these options would hold."""
        config: dict[str, Any] = yaml.safe_load(self.dump(self.read(words), skip_none=False))
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
    parser.add_argument(
        "-c",
        "--config",
        action=_NamedConfig,
        metavar="NAME_OR_PATH",
        help="A configuration file, or the name of a shipped one, such as demo or clip_siim; may be repeated.",
    )
    seeds = "Seed of all random numbers; true chooses one, false sets none."
    parser.add_argument("--seed_everything", type=bool | int, default=0, help=seeds)
    parser.add_lightning_class_args(Trainer, "trainer")
    parser.add_argument(
        "--threads",
        type=PositiveInt,
        default=1,
        help="CPU threads that each process computes with. Results depend on it in their last bits, so it is the "
        "same whatever the number of processes; on a CPU, --trainer.devices N makes N processes work.",
    )
    parser.add_argument(
        "--oversubscribe",
        type=bool,
        default=False,
        help="On a CPU, let --trainer.devices start more processes than there are cores for this one to use, which "
        "is refused otherwise: each loads the model, and together they are slower.",
    )
    parser.add_argument(
        "--resume",
        type=bool,
        default=False,
        help="test: go on with the newest unfinished run of this model and dataset under "
        "--trainer.default_root_dir, if there is one; its finished images are not done again, and the results are "
        "those of an unbroken run.",
    )
    if command == "predict":
        parser.add_argument(
            "--overlays",
            type=bool | list[str] | str,
            default=True,
            help="The findings to draw over each image, in a list or with commas between; true for all, false for no "
            "pictures.",
        )
    # The data module deals the batches; Lightning's sampler would count some images twice.
    parser.set_defaults({"trainer.use_distributed_sampler": False})
    # Parts are built in this order: a wrong data folder is found before weights are loaded.
    parser.add_lightning_class_args(ChestXrayDataModule, "data", subclass_mode=True)
    parser.add_lightning_class_args(SaliencyModel, "model", subclass_mode=True)
    return parser


def _refuse_change(part: str, chosen: str, changed: str) -> None:
    # jsonargparse would keep those arguments of the first class that the second happens to have as well, such as a
    # checkpoint, and the run would give a wrong number that looks right.
    if chosen != changed:
        raise UserError(
            f"The configuration chose the {part} {chosen}, and then {changed} was asked for, which would inherit "
            f"arguments that were meant for the first. Name one pair instead (--config MODEL_DATASET), or write a "
            f"configuration of your own with class_path: {changed}.",
            exit_status=2,
        )


def _configs_first(words: Sequence[str]) -> list[str]:
    """Move `--config` before all other options, which it would otherwise overwrite without a word."""
    configs: list[str] = []
    others: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        is_config = word.startswith("--config=") or "--config" in (before, word) or "-c" in (before, word)
        (configs if is_config else others).append(word)
    return configs + others


def user_error_behind(error: BaseException | None) -> UserError | None:
    """Return the `UserError` that an exception is or was caused by; jsonargparse wraps what a constructor raises."""
    while error is not None:
        if isinstance(error, UserError):
            return error
        error = error.__cause__ or error.__context__
    return None


def expected(message: str) -> str:
    """Shorten jsonargparse's message about a wrong value to a sentence's end; return nothing for any other message.

    >>> expected("Expected a <class 'int'>. Got value: three")
    "int, not 'three'."
    >>> expected("Subtypes: [typing.Literal['stop', 'skip'], <class 'NoneType'>]. Given value: skp")
    "one of stop, skip, not 'skp'. Did you mean skip?"
    >>> expected("Subtypes: [<class 'int'>, tuple[int, int], typing.Literal['native']]. Given value: naive")
    "int, tuple[int, int] or native, not 'naive'. Did you mean native?"
    """
    types = re.search(r"Subtypes: \[(.+)\]", message) or re.search(r"Expected an? (.+?)\. Got value", message)
    value = re.search(r"(?:Got|Given) value: (.+)", message)
    if types is None or value is None:
        return ""
    plain = re.sub(r"<class '([\w.]+)'>", r"\1", types[1])
    # Of a class the name alone; numbers with a point in them stay.
    plain = re.sub(r"\b(?:[a-z_]\w*\.)+(\w+)", r"\1", plain)
    choices = dict.fromkeys(re.findall(r"[\w-]+", ", ".join(re.findall(r"Literal\[([^]]*)\]", plain))))
    # What else is taken stands before them; None, which stands for an option that is not given, is left out.
    others = re.sub(r"Literal\[[^]]*\]|\bNoneType\b", "", plain)
    others = ", ".join(part for part in re.split(r",\s*(?![^[]*\])", others) if part.strip())
    if choices:
        named = ", ".join(choices)
        others = f"{others} or {named}" if others else f"one of {named}"
    return f"{others}, not {value[1].strip()!r}.{did_you_mean(value[1].strip(), choices)}"


def in_one_paragraph(message: str, command: str) -> str:
    """Shorten jsonargparse's message about the options of a run, which lists every member of a union, to one paragraph.

    Its exceptions hold nothing but this text.
    """
    key = re.search(r'Parser key "([^"]+)"', message)
    chosen = re.search(r"Problem with given class_path '([^']+)':\s*(.+)", message, re.S)
    if key and chosen:
        return _about_class(key[1], chosen[1], chosen[2], command)
    text = re.sub(r"\s*\n[\s-]*", "; ", message.strip().rstrip(".")) + ("" if message.endswith("?") else ".")
    if key and key[1] in ("model", "data") and "Expected a dot import path" in message:
        example = {"model": "xbench.models.CLIP", "data": "xbench.data.PhantomCXR"}[key[1]]
        text = (
            f"--{key[1]} expects a class by its full path, such as {example}; shipped models and datasets go by the "
            "name of the pair: --config MODEL_DATASET, such as --config clip_siim."
        )
    elif key and (limit := re.search(r"Not of type \w+: (\S+) does not conform to restriction v(.+)", message)):
        text = f"--{key[1]} {limit[1]}: it must be {limit[2].replace('>', 'above ')}."
    elif part := re.match(r"argument --(data|model): expected one argument", message):
        text = f"An option --{part[1]}.X has no value."
    elif key and (values := expected(message)):
        text = f"--{key[1]} expects {values}"
    return f"{text} See `xbench {command} --help`."


def _about_class(part: str, name: str, problem: str, command: str) -> str:
    """Say what is wrong with the options of a class, or with its name."""
    see = f"`xbench {command} --{part}.help {name}` shows all its options."
    option = re.match(r'Parser key "([^"]+)":', problem)
    if option and (values := expected(problem)):
        return f"--{part}.{option[1]} of {name} expects {values} {see}"
    if required := re.search(r"arguments are required: (.+)", problem):
        return f"{name} needs {', '.join(f'--{part}.{one.strip()}' for one in required[1].split(','))}. {see}"
    if unknown := re.search(r"Option '(\w+)' is not accepted", problem):
        near = did_you_mean(unknown[1], _options(name), f"--{part}.")
        if unknown[1] == "root" and name.endswith(".PhantomCXR"):
            near = " Phantoms are drawn: for films of your own, take a dataset, or --config demo_folder to predict."
        return f"{name} has no option --{part}.{unknown[1]}.{near} {see}"
    if absent := re.match(r"module '([\w.]+)' has no attribute '(\w+)'", problem):
        module = import_module(absent[1])
        near = did_you_mean(absent[2], getattr(module, "__all__", dir(module)), f"{absent[1]}.")
        return f"--{part} {name}: {absent[1]} has no {absent[2]}.{near}"
    return f"--{part} {name}: {problem.splitlines()[0]}."


def _options(name: str) -> list[str]:
    """Return the arguments of a class and of those that it derives from."""
    return sorted({option for owner in resolve_class(name).__mro__ for option in inspect.signature(owner).parameters})
