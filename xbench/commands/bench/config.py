"""What a benchmark consists of: YAML that names models, datasets and variants, and the runs of these."""

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
"""Options of a model, a data module or the trainer, by name, as YAML has them."""

# Names of folders and files are made of it.
_Name = Annotated[str, StringConstraints(pattern=r"^\w[\w.-]*$")]

_SECTIONS = {"models": "model", "datasets": "data"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Options = {}
    data: Options = {}
    trainer: Options = {}


class Variant(_Section):
    """Options that runs are repeated with, for all models and datasets or for the named ones."""

    models: list[str] | None = None
    datasets: list[str] | None = None


class BenchConfig(_Section):
    """A benchmark: every model on every dataset, then every variant of these; `model` has options of every model."""

    models: dict[_Name, Options]  # by name; one with `class_path` is a class of the user's
    datasets: dict[_Name, Options]
    variants: dict[_Name, Variant] = {}
    out: str | None = None  # folder of the runs


def read_bench(names: Sequence[str] = (), models: Sequence[str] = (), datasets: Sequence[str] = ()) -> BenchConfig:
    """Read configurations, the later over the earlier.

    Args:
        names: Paths, or names of shipped ones. Where none of them names models, or datasets, those of the paper count.
        models, datasets: Take these alone, each one that a configuration names or one that is shipped.

    Raises:
        UserError: A file is missing or malformed, or a name means nothing; says everything that is wrong.
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
    update = {
        section: {name: getattr(config, section).get(name, {}) for name in wanted}
        for section, wanted in chosen.items()
        if wanted
    }
    return config.model_copy(update=update)


def _read(name: str) -> dict[str, Any]:
    """Read one configuration by path or by shipped name."""
    found, path, stem = shipped("bench"), Path(name).expanduser(), name.removesuffix(".yaml")
    if not path.is_file():
        for section, part in _SECTIONS.items():
            if stem not in found and stem in shipped(FOLDERS[part]):
                return {section: {stem: {}}}
        if stem not in found:
            raise UsageError(
                f"bench --config {name}: there is no such file, and no such benchmark is shipped."
                f"{did_you_mean(stem, found)} Shipped are {', '.join(found)}: see `xbench list benches`."
            )
        path = found[stem]
    content = read_mapping(path, f"bench --config {path}")
    for section, part in _SECTIONS.items():
        if isinstance(content.get(section), list):
            content[section] = dict.fromkeys(content[section])
        # The configuration of a run, whose model is one of the benchmark's.
        one = content.get(part)
        if isinstance(one, str) or (isinstance(one, dict) and ("class_path" in one or own_dataset(flat(one)))):
            options = flat(read_part(part, content.pop(part), path.parent, f"bench --config {path}: {part}"))
            options = dict(zip(["class_path"], own_dataset(options), strict=False)) | options
            named = Path(one).stem if isinstance(one, str) else str(options["class_path"]).rpartition(".")[2].lower()
            named = str(options.get("name", named)) if part == "data" else named
            content[section] = {**(content.get(section) or {}), named: options}
    # An empty section says nothing, as if it were not there.
    return {key: value for key, value in content.items() if value is not None}


def _merged(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: _merged(first.get(key), second.get(key, first.get(key))) for key in {**first, **second}}
    return second


def _problems(config: BenchConfig, chosen: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Say which names mean nothing, and what is allowed by its type and makes no sense."""
    if "default_root_dir" in config.trainer:
        yield "trainer.default_root_dir is what the benchmark sets: give out instead."
    for section, part in _SECTIONS.items():
        known, listed = [*shipped(FOLDERS[part])], getattr(config, section)
        for name, options in listed.items():
            if name not in known and "class_path" not in options:
                own = f"For a class of your own give {section}.{name}.class_path as well."
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
    """Write one of pydantic's errors as a sentence."""
    path = [str(part) for part in problem["loc"] if part != "[key]"]
    if problem["type"] == "extra_forbidden":
        return _unknown(".".join(path), path[-1], (BenchConfig if len(path) == 1 else Variant).model_fields)
    return f"{'.'.join(path)}: {problem['msg']}, not {problem['input']!r}."


def _unknown(where: str, name: str, known: Iterable[str]) -> str:
    names = [*known]
    return f"{where} is not known; there is {', '.join(names)}.{did_you_mean(name, names)}"


@dataclass(frozen=True)
class Job:
    """A run of a benchmark."""

    model: str
    dataset: str
    variant: str  # empty for the run as it is by default
    options: tuple[str, ...]  # the words after `test`
    unset: tuple[str, ...] = ()  # sentences about variables that its configuration needs and nobody set

    @property
    def name(self) -> str:
        """Its name in files and on the screen."""
        return f"{self.model}_{self.dataset}" + (f"+{self.variant}" if self.variant else "")


def plan(config: BenchConfig, out: Path, more: Sequence[str] = ()) -> list[Job]:
    """Return the runs of a benchmark in the order in which they come: first all pairs, then variant by variant.

    Datasets follow one another, so that the first of them can be compared over all models soon. Runs go to `out`; the
    options `more`, from the command line, win over all others.
    """
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
    """Return the share of one of several processes: `3/49` is every 49th job from the third on."""
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
    # The progress bar would only fill a log; what the user gives comes later and wins.
    words.append("--trainer.enable_progress_bar=false")
    unset: dict[str, None] = {}
    for part, options in own.items():
        given = {**getattr(config, part), **options, **getattr(variant, part)}
        for option, value in _expand(given, part, unset).items():
            words.append(f"--{part}.{option}={value if isinstance(value, str) else json.dumps(value)}")
    return Job(model, dataset, name, (*words, *end), tuple(unset))


def _expand(value: Any, option: str, unset: dict[str, None]) -> Any:
    """Replace `${VAR}` in all texts of a value, and `~` at their beginning; note in `unset` what cannot be."""
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
