"""The runs of a benchmark, each with the words that start it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import yaml

from xbench.commands.bench.config import BenchConfig, Options, Variant
from xbench.commands.configs import shipped
from xbench.errors import UserError
from xbench.runtime.files import atomic_writer


@dataclass(frozen=True)
class Job:
    """A run of a benchmark.

    Attributes:
        model: Name of the model.
        dataset: Name of the dataset.
        variant: Name of the variant; empty for the run as it is by default.
        options: The words after `test`.
        unset: What keeps it from being run already here: variables that its configuration needs and nobody set.
    """

    model: str
    dataset: str
    variant: str
    options: tuple[str, ...]
    unset: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in files and on the screen."""
        return f"{self.model}_{self.dataset}" + (f"+{self.variant}" if self.variant else "")


def plan(config: BenchConfig, out: Path, more: Sequence[str] = ()) -> list[Job]:
    """Return the runs of a benchmark in the order in which they come: first all pairs, then variant by variant.

    Datasets follow one another, so that the first of them can be compared over all models soon.

    Args:
        config: The benchmark.
        out: Where runs go. A pair with a class of the user's gets a configuration below.
        more: Options from the command line, which win over all others.
    """
    return [
        _job(config, name, variant, model, dataset, out, more)
        for name, variant in {"": Variant(), **config.variants}.items()
        for dataset in config.datasets
        for model in config.models
        if (variant.models is None or model in variant.models)
        and (variant.datasets is None or dataset in variant.datasets)
    ]


def part_of(jobs: Sequence[Job], part: str) -> list[Job]:
    """Return the share of one of several processes: `3/49` is every 49th job from the third on.

    Raises:
        UserError: It is no such fraction.
    """
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UserError(f"bench --part {part}: give K/N with K from 1 to N, such as 3/49.", exit_status=2)
    return [*jobs[int(number) - 1 :: int(count)]]


def _job(
    config: BenchConfig, name: str, variant: Variant, model: str, dataset: str, out: Path, more: Sequence[str]
) -> Job:
    own = {"model": _flat(config.models[model]), "data": _flat(config.datasets[dataset]), "trainer": {}}
    classes = {part: own[part].pop("class_path", None) for part in ("model", "data")}
    homes = {"model": f"models.{model}", "data": f"datasets.{dataset}", "trainer": "trainer"}
    unset: list[str] = []
    words: list[str] = []
    for part, options in own.items():
        # The progress bar would only fill a log; what the user gives wins.
        given: dict[str, Any] = {"enable_progress_bar": False} if part == "trainer" else {}
        given |= _expand(getattr(config, part), part, unset)
        given |= _expand(options, homes[part], unset)
        given |= _expand(getattr(variant, part), f"variants.{name}.{part}", unset)
        words += [f"--{part}.{option}={_spelled(value)}" for option, value in given.items()]
    pair = f"{model}_{dataset}"
    chosen = pair if not any(classes.values()) else str(_own_pair(pair, classes, model, dataset, out))
    line = ("--config", chosen, *words, *more, f"--trainer.default_root_dir={out}")
    return Job(model, dataset, name, line, tuple(dict.fromkeys(unset)))


def _expand(value: Any, where: str, unset: list[str]) -> Any:
    """Replace `${VAR}` in all texts of a value, and `~` at their beginning.

    Args:
        value: The value.
        where: Where it stands, such as `datasets.siim`.
        unset: Gets a sentence for each variable that is not set.
    """
    if isinstance(value, Mapping):
        return {key: _expand(inner, f"{where}.{key}", unset) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner, where, unset) for inner in value]
    if not isinstance(value, str):
        return value
    template = Template(value)
    section, option = where.partition(".")[0], where.rpartition(".")[2]
    unset += [
        f"The environment variable {name}, which {option} of {section} needs, is not set."
        for name in template.get_identifiers()
        if name not in os.environ
    ]
    return os.path.expanduser(template.safe_substitute(os.environ))


def _own_pair(pair: str, classes: Mapping[str, Any], model: str, dataset: str, out: Path) -> Path:
    """Write the configuration of a pair that is not shipped."""
    files = {"model": shipped("models").get(model), "data": shipped("data").get(dataset)}
    content = {part: {"class_path": chosen} if chosen else str(files[part]) for part, chosen in classes.items()}
    path = out / "bench" / f"{pair}.yaml"
    text = yaml.safe_dump(content)
    # Only where something changes: several processes may share the folder.
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_writer(path, shared=True) as file:
                file.write(text.encode())
        except OSError as error:
            raise UserError(f"bench: {path} cannot be written: {error.strerror}. Give another --out.") from error
    return path


def _flat(options: Options) -> dict[str, Any]:
    """Options of a class, whether or not they stand under `init_args`, as in the configuration of a run."""
    nested = options.get("init_args") or {}
    return {**nested, **{name: value for name, value in options.items() if name != "init_args"}}


def _spelled(value: Any) -> str:
    """Write a value as an option has it."""
    return value if isinstance(value, str) else json.dumps(value)
