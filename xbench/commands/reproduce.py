"""What `reproduce` does: the command of a stored result again, and how far its numbers are from the stored ones."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from xbench.commands.arguments import reproduce_parser
from xbench.runs.files import CONFIG, RESULTS
from xbench.runs.finished import FinishedRun
from xbench.runs.results import Results
from xbench.runtime.errors import UserError
from xbench.runtime.yaml_files import load_yaml

_SHOWN = 20
_ABSENT = "not on record"

# What may differ between two runs of one configuration, the likeliest cause of large drifts first.
_CAUSES = (
    ("annotation_sha256", "the annotation files"),
    ("checkpoint_sha256", "the checkpoint"),
    ("prompts", "the prompts"),
    ("preprocessing", "the preprocessing"),
    ("model", "the model's settings"),
    ("data", "the data's settings"),
    ("evaluation", "the rules of scoring"),
    ("seed", "the seed"),
    ("precision", "the precision"),
    ("devices", "the devices, processes or threads"),
    ("source_sha256", "the code of xbench or of a class of your own"),
    ("git_commit", "the commit of xbench"),
    ("versions", "the versions of packages"),
)


@dataclass(frozen=True)
class Drift:
    """A number that came out otherwise; its place is such as `grounding / Nodule / dice_best`."""

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
    found, numbers = drifts(stored, again), len(_numbers(stored))
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


def drifts(stored: Results, again: Results) -> list[Drift]:
    """Return the numbers that differ at all, the largest drift first."""
    one, other = _numbers(stored), _numbers(again)
    places = [*one, *(place for place in other if place not in one)]
    found = [Drift(place, one.get(place), other.get(place)) for place in places if one.get(place) != other.get(place)]
    return sorted(found, key=lambda drift: -drift.size)


def first_cause(stored: Mapping[str, Any], again: Mapping[str, Any]) -> str | None:
    """Return in words the first thing on record that differs between two runs; None if nothing does."""
    for key, words in _CAUSES:
        one, other = stored.get(key), again.get(key)
        if one != other and isinstance(one, Mapping) and isinstance(other, Mapping):
            # A part that is on record as None differs from one that is not on record.
            part = next(name for name in (*one, *other) if one.get(name, _ABSENT) != other.get(name, _ABSENT))
            then, now = (_said(parts.get(part, _ABSENT)) for parts in (one, other))
            return f"First difference: {words}: {part} was {then} and is {now}."
        if one != other:
            return f"First difference: {words}: {_said(one)} then, {_said(other)} now."
    return None


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


def _numbers(results: Results) -> dict[str, Any]:
    """Every number of a run by its place; of curves the values one by one."""
    counts, grounding, classification = results.counts, results.grounding, results.classification
    numbers: dict[str, Any] = {"counts / images": counts.images, "counts / skipped": len(counts.skipped)}
    for finding in results.findings:
        for part, scores in (
            ("counts", counts.per_finding),
            ("grounding", grounding.per_class),
            ("classification", classification.per_class),
        ):
            for key, value in vars(scores[finding]).items():
                place = f"{part} / {finding} / {key}"
                if isinstance(value, list):
                    numbers |= {f"{place} at {t:g}": mean for t, mean in zip(grounding.thresholds, value, strict=True)}
                else:
                    numbers[place] = value
    numbers |= {f"grounding / macro / {key}": value for key, value in grounding.macro.items()}
    return numbers | {f"classification / macro / {key}": value for key, value in classification.macro.items()}


def _said(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
