"""What a benchmark consists of: the options of `bench`, and YAML that names models, datasets and variants."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from xbench.commands.configs import shipped
from xbench.commands.parsers import CommandParser
from xbench.errors import UserError

DEFAULT = "paper"
"""The shipped benchmark whose models and datasets are taken where no configuration names any."""

_EXAMPLES = """
examples:
  bench --config demo                           models without a download on drawn radiographs, in minutes
  bench                                         the paper: data in $XBENCH_DATA, weights in $XBENCH_WEIGHTS
  bench --config mine.yaml --models clip kad    what mine.yaml says, two models of it
  bench --config mine.yaml --config resolution  the same, and once more at 448 pixels
  bench --config mine.yaml --data.batch_size 32 --trainer.precision bf16-mixed

mine.yaml says where things lie, and what of it is to run:
  models:
    clip: {}
    carzero: {checkpoint: /models/carzero.safetensors}
  datasets:
    vindr: {root: /data/vindr}
  trainer: {precision: bf16-mixed}
  variants:
    by_name: {model: {prompts: name}}

A run is skipped if it is finished and would come out the same: same configuration but for what moves no number, same
code and versions, checkpoint, annotation files and number of images. Whatever failed is tried again.
"""


def parse(options: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of the benchmark, and those that every run gets.

    Raises:
        UserError: An option is wrong.
        SystemExit: After --help.
    """
    parser = CommandParser(
        "bench",
        description="Runs models on datasets one after another, each in a fresh process; goes on after a failure, "
        "skips what is finished and unchanged, and ends with the report.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--config",
        action="append",
        default=[],
        metavar="NAME_OR_PATH",
        help="what the benchmark consists of; may be repeated, the later over the earlier; shipped are those of "
        "`list benches`; where none names models or datasets, those of the paper count",
    )
    add("--models", nargs="+", default=[], metavar="NAME", help="these models alone")
    add("--datasets", nargs="+", default=[], metavar="NAME", help="these datasets alone")
    add("--out", metavar="DIR", help="where runs go (default: runs)")
    add("--part", metavar="K/N", help="every Nth run from the Kth on, for several processes at once; no report")
    add(
        "--report",
        type=_truth,
        default=True,
        metavar="{true,false}",
        help="end with the report (default: true); without it several benchmarks can share a folder",
    )
    add("--check", type=_truth, default=False, metavar="{true,false}", help="look at data and weights, and run nothing")
    add(
        "--missing",
        choices=("stop", "skip"),
        default="stop",
        help="stop before anything runs if data or weights are missing, or leave those runs out (default: stop)",
    )
    parser.add_argument_group("--model.X, --data.X, --trainer.X", "options of every run, as test has them")
    given, more = parser.parse_known_args(options)
    given.models, given.datasets = _names(given.models), _names(given.datasets)
    for word in more:
        known = word.startswith(
            ("--model.", "--data.", "--trainer.", "--threads", "--seed_everything", "--oversubscribe")
        )
        if word.startswith("-") and (not known or word.startswith("--trainer.default_root_dir")):
            raise UserError(f"bench: {word} is no option of it. See python -m xbench.cli bench --help.", exit_status=2)
    if more and not more[0].startswith("-"):
        raise UserError(f"bench: {more[0]} does not belong to an option.", exit_status=2)
    return given, more


def _names(words: Sequence[str]) -> list[str]:
    """Names given as several words or with commas between them, each once."""
    return [*dict.fromkeys(name for word in words for name in word.split(",") if name)]


def _truth(word: str) -> bool:
    if word not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{word} is neither true nor false")
    return word == "true"


def _or_empty(value: Any) -> Any:
    return {} if value is None else value


Options = Annotated[dict[str, Any], BeforeValidator(_or_empty)]
"""Options of a model, a data module or the trainer, by name, as YAML has them."""

