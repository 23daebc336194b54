"""What a benchmark consists of, from YAML: models, datasets, where they lie, and variants of them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from xbench.commands.configs import check_yaml, shipped
from xbench.errors import UserError

__all__ = ["BenchConfig", "Options", "Variant", "expand", "read_bench"]

Options = Mapping[str, Any]
"""Options of a model, a data module or the trainer, by name, as YAML has them."""

DEFAULT = "paper"
"""The shipped benchmark whose models and datasets are taken where no configuration names any."""

_NAME = "a name is of letters, digits, dots, dashes and underscores, with no dot or dash at the beginning."
_PARTS = ("model", "data", "trainer")
_SECTIONS = ("out", "models", "datasets", *_PARTS, "variants")


@dataclass(frozen=True)
class Variant:
    """Options that runs are repeated with.

    Attributes:
        name: Its name.
        options: Options by part: `model`, `data` and `trainer`.
        models: The models that it is for; None for all.
        datasets: Likewise the datasets.
    """

    name: str
    options: Mapping[str, Options]
    models: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None


@dataclass(frozen=True)
class BenchConfig:
    """A benchmark: every model on every dataset, then every variant of these.

    Attributes:
        models: Options of each model by name. One with `class_path` is a class of the user's.
        datasets: Likewise of each dataset.
        options: Options of every run, by part: `model`, `data` and `trainer`.
        variants: What is repeated with other options.
        out: Where runs go; None where no configuration says it.
    """

    models: Mapping[str, Options]
    datasets: Mapping[str, Options]
    options: Mapping[str, Options] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    out: str | None = None


def read_bench(names: Sequence[str] = (), models: Sequence[str] = (), datasets: Sequence[str] = ()) -> BenchConfig:
    """Read configurations, the later over the earlier.

    Args:
        names: Paths, or names of shipped ones. Where none of them names models, or datasets, those of the paper count.
        models: Take these alone, each one that a configuration names or one that is shipped.
        datasets: Likewise.

    Raises:
        UserError: A file is missing or malformed, or a name means nothing; says everything that is wrong.
    """
    content: dict[str, Any] = {}
    for name in names:
        content = _merged(content, _read(name))
    default = _read(DEFAULT)
    problems: list[str] = []
    known = {"models": [*shipped("models")], "datasets": [*shipped("data")]}
    chosen: dict[str, dict[str, Options]] = {}
    for section, wanted in (("models", models), ("datasets", datasets)):
        listed = _entries(content.get(section) or default[section], section, known[section], problems)
        known[section] = [*dict.fromkeys([*known[section], *listed])]
        unknown = [name for name in wanted if name not in known[section]]
        problems += [_unknown(f"--{section} {name}", name, known[section]) for name in unknown]
        chosen[section] = {name: listed.get(name, {}) for name in wanted} if wanted else listed
    options = {part: _options(content.get(part), part, problems) for part in _PARTS}
    variants = _variants(content.get("variants"), known, problems)
    out = content.get("out")
    if out is not None and not isinstance(out, str):
        problems.append(f"out must be the path of a folder, not {out!r}.")
    if problems:
        where = f"bench --config {' --config '.join(names)}: " if names else "bench: "
        raise UserError(where + " ".join(dict.fromkeys(problems)), exit_status=2)
    return BenchConfig(chosen["models"], chosen["datasets"], options, variants, out)


def expand(value: Any, where: str, problems: list[str]) -> Any:
    """Replace `${VAR}` in all texts of a value, and `~` at their beginning.

    Args:
        value: The value.
        where: Where it stands, such as `datasets.siim`.
        problems: Gets a sentence for each variable that is not set.
    """
    if isinstance(value, Mapping):
        return {key: expand(inner, f"{where}.{key}", problems) for key, inner in value.items()}
    if isinstance(value, list):
        return [expand(inner, where, problems) for inner in value]
    if not isinstance(value, str):
        return value
    for name in re.findall(r"\$\{(\w+)\}", value):
        if name not in os.environ:
            section, option = where.partition(".")[0], where.rpartition(".")[2]
            problems.append(f"The environment variable {name}, which {option} of {section} needs, is not set.")
    value = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), value)
    return os.path.expanduser(value) if value.startswith("~") else value


def _read(name: str) -> dict[str, Any]:
    """Read one configuration by path or by shipped name."""
    path = Path(name).expanduser()
    stem = name.removesuffix(".yaml")
    if not path.is_file():
        found = shipped("bench")
        if stem not in found:
            close = difflib.get_close_matches(stem, found, n=2)
            raise UserError(
                f"bench --config {name}: there is no such file, and no such benchmark is shipped."
                + (f" Did you mean {' or '.join(close)}?" if close else "")
                + f" Shipped are {', '.join(found)}; `python -m xbench.cli list benches` says what they are.",
                exit_status=2,
            )
        path = found[stem]
    try:
        text = path.read_text(encoding="utf-8")
        check_yaml(text)
        content = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"bench --config {path}: {' '.join(str(error).split())}", exit_status=2) from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise UserError(f"bench --config {path}: write a mapping of {', '.join(_SECTIONS)}.", exit_status=2)
    if unknown := [str(key) for key in content if key not in _SECTIONS]:
        raise UserError(f"bench --config {path}: {_unknown(unknown[0], unknown[0], _SECTIONS)}", exit_status=2)
    for section in ("models", "datasets"):
        names = content.get(section)
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            content[section] = dict.fromkeys(names)
    # An empty section says nothing, as if it were not there.
    return {key: value for key, value in content.items() if value is not None}


def _merged(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: _merged(first.get(key), second.get(key, first.get(key))) for key in {**first, **second}}
    return second


def _entries(listed: Any, section: str, known: Sequence[str], problems: list[str]) -> dict[str, Options]:
    if not isinstance(listed, dict):
        problems.append(f"{section} must be a mapping from names to options, or a list of names.")
        return {}
    entries = {}
    for name, value in listed.items():
        options = _options(value, f"{section}.{name}", problems)
        if name not in known and "class_path" not in options:
            advice = f"For a class of your own give {section}.{name}.class_path as well."
            problems.append(f"{_unknown(f'{section}.{name}', str(name), known)} {advice}")
        elif not re.fullmatch(r"\w[\w.-]*", str(name)):
            problems.append(f"{section}.{name}: {_NAME}")
        entries[str(name)] = options
    return entries


def _options(value: Any, where: str, problems: list[str]) -> Options:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        problems.append(f"{where} must be a mapping of options, such as {{root: /data/siim}}, not {value!r}.")
        return {}
    if where == "trainer" and "default_root_dir" in value:
        problems.append("trainer.default_root_dir is what the benchmark sets: give out instead.")
    return value


def _variants(value: Any, known: Mapping[str, Sequence[str]], problems: list[str]) -> tuple[Variant, ...]:
    variants = []
    for name, entry in _options(value, "variants", problems).items():
        where = f"variants.{name}"
        entry = _options(entry, where, problems)
        keys = (*known, *_PARTS)
        problems += [_unknown(f"{where}.{key}", key, keys) for key in entry if key not in keys]
        if not re.fullmatch(r"\w[\w.-]*", name):
            problems.append(f"{where}: {_NAME}")
        options = {part: _options(entry.get(part), f"{where}.{part}", problems) for part in _PARTS}
        if not any(options.values()):
            problems.append(f"{where} changes nothing: give options under model, data or trainer.")
        limits = {}
        for section, names in known.items():
            limit = entry.get(section)
            if limit is not None and not (isinstance(limit, list) and all(isinstance(n, str) for n in limit)):
                problems.append(f"{where}.{section} must be a list of names.")
                limit = None
            problems += [_unknown(f"{where}.{section}: {n}", n, names) for n in limit or () if n not in names]
            limits[section] = None if limit is None else tuple(limit)
        variants.append(Variant(name, options, limits["models"], limits["datasets"]))
    return tuple(variants)


def _unknown(where: str, name: str, known: Iterable[str]) -> str:
    names = [*known]
    close = difflib.get_close_matches(name, names, n=2)
    return f"{where} is not known" + (
        f"; did you mean {' or '.join(close)}?" if close else f"; there is {', '.join(names)}."
    )
