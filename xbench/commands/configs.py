"""The configurations that come with the package, and how a name on the command line becomes one.

A file in `configs/models` or `configs/data` is all it takes to register a model or a dataset. Its first line is a
comment that says what it is.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

import xbench.configs
from xbench.errors import UserError

CONFIGS = Path(xbench.configs.__file__).parent
"""Folder of the shipped configurations."""


def defaults(command: str) -> list[Path]:
    """Return the files that a command starts from, the later over the earlier."""
    return [CONFIGS / "defaults" / "run.yaml", CONFIGS / "defaults" / f"{command}.yaml"]


def shipped(kind: Literal["models", "data", "runs", "bench"]) -> dict[str, Path]:
    """Return the shipped files of a kind by name, sorted: models, datasets, whole runs of both, or benchmarks."""
    folder = CONFIGS if kind == "runs" else CONFIGS / kind
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def summary(path: Path) -> str:
    """Return the comment in the first line of a configuration."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def resolve_config(name: str) -> str:
    """Find what `--config NAME` means.

    In this order: an existing file; a shipped file of that name, with or without `.yaml`; the pair MODEL_DATASET of a
    shipped model and a shipped dataset.

    Returns:
        A path, or for a pair the YAML that joins the two files.

    Raises:
        UserError: The name means nothing; says what exists.
    """
    if Path(name).expanduser().is_file():
        return str(Path(name).expanduser())
    models, datasets, runs = shipped("models"), shipped("data"), shipped("runs")
    stem = name.removesuffix(".yaml")
    if stem in runs:
        return str(runs[stem])
    pairs = {f"{m}_{d}": f"model: '{models[m]}'\ndata: '{datasets[d]}'\n" for m in models for d in datasets}
    if stem in pairs:
        return pairs[stem]
    close = difflib.get_close_matches(stem, [*runs, *pairs], n=3)
    raise UserError(
        f"--config {name}: there is no such file, and no such configuration is shipped."
        + (f" Did you mean {' or '.join(close)}?" if close else "")
        + f" Shipped are {', '.join(runs)}, and every pair MODEL_DATASET of the models {', '.join(models)} and the "
        f"datasets {', '.join(datasets)}.",
        exit_status=2,
    )
