"""What all commands share: the shipped configurations, and how a name on the command line becomes one.

A file in `configs/models` or `configs/data` is all it takes to register a model or a dataset. Its first line is a
comment that says what it is. Imports neither torch nor Lightning.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import yaml

import xbench.configs
from xbench.errors import UserError

CONFIGS = Path(xbench.configs.__file__).parent
"""Folder of the shipped configurations."""

Kind = Literal["models", "data", "runs", "bench"]
"""Models, datasets, whole runs of both, or benchmarks."""

_MAX_ENTRIES = 100_000
_MAX_DEPTH = 100


def defaults(command: str) -> list[Path]:
    """Return the files that a command starts from, the later over the earlier."""
    return [CONFIGS / "defaults" / "run.yaml", CONFIGS / "defaults" / f"{command}.yaml"]


def shipped(kind: Kind) -> dict[str, Path]:
    """Return the shipped files of a kind by name, sorted."""
    folder = CONFIGS if kind == "runs" else CONFIGS / kind
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def summary(path: Path) -> str:
    """Return the comment in the first line of a configuration."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def resolve_config(name: str) -> str:
    """Return what `--config NAME` means: a path, or for a pair the YAML that joins two files.

    In this order: a configuration in braces itself, as `bench` gives it; an existing file; a shipped file of that name,
    with or without `.yaml`; the pair MODEL_DATASET of a shipped model and a shipped dataset. A `UserError` if none is.
    """
    if name.startswith("{"):
        return name
    if Path(name).expanduser().is_file():
        return str(Path(name).expanduser())
    models, datasets, runs = shipped("models"), shipped("data"), shipped("runs")
    stem = name.removesuffix(".yaml")
    if stem in runs:
        return str(runs[stem])
    pairs = {f"{m}_{d}": f"model: '{models[m]}'\ndata: '{datasets[d]}'\n" for m in models for d in datasets}
    if stem in pairs:
        return pairs[stem]
    near = did_you_mean(stem, [*runs, *pairs])
    raise UserError(
        f"--config {name}: there is no such file, and no such configuration is shipped.{near} Shipped are "
        f"{', '.join(runs)}, and every pair MODEL_DATASET of the models {', '.join(models)} and the datasets "
        f"{', '.join(datasets)}.",
        exit_status=2,
    )


def did_you_mean(name: str, known: Iterable[str], before: str = "") -> str:
    """Return a question that names up to three known names like this one, with a space before it; else nothing.

    `before` is shown before each of them.
    """
    close = difflib.get_close_matches(name, [*known], n=3)
    return f" Did you mean {' or '.join(f'{before}{one}' for one in close)}?" if close else ""


def resolve_class(path: str) -> type[Any]:
    """Import the class that a `class_path` names, also one that has the name of its module."""
    found: type[Any] = resolve_name(":".join(path.rsplit(".", 1)))
    return found


def check_yaml(text: str) -> None:
    """Refuse YAML that no configuration of a run can be: ten lines of aliases (`*name`) can stand for 10^10 entries.

    Reads events, not nodes: the C loader crashes on deep nests.

    Raises:
        yaml.YAMLError: It has too many entries or levels with its aliases filled in, or its syntax is wrong.
    """
    count = 0.0
    starts: list[tuple[str | None, float]] = []
    counts: dict[str | None, float] = {}
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = starts.pop()
            counts[anchor] = count - before
        elif isinstance(event, yaml.CollectionStartEvent):
            starts.append((event.anchor, count))
            # Until it ends: an alias of itself within it has no end.
            counts[event.anchor] = math.inf
            count += 1
        elif isinstance(event, yaml.ScalarEvent):
            counts[event.anchor] = 1
            count += 1
        elif isinstance(event, yaml.AliasEvent):
            count += counts.get(event.anchor, 0)
        if count > _MAX_ENTRIES or len(starts) > _MAX_DEPTH:
            raise yaml.YAMLError(
                f"with its aliases (*name) filled in, it has more than {_MAX_ENTRIES:,} entries or {_MAX_DEPTH} levels"
            )
