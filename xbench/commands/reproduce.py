"""What `reproduce` does: the command of a stored result again, and how far its numbers are from the stored ones."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from xbench.commands.arguments import reproduce_parser
from xbench.commands.verify import leaves
from xbench.runs.files import CONFIG, RESULTS
from xbench.runs.fingerprint import difference
from xbench.runs.finished import FinishedRun
from xbench.runs.results import Results
from xbench.runtime.errors import UserError
from xbench.runtime.yaml_files import load_yaml

_SHOWN = 20

# What may differ between two runs of one configuration, the likeliest cause of large drifts first.
_CAUSES = (
    *("annotation_sha256", "checkpoint_sha256", "prompts", "preprocessing", "model", "data", "evaluation", "seed"),
    *("precision", "devices", "source_sha256", "git_commit", "versions"),
)


@dataclass(frozen=True)
class Drift:
    """A number of two runs; its place is such as `grounding / per_class / Nodule / dice_best`."""

    place: str
    stored: Any
    again: Any

    @property
    def size(self) -> float:
        """How far apart they are; infinite where one does not exist."""
        if isinstance(self.stored, (int, float)) and isinstance(self.again, (int, float)):
            return abs(self.again - self.stored)
        return math.inf


def reproduce(arguments: Sequence[str]) -> None:
    """Run a stored result's configuration again and print the drift.

    `arguments` are the run's folder and further options of the new run, such as `--data.root`.
    """
    given, options = reproduce_parser().parse_known_args(arguments)
    stored = FinishedRun.open(given.run.expanduser(), CONFIG).results
    if (stored.provenance.get("rescored") or {}).get("images"):
        raise UserError(
            f"{given.run} was scored again on chosen images, which no configuration gives: reproduce the run that it "
            f"comes from, {stored.provenance['rescored'].get('from')}, and rescore that.",
            exit_status=2,
        )
    # Names of findings may look like markup.
    console = Console(highlight=False, markup=False)
    with tempfile.TemporaryDirectory(prefix="xbench-reproduce-") as temporary:
        folder = (given.out or Path(temporary)).expanduser().absolute()
        again = FinishedRun.open(_run(given.run.expanduser() / CONFIG, folder, options)).results
    found, numbers = drifts(stored, again), len(numbers_of(stored, again))
    cause = first_cause(stored.provenance, again.provenance)
    if found:
        table = Table("Number", "Stored", "Again", "Drift", box=None)
        for drift in found[:_SHOWN]:
            size = "-" if drift.size == math.inf else f"{drift.size:.2g}"
            table.add_row(drift.place, _said(drift.stored), _said(drift.again), size)
        console.print(table)
        more = f" The {_SHOWN} largest are shown." if len(found) > _SHOWN else ""
        console.print(f"{len(found)} of {numbers} numbers differ from those of {given.run}.{more}", soft_wrap=True)
    else:
        console.print(f"All {numbers} numbers are those of {given.run}, to the last bit.", soft_wrap=True)
    console.print(cause or "Nothing that is on record differs between the two runs.", soft_wrap=True)
    if given.out:
        console.print(f"The new run: {folder}", soft_wrap=True)


def numbers_of(stored: Results, again: Results) -> list[Drift]:
    """Return every number of two runs beside the other's, those of curves one by one."""
    parts = ("counts", "grounding", "classification")
    kept, made = ({name: asdict(getattr(results, name)) for name in parts} for results in (stored, again))
    return [Drift(*number) for name in parts for number in leaves(name, kept[name], made[name])]


def drifts(stored: Results, again: Results) -> list[Drift]:
    """Return the numbers that differ at all, the largest drift first."""
    found = [number for number in numbers_of(stored, again) if number.stored != number.again]
    return sorted(found, key=lambda drift: -drift.size)


def first_cause(stored: Mapping[str, Any], again: Mapping[str, Any]) -> str | None:
    """Return in words the first thing on record that differs between two runs; None if nothing does."""
    then, now = ({key: about.get(key) for key in _CAUSES} for about in (stored, again))
    found = difference(then, now)
    return f"First difference: {found}." if found else None


def _run(config: Path, folder: Path, options: Sequence[str]) -> Path:
    """Run a configuration, its results going below `folder`; return the new run's folder."""
    try:
        load_yaml(config)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{config} is no configuration: {' '.join(str(error).split()):.300}") from None
    before = {*folder.glob(f"*/*/{RESULTS}")}
    # Given twice, an option counts the last time.
    extra = ["--trainer.logger", "false", *options, "--trainer.default_root_dir", str(folder)]
    status = subprocess.run([sys.executable, "-m", "xbench.cli", "test", "--config", str(config), *extra]).returncode
    new = {*folder.glob(f"*/*/{RESULTS}")} - before
    if not new:
        raise UserError(
            f"The configuration {config} could not be run again (status {status}); its message stands above. If data "
            "or weights have moved since, give their places: reproduce RUN --data.root ... --model.checkpoint ..."
        )
    return new.pop().parent


def _said(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
