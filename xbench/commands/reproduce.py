"""Command `reproduce`: repeat a stored run and compare the numbers."""

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

from rich.console import Console
from rich.table import Table

from xbench.commands.verify import Compared, compared, shown
from xbench.runs.files import CONFIG, RESULTS
from xbench.runs.fingerprint import difference
from xbench.runs.finished import FinishedRun
from xbench.runs.results import Results
from xbench.runtime.errors import UsageError, UserError

_SHOWN = 20

# Possible causes of drift, likeliest cause of large drifts first.
_CAUSES = (
    *("annotation_sha256", "checkpoint_sha256", "prompts", "preprocessing", "model", "data", "evaluation", "seed"),
    *("precision", "devices", "source_sha256", "git_commit", "versions"),
)


def reproduce(given: Namespace, more: Sequence[str]) -> None:
    """Repeat the configuration of a stored result, with `more` options, and print the drift."""
    run = given.run.expanduser()
    stored = FinishedRun.open(run, CONFIG).results
    if (stored.provenance.get("rescored") or {}).get("images"):
        raise UsageError(
            f"{run} was rescored on chosen images, so it has no configuration: reproduce its source, "
            f"{stored.provenance['rescored'].get('from')}, and rescore that."
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
        console.print(f"All {count} numbers equal those of {run} to the last bit.", soft_wrap=True)
    cause = first_cause(stored.provenance, again.provenance)
    console.print(cause or "The provenance of the two runs does not differ.", soft_wrap=True)
    if given.out:
        console.print(f"New run: {folder}", soft_wrap=True)


def numbers_of(stored: Results, again: Results) -> list[Compared]:
    """Pair every number of two runs, including each value of curves."""
    parts = ("counts", "grounding", "classification")
    return [each for name in parts for each in compared(name, *(asdict(getattr(of, name)) for of in (stored, again)))]


def drifts(stored: Results, again: Results) -> list[Compared]:
    """Return the numbers that differ, largest drift first."""
    return sorted((one for one in numbers_of(stored, again) if one.differs), key=lambda one: -drift(one))


def drift(number: Compared) -> float:
    """Return the distance of two values; infinite if one is missing."""
    if isinstance(number.stored, int | float) and isinstance(number.derived, int | float):
        return abs(number.derived - number.stored)
    return math.inf


def first_cause(stored: Mapping[str, Any], again: Mapping[str, Any]) -> str | None:
    """Describe the first difference in provenance between two runs, or return None."""
    then, now = ({key: about.get(key) for key in _CAUSES} for about in (stored, again))
    found = difference(then, now)
    return f"First difference: {found}." if found else None


def _run_again(config: Path, folder: Path, more: Sequence[str]) -> Path:
    before = {*folder.glob(f"*/*/{RESULTS}")}
    # The last value of an option counts.
    extra = ["--trainer.logger", "false", *more, "--trainer.default_root_dir", str(folder)]
    status = subprocess.run([sys.executable, "-m", "xbench.cli", "test", "--config", str(config), *extra]).returncode
    new = {*folder.glob(f"*/*/{RESULTS}")} - before
    if not new:
        raise UserError(
            f"The configuration {config} failed (status {status}); see its message above. If data or weights have "
            "moved, give their paths: reproduce RUN --data.root ... --model.checkpoint ..."
        )
    return new.pop().parent
