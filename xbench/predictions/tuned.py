"""Thresholds of maps and cut-offs of probabilities that CheXlocalize's authors tuned, from their own files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from xbench.findings.names import canonical
from xbench.predictions.files import named
from xbench.runtime.errors import UserError
from xbench.runtime.strict import check_distinct, decimal

Tuned = dict[str, dict[str, Any]]
"""By finding: `threshold`, the rule of the mask, and `cutoff` of the probability; None where no file says it."""


def read_tuned(
    paths: Sequence[Path],
    findings: Sequence[str],
    thresholds: Sequence[str],
    cutoffs_of: Callable[[str], Sequence[float]],
) -> Tuned:
    """Read `tuning_results.csv` (threshold, task) and `probability_tuning_results.csv` (prob_threshold, mIoU, task).

    Of a finding's cut-offs the first with the largest mIoU is taken, as the authors do.

    Args:
        paths: Of the files, in any order.
        findings: Of the run.
        thresholds: That can be chosen, as text with one decimal.
        cutoffs_of: Which cut-offs can be chosen for a finding; rows with another are left out.

    Raises:
        UserError: A file is neither, cannot be read, or says nothing of the run's findings; a threshold is another, or
            two files or rows say different things.
    """
    tuned: Tuned = {finding: {"threshold": None, "cutoff": None} for finding in findings}
    for path in paths:
        columns = _read(path)
        kind = "cutoff" if "prob_threshold" in columns else "threshold"
        if any(values[kind] is not None for values in tuned.values()):
            raise UserError(f"--tune {path} tells each finding's {kind}, and another file did already.", exit_status=2)
        best: dict[str, tuple[float, float]] = {}
        said = [canonical(task) or task for task in columns["task"]]
        if not {*said} & {*findings}:
            raise UserError(f"--tune {path} says nothing of {', '.join(findings)}.", exit_status=2)
        for row, finding in enumerate(said):
            if finding not in tuned:
                continue
            if kind == "cutoff":
                cutoff, score = (_number(path, columns[name][row]) for name in ("prob_threshold", "mIoU"))
                if cutoff in cutoffs_of(finding) and (finding not in best or score > best[finding][1]):
                    best[finding] = cutoff, score
                    tuned[finding]["cutoff"] = cutoff
                continue
            number = _number(path, columns["threshold"][row])
            threshold = f"{number:.1f}"
            if (
                threshold not in thresholds
                or abs(float(threshold) - number) > 1e-9
                or tuned[finding]["threshold"] is not None
            ):
                raise UserError(
                    f"--tune {path} gives {finding} the threshold {columns['threshold'][row]}: each finding has one of "
                    f"{', '.join(thresholds)}, once.",
                    exit_status=2,
                )
            tuned[finding]["threshold"] = threshold
    return tuned


def _read(path: Path) -> dict[str, list[str]]:
    with named(path):
        names = pyarrow.csv.open_csv(path).schema.names
        check_distinct(names, "column")
        texts = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        table = pyarrow.csv.read_csv(path, convert_options=texts)
    for wanted in (["threshold", "task"], ["prob_threshold", "mIoU", "task"]):
        if {*wanted} <= {*names}:
            return {name: table[name].to_pylist() for name in wanted}
    raise UserError(
        f"--tune {path} has the columns {', '.join(names)}. Give a finished run, or CheXlocalize's tuning_results.csv "
        "(threshold, task) and probability_tuning_results.csv (prob_threshold, mIoU, task).",
        exit_status=2,
    )


def _number(path: Path, text: str) -> float:
    try:
        return decimal(text)
    except ValueError as error:
        raise UserError(f"--tune {path}: {error}.", exit_status=2) from None
