"""Shipped configurations, and their lookup by name.

A file in `configs/models` or `configs/data` registers a model or a dataset; the comment in its first line is its
summary. Imports neither torch nor Lightning.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

import xbench.configs
from xbench.runtime.errors import UsageError
from xbench.runtime.strict import load_yaml

CONFIGS = Path(xbench.configs.__file__).parent
Kind = Literal["models", "data", "runs", "bench"]
"""Models, datasets, complete runs, or benchmarks."""

TOP: Mapping[str, str] = {
    **dict.fromkeys(("model", "data", "trainer"), ""),
    "seed_everything": "bool | int",
    "threads": "int",
    "oversubscribe": "bool",
    "resume": "bool",
    "overlays": "bool | list[str] | str",
}
"""Keys of a configuration with types of plain values; `overlays` is for `predict`."""

FOLDERS: Mapping[str, Kind] = {"model": "models", "data": "data", "trainer": "runs"}
"""Folders of the shipped files of a part."""


def defaults(command: str) -> list[Path]:
    """Return the default files of a command, later ones overriding earlier ones."""
    return [CONFIGS / "defaults" / "run.yaml", CONFIGS / "defaults" / f"{command}.yaml"]


def shipped(kind: Kind) -> dict[str, Path]:
    """Return the shipped files of a kind by name, sorted."""
    folder = CONFIGS if kind == "runs" else CONFIGS / kind
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def summary(path: Path) -> str:
    """Return the comment in the first line of a configuration."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def read_config(name: str) -> dict[str, Any]:
    """Return the configuration of `--config NAME`, with files of parts read and class options under `init_args`.

    Lookup order: a configuration in braces, as `bench` passes it; an existing file; a shipped file, with or without
    `.yaml`; the pair MODEL_DATASET of shipped ones; a single model or dataset. Raises a `UserError` for unknown or
    malformed configurations.
    """
    models, datasets, runs = shipped("models"), shipped("data"), shipped("runs")
    path, stem = Path(name).expanduser(), name.removesuffix(".yaml")
    pairs = {f"{m}_{d}": {"model": str(models[m]), "data": str(datasets[d])} for m in models for d in datasets}
    pairs |= {m: {"model": str(models[m])} for m in models} | {d: {"data": str(datasets[d])} for d in datasets}
    folder = Path()
    if name.startswith("{"):
        content = read_mapping(name, "--config")
    elif path.is_file() or stem in runs:
        path = path if path.is_file() else runs[stem]
        content, folder = read_mapping(path, f"--config {name}"), path.parent
    elif stem in pairs:
        content = dict(pairs[stem])
    else:
        near = did_you_mean(stem, runs | pairs)
        raise UsageError(
            f"--config {name}: there is no such file or shipped configuration.{near} Shipped are "
            f"{', '.join(runs)}, the models {', '.join(models)}, the datasets {', '.join(datasets)}, and every pair of "
            "these, MODEL_DATASET."
        )
    for key in content:
        if str(key).partition(".")[0] not in TOP:
            near = did_you_mean(str(key), TOP)
            raise UsageError(f"--config {name}: unknown section {key}.{near} A configuration has {', '.join(TOP)}.")
    parts = {part: content[part] for part in FOLDERS if content.get(part) is not None}
    read = {part: read_part(part, value, folder, f"--config {name}: {part}") for part, value in parts.items()}
    return {key: value for key, value in content.items() if key not in FOLDERS} | read


def read_part(part: str, value: Any, folder: Path, where: str) -> dict[str, Any]:
    """Return the options of a part, which may name a shipped file or one beside `folder`'s configuration."""
    if isinstance(value, str):
        places = (folder / Path(value).expanduser(), CONFIGS / value, CONFIGS / f"{FOLDERS[part]}/{value}.yaml")
        path = next((place for place in places if place.is_file()), None)
        if path is None and re.fullmatch(r"[\w.]+\.[A-Z]\w*", value):
            return {"class_path": value, "init_args": {}}
        if path is None:
            raise UsageError(f"{where}: there is no file {value}, neither beside the configuration nor shipped.")
        content = read_mapping(path, f"{where}: {path}")
        return read_part(part, content.get(part, content), path.parent, where)
    if not isinstance(value, dict):
        raise UsageError(f"{where} is {value!r:.60}: give its options, or the name of a file.")
    if part == "trainer":
        return value
    own = {key: value[key] for key in ("class_path", "dict_kwargs") if key in value}
    return own | {"init_args": flat({key: one for key, one in value.items() if key not in own})}


def flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a class, under `init_args` or not."""
    return {**(options.get("init_args") or {}), **{name: one for name, one in options.items() if name != "init_args"}}


def read_mapping(source: Path | str, where: str) -> dict[str, Any]:
    """Return a mapping from a YAML file or text, or raise a UserError that begins with `where`."""
    try:
        content = load_yaml(source)
        content = {} if content is None else content
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{where} cannot be read: {' '.join(str(error).split()):.300}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{where}: expected a mapping of model, data, trainer, got {content!r:.60}.")
    return content


class Composed(NamedTuple):
    """Meaning of the words of a command."""

    configs: list[dict[str, Any]]  # from `read_config`, each part with its class
    words: list[str]  # all others
    classes: dict[str, str]  # by part
    # First those of configurations: index of the word or -1, name such as `data.limit`, value; None for a bare switch.
    options: list[tuple[int, str, Any]]


def compose(words: Sequence[str], parts: Sequence[str] = ("model", "data")) -> Composed:
    """Read the configurations among the words of a command.

    A part without a class gets it from another configuration or an option; an own dataset also from options that are
    unambiguous. If help is requested, classes and options are empty. Raises a `UserError` for a wrong configuration,
    and unless exactly one model and one dataset are chosen.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-c", "--config", nargs="?", action="append", default=[])
    named, others = parser.parse_known_args(words)
    configs = [read_config(name) for name in named.config if name is not None]
    if any(word.partition("=")[0].endswith(("--help", ".help")) for word in others):
        return Composed(configs, others, {}, [])
    given: list[tuple[int, str, Any]] = []
    for config, part in product(configs, FOLDERS):
        content = config.get(part, {})
        given += [(-1, f"{part}.{name}", value) for name, value in content.get("init_args", content).items()]
    for place, (word, after) in enumerate(zip(others, [*others[1:], "--"], strict=False)):
        name, sign, text = word[2:].partition("=")
        value = text if sign else None if re.match(r"-(?!\d*\.?\d+$)[^ =]+(=|$)", after) else after
        part, _, option = name.partition(".")
        if part in FOLDERS and option in ("", "init_args") and value and value.startswith("{"):
            content = read_part(part, read_mapping(value, f"--{name}"), Path(), f"--{name}")
            given += [(-1, f"{part}.{key}", one) for key, one in {**content, **content.get("init_args", {})}.items()]
        elif word.startswith("--"):
            given.append((place, name.replace(".init_args.", ".", 1), value))
    classes = {part: chosen for part in parts if (chosen := _class_of(part, configs, given))}
    if unchosen := [part for part in parts if part not in classes]:
        own = " For your own data add --config coco, csv or masks." if "data" in unchosen else ""
        raise UsageError(
            f"No {' and no '.join(unchosen)} was chosen: give --config with a shipped name or a file, such as --config "
            f"demo; `xbench list` shows what there is.{own}"
        )
    return Composed(configs, others, classes, given)


def _class_of(part: str, configs: list[dict[str, Any]], given: Sequence[tuple[int, str, Any]]) -> str:
    """Return the class of a part and write it into all configurations; empty if none was chosen."""
    chosen = [str(config[part]["class_path"]) for config in configs if "class_path" in config.get(part, {})]
    chosen += [value for _, name, value in given if name in (part, f"{part}.class_path") and value]
    if not chosen and part == "data":
        chosen = own_dataset({name.removeprefix("data."): value for _, name, value in given})
        configs += [{part: {"class_path": name}} for name in chosen]
    # The name identifies classes of xbench. Different classes are refused because jsonargparse would keep common
    # arguments of the first, such as a checkpoint, and yield plausible wrong numbers.
    names = [re.sub(r"^xbench\..*\.", "", one) for one in chosen]
    if changed := [name for name in names if name != names[0]]:
        raise UsageError(
            f"The configuration chose the {part} {names[0]}, and then {changed[0]} was requested, which would inherit "
            "arguments of the first. Name one pair (--config MODEL_DATASET), or write your own configuration."
        )
    for config in configs:
        config.get(part, {}).update(class_path="".join(chosen[:1]))
    return "".join(chosen[:1])


def own_dataset(options: Mapping[str, Any]) -> list[str]:
    """Return the class of an own dataset that these options imply; empty if ambiguous."""
    suffix = Path(str(options.get("annotations"))).suffix.lower()
    kinds = {"coco": suffix == ".json", "csv": suffix == ".csv", "masks": "masks" in options}
    found = [shipped("data")[name] for name, sure in kinds.items() if sure and "findings" in options]
    return [read_mapping(found[0], found[0].stem)["class_path"]] if len(found) == 1 else []


def did_you_mean(name: str, known: Iterable[str], before: str = "") -> str:
    """Return a question with up to three similar names, each after `before`, and a leading space; else empty."""
    close = difflib.get_close_matches(name, [*known], n=3)
    return f" Did you mean {' or '.join(f'{before}{one}' for one in close)}?" if close else ""
