"""What `reproduce` does: the command of a stored result again, and how far its numbers are from the stored ones."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from xbench.commands.verify import Compared, compared, shown
from xbench.runs.files import CONFIG, RESULTS
from xbench.runs.fingerprint import difference
from xbench.runs.finished import FinishedRun
from xbench.runs.results import Results
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.yaml_files import load_yaml

_SHOWN = 20

# What may differ between two runs of one configuration, the likeliest cause of large drifts first.
_CAUSES = (
    *("annotation_sha256", "checkpoint_sha256", "prompts", "preprocessing", "model", "data", "evaluation", "seed"),
    *("precision", "devices", "source_sha256", "git_commit", "versions"),
)


def reproduce(given: Namespace, more: Sequence[str]) -> None:
    """Run a stored result's configuration again, with `more` options, and print the drift."""
    run = given.run.expanduser()
    stored = FinishedRun.open(run, CONFIG).results
    if (stored.provenance.get("rescored") or {}).get("images"):
        raise UsageError(
            f"{run} was scored again on chosen images, which no configuration gives: reproduce the run that it comes "
            f"from, {stored.provenance['rescored'].get('from')}, and rescore that."
        )
    # Names of findings may look like markup.
    console = Console(highlight=False, markup=False)
    with tempfile.TemporaryDirectory(prefix="xbench-reproduce-") as temporary:
        folder = (given.out or Path(temporary)).expanduser().absolute()
        again = FinishedRun.open(_run_again(run / CONFIG, folder, more)).results
    found, count = drifts(stored, again), len(numbers_of(stored, again))
    if found:
        table = Table("Number", "Stored", "Again", "Drift", box=None)
        for number in found[:_SHOWN]:
            size = "-" if drift(number) == math.inf else f"{drift(number):.2g}"
            table.add_row(number.place, shown(number.stored, 60), shown(number.derived, 60), size)
        console.print(table)
        rest = f" The {_SHOWN} largest are shown." if len(found) > _SHOWN else ""
        console.print(f"{len(found)} of {count} numbers differ from those of {run}.{rest}", soft_wrap=True)
    else:
        console.print(f"All {count} numbers are those of {run}, to the last bit.", soft_wrap=True)
    cause = first_cause(stored.provenance, again.provenance)
    console.print(cause or "Nothing that is on record differs between the two runs.", soft_wrap=True)
    if given.out:
        console.print(f"The new run: {folder}", soft_wrap=True)


def numbers_of(stored: Results, again: Results) -> list[Compared]:
    """Return every number of two runs beside the other's, those of curves one by one."""
    parts = ("counts", "grounding", "classification")
    return [
        number for name in parts for number in compared(name, *(asdict(getattr(one, name)) for one in (stored, again)))
    ]


def drifts(stored: Results, again: Results) -> list[Compared]:
    """Return the numbers that differ at all, the largest drift first."""
    return sorted((one for one in numbers_of(stored, again) if one.differs), key=lambda one: -drift(one))


def drift(number: Compared) -> float:
    """Return how far apart two values are; infinite where one does not exist."""
    if isinstance(number.stored, int | float) and isinstance(number.derived, int | float):
        return abs(number.derived - number.stored)
    return math.inf


def first_cause(stored: Mapping[str, Any], again: Mapping[str, Any]) -> str | None:
    """Return in words the first thing on record that differs between two runs; None if nothing does."""
    then, now = ({key: about.get(key) for key in _CAUSES} for about in (stored, again))
    found = difference(then, now)
    return f"First difference: {found}." if found else None


def _run_again(config: Path, folder: Path, more: Sequence[str]) -> Path:
    """Run a configuration, its results going below `folder`; return the new run's folder."""
    try:
        load_yaml(config)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{config} is no configuration: {' '.join(str(error).split()):.300}") from None
    before = {*folder.glob(f"*/*/{RESULTS}")}
    # Given twice, an option counts the last time.
    extra = ["--trainer.logger", "false", *more, "--trainer.default_root_dir", str(folder)]
    status = subprocess.run([sys.executable, "-m", "xbench.cli", "test", "--config", str(config), *extra]).returncode
    new = {*folder.glob(f"*/*/{RESULTS}")} - before
    if not new:
        raise UserError(
            f"The configuration {config} could not be run again (status {status}); its message stands above. If data "
            "or weights have moved since, give their places: reproduce RUN --data.root ... --model.checkpoint ..."
        )
    return new.pop().parent
