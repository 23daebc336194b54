"""Configuration of a benchmark: models, datasets and variants in YAML, and their runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from xbench.commands.configs import FOLDERS, did_you_mean, flat, own_dataset, read_mapping, read_part, shipped
from xbench.runtime.errors import UsageError

Options = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]
"""Options by name, as in YAML."""

# Used as names of folders and files.
_Name = Annotated[str, StringConstraints(pattern=r"^\w[\w.-]*$")]

_SECTIONS = {"models": "model", "datasets": "data"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Options = {}
    data: Options = {}
    trainer: Options = {}


class Variant(_Section):
    """Options for repeated runs of all models and datasets, or of those named."""

    models: list[str] | None = None
    datasets: list[str] | None = None


class BenchConfig(_Section):
    """A benchmark: every model on every dataset, then each variant; `model` holds options of all models."""

    models: dict[_Name, Options]  # by name; `class_path` adds a user's class
    datasets: dict[_Name, Options]
    variants: dict[_Name, Variant] = {}
    out: str | None = None


def read_bench(names: Sequence[str] = (), models: Sequence[str] = (), datasets: Sequence[str] = ()) -> BenchConfig:
    """Read configurations, later ones overriding earlier ones.

    Args:
        names: Paths or shipped names. Models or datasets default to those of the paper.
        models, datasets: Select these, from the configurations or shipped ones.

    Raises:
        UserError: A file is missing or malformed, or a name unknown; lists all problems.
    """
    content: dict[str, Any] = {}
    for name in names:
        content = _merged(content, _read(name))
    default, chosen = _read("paper"), {"models": models, "datasets": datasets}
    content |= {section: content.get(section) or default[section] for section in _SECTIONS}
    try:
        config = BenchConfig.model_validate(content)
        problems = [*_problems(config, chosen)]
    except ValidationError as error:
        problems = [_explain(problem) for problem in error.errors()]
    if problems:
        raise UsageError(" ".join(dict.fromkeys([f"bench {' '.join(names)}:", *problems])))
    given = {section: (wanted, getattr(config, section)) for section, wanted in chosen.items() if wanted}
    update = {section: {name: known.get(name, {}) for name in wanted} for section, (wanted, known) in given.items()}
    return config.model_copy(update=update)


def _read(name: str) -> dict[str, Any]:
    found, path, stem = shipped("bench"), Path(name).expanduser(), name.removesuffix(".yaml")
    if not path.is_file():
        for section, part in _SECTIONS.items():
            if stem not in found and stem in shipped(FOLDERS[part]):
                return {section: {stem: {}}}
        if stem not in found:
            raise UsageError(
                f"bench --config {name}: there is no such file or shipped benchmark."
                f"{did_you_mean(stem, found)} Shipped are {', '.join(found)}: see `xbench list benches`."
            )
        path = found[stem]
    content = read_mapping(path, f"bench --config {path}")
    for section, part in _SECTIONS.items():
        if isinstance(content.get(section), list):
            content[section] = dict.fromkeys(content[section])
        # A run's configuration: its model becomes one of the benchmark.
        one = content.get(part)
        if isinstance(one, str) or (isinstance(one, dict) and ("class_path" in one or own_dataset(flat(one)))):
            options = flat(read_part(part, content.pop(part), path.parent, f"bench --config {path}: {part}"))
            options = dict(zip(["class_path"], own_dataset(options), strict=False)) | options
            named = Path(one).stem if isinstance(one, str) else str(options["class_path"]).rpartition(".")[2].lower()
            named = str(options.get("name", named)) if part == "data" else named
            content[section] = {**(content.get(section) or {}), named: options}
    # Empty sections count as missing.
    return {key: value for key, value in content.items() if value is not None}


def _merged(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: _merged(first.get(key), second.get(key, first.get(key))) for key in {**first, **second}}
    return second


def _problems(config: BenchConfig, chosen: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if "default_root_dir" in config.trainer:
        yield "trainer.default_root_dir is set by the benchmark: use out instead."
    for section, part in _SECTIONS.items():
        known, listed = [*shipped(FOLDERS[part])], getattr(config, section)
        for name, options in listed.items():
            if name not in known and "class_path" not in options:
                own = f"For your own class add {section}.{name}.class_path."
                yield f"{_unknown(f'{section}.{name}', name, known)} {own}"
        named = [(f"--{section} {name}", name) for name in chosen[section]]
        for variant, entry in config.variants.items():
            named += [(f"variants.{variant}.{section}: {name}", name) for name in getattr(entry, section) or ()]
        known = [*dict.fromkeys([*known, *listed])]
        yield from (_unknown(where, name, known) for where, name in named if name not in known)
    for variant, entry in config.variants.items():
        if not (entry.model or entry.data or entry.trainer):
            yield f"variants.{variant} changes nothing: give options under model, data or trainer."


def _explain(problem: Any) -> str:
    path = [str(part) for part in problem["loc"] if part != "[key]"]
    if problem["type"] == "extra_forbidden":
        return _unknown(".".join(path), path[-1], (BenchConfig if len(path) == 1 else Variant).model_fields)
    return f"{'.'.join(path)}: {problem['msg']}, not {problem['input']!r}."


def _unknown(where: str, name: str, known: Iterable[str]) -> str:
    names = [*known]
    return f"{where} is unknown; choose from {', '.join(names)}.{did_you_mean(name, names)}"


@dataclass(frozen=True)
class Job:
    """A run of a benchmark."""

    model: str
    dataset: str
    variant: str  # empty for the default run
    options: tuple[str, ...]  # the words after `test`
    unset: tuple[str, ...] = ()  # errors about missing environment variables

    @property
    def name(self) -> str:
        """Name in files and on the screen."""
        return f"{self.model}_{self.dataset}" + (f"+{self.variant}" if self.variant else "")


def plan(config: BenchConfig, out: Path, more: Sequence[str] = ()) -> list[Job]:
    """Return the runs into `out`: all pairs, dataset by dataset, then each variant; `more` overrides all options."""
    end = (*more, f"--trainer.default_root_dir={out}")
    return [
        _job(config, name, variant, model, dataset, end)
        for name, variant in {"": Variant(), **config.variants}.items()
        for dataset in config.datasets
        for model in config.models
        if (variant.models is None or model in variant.models)
        and (variant.datasets is None or dataset in variant.datasets)
    ]


def part_of(jobs: Sequence[Job], part: str) -> list[Job]:
    """Return the jobs of one of several processes: `3/49` is every 49th from the third on."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UsageError(f"bench --part {part}: give K/N with K from 1 to N, such as 3/49.")
    return [*jobs[int(number) - 1 :: int(count)]]