# Names of folders and files are made of it.
_Name = Annotated[str, StringConstraints(pattern=r"^\w[\w.-]*$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Options = {}
    data: Options = {}
    trainer: Options = {}


class Variant(_Section):
    """Options that runs are repeated with.

    Attributes:
        model: Options of the model; `data` and `trainer` alike.
        models: The models that it is for; None for all.
        datasets: The datasets that it is for; None for all.
    """

    models: list[str] | None = None
    datasets: list[str] | None = None


class BenchConfig(_Section):
    """A benchmark: every model on every dataset, then every variant of these.

    Attributes:
        model: Options of every run's model; `data` and `trainer` alike.
        models: Options of each model by name. One with `class_path` is a class of the user's.
        datasets: Options of each dataset by name, or a class of the user's.
        variants: What is repeated with other options.
        out: Where runs go; None where no configuration says it.
    """

    models: dict[_Name, Options]
    datasets: dict[_Name, Options]
    variants: Annotated[dict[_Name, Variant], BeforeValidator(_or_empty)] = {}
    out: str | None = None


def read_bench(names: Sequence[str] = (), models: Sequence[str] = (), datasets: Sequence[str] = ()) -> BenchConfig:
    """Read configurations, the later over the earlier.

    Args:
        names: Paths, or names of shipped ones. Where none of them names models, or datasets, those of the paper count.
        models: Take these alone, each one that a configuration names or one that is shipped.
        datasets: Take these datasets alone.

    Raises:
        UserError: A file is missing or malformed, or a name means nothing; says everything that is wrong.
    """
    content: dict[str, Any] = {}
    for name in names:
        content = _merged(content, _read(name))
    default = _read(DEFAULT)
    for section in ("models", "datasets"):
        content[section] = content.get(section) or default[section]
    try:
        config = BenchConfig.model_validate(content)
        problems = [*_unknown_names(config, models, datasets)]
    except ValidationError as error:
        problems = [_explain(problem) for problem in error.errors()]
    if problems:
        where = f"bench --config {' --config '.join(names)}: " if names else "bench: "
        raise UserError(where + " ".join(dict.fromkeys(problems)), exit_status=2)
    chosen = {"models": models, "datasets": datasets}
    update = {
        section: {name: getattr(config, section).get(name, {}) for name in wanted}
        for section, wanted in chosen.items()
        if wanted
    }
    return config.model_copy(update=update)


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
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"bench --config {path}: {' '.join(str(error).split())}", exit_status=2) from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise UserError(
            f"bench --config {path}: write a mapping of {', '.join(BenchConfig.model_fields)}.", exit_status=2
        )
    for section in ("models", "datasets"):
        if isinstance(content.get(section), list):
            content[section] = dict.fromkeys(content[section])
    # An empty section says nothing, as if it were not there.
    return {key: value for key, value in content.items() if value is not None}


def _merged(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: _merged(first.get(key), second.get(key, first.get(key))) for key in {**first, **second}}
    return second


def _unknown_names(config: BenchConfig, models: Sequence[str], datasets: Sequence[str]) -> Iterator[str]:
    """Say which names mean nothing, and what is allowed by its type and makes no sense."""
    if "default_root_dir" in config.trainer:
        yield "trainer.default_root_dir is what the benchmark sets: give out instead."
    for section, kind, wanted in (("models", "models", models), ("datasets", "data", datasets)):
        listed: Mapping[str, Options] = getattr(config, section)
        known = [*shipped("models" if kind == "models" else "data")]
        for name, options in listed.items():
            if name not in known and "class_path" not in options:
                advice = f"For a class of your own give {section}.{name}.class_path as well."
                yield f"{_unknown(f'{section}.{name}', name, known)} {advice}"
        known = [*dict.fromkeys([*known, *listed])]
        yield from (_unknown(f"--{section} {name}", name, known) for name in wanted if name not in known)
        for variant, entry in config.variants.items():
            limit: list[str] | None = getattr(entry, section)
            where = f"variants.{variant}.{section}"
            yield from (_unknown(f"{where}: {name}", name, known) for name in limit or () if name not in known)
    for variant, entry in config.variants.items():
        if not (entry.model or entry.data or entry.trainer):
            yield f"variants.{variant} changes nothing: give options under model, data or trainer."


def _explain(problem: Any) -> str:
    """Write one of pydantic's errors as a sentence."""
    path = [str(part) for part in problem["loc"] if part != "[key]"]
    where = ".".join(path)
    match problem["type"]:
        case "extra_forbidden":
            fields = BenchConfig.model_fields if len(path) == 1 else Variant.model_fields
            return _unknown(where, path[-1], fields)
        case "string_pattern_mismatch":
            rule = "a name is of letters, digits, dots, dashes and underscores, with no dot or dash at the beginning."
            return f"{where}: {rule}"
        case "dict_type" | "model_type":
            return f"{where} must be a mapping of options, such as {{root: /data/siim}}, not {problem['input']!r}."
        case "list_type":
            return f"{where} must be a list of names, not {problem['input']!r}."
    return f"{where}: {problem['msg']}, not {problem['input']!r}."


def _unknown(where: str, name: str, known: Iterable[str]) -> str:
    names = [*known]
    close = difflib.get_close_matches(name, names, n=2)
    return f"{where} is not known" + (
        f"; did you mean {' or '.join(close)}?" if close else f"; there is {', '.join(names)}."
    )