def _job(config: BenchConfig, name: str, variant: Variant, model: str, dataset: str, end: Sequence[str]) -> Job:
    own = {"model": flat(config.models[model]), "data": flat(config.datasets[dataset]), "trainer": {}}
    files = {"model": shipped("models").get(model), "data": shipped("data").get(dataset)}
    classes = {part: own[part].pop("class_path", None) for part in files}
    words = ["--config", f"{model}_{dataset}"]
    if any(classes.values()):
        chosen = {part: {"class_path": one} if one else str(files[part]) for part, one in classes.items()}
        words[1] = json.dumps(chosen)
    # A progress bar would fill the log; options of the user come later and win.
    words.append("--trainer.enable_progress_bar=false")
    unset: dict[str, None] = {}
    for part, options in own.items():
        given = {**getattr(config, part), **options, **getattr(variant, part)}
        for option, value in _expand(given, part, unset).items():
            words.append(f"--{part}.{option}={value if isinstance(value, str) else json.dumps(value)}")
    return Job(model, dataset, name, (*words, *end), tuple(unset))


def _expand(value: Any, option: str, unset: dict[str, None]) -> Any:
    """Expand `${VAR}` and leading `~` in all texts of a value; add errors to `unset`."""
    if isinstance(value, Mapping):
        return {name: _expand(inner, f"{option}.{name}", unset) for name, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner, option, unset) for inner in value]
    if not isinstance(value, str):
        return value
    template = Template(value)
    for name in template.get_identifiers():
        if name not in os.environ:
            unset[f"The environment variable {name}, which {option} needs, is not set."] = None
    return os.path.expanduser(template.safe_substitute(os.environ))
