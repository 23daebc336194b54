"""What `verify` does: every number of a run derived again from its tables, by other code than wrote it.

Needs no torch and none of the metrics: means are plain means, the AUROC is a Mann-Whitney statistic of scipy, and the
average precision is summed step by step.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import mannwhitneyu

from xbench.errors import UserError
from xbench.results import Results, read_results
from xbench.rows import CURVES, PER_IMAGE, ImageRows, PairCounts, read_pair_counts, read_per_image

__all__ = ["Disagreement", "disagreements", "verify"]

TOLERANCE = 1e-11
"""The metrics keep sums as multiples of 2**-40, which moves a mean by less than 1e-12."""

_SHOWN = 20


@dataclass(frozen=True)
class Disagreement:
    """A number that does not follow from the tables.

    Attributes:
        place: Where it stands, such as `grounding / Nodule / dice_best`.
        stored: What is there.
        derived: What the tables give.
    """

    place: str
    stored: Any
    derived: Any


def verify(arguments: Sequence[str]) -> None:
    """Print whether the numbers of a run follow from its tables; `arguments` is the run's folder.

    Raises:
        UserError: Wrong arguments, files that are missing or damaged, or numbers that disagree.
    """
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        raise UserError("verify takes the folder of a finished run: verify runs/MODEL_DATASET/TIME.", exit_status=2)
    folder = Path(arguments[0]).expanduser()
    found = [_check(*one) for one in _numbers(folder)]
    wrong = [one for one in found if one is not None]
    # Names of findings may look like markup.
    console = Console(highlight=False, markup=False)
    if not wrong:
        console.print(f"All {len(found)} numbers of {folder} follow from {PER_IMAGE} and {CURVES}.", soft_wrap=True)
        return
    table = Table("Number", "Stored", "Derived", title=f"{len(wrong)} of {len(found)} numbers disagree", box=None)
    for one in wrong[:_SHOWN]:
        table.add_row(one.place, str(one.stored), str(one.derived))
    console.print(table)
    raise UserError(
        f"{folder}: {len(wrong)} of {len(found)} numbers do not follow from the run's tables (first: "
        f"{wrong[0].place}). A file was changed after the run, or belongs to another one: do not use these results, "
        "run the command again."
    )


def disagreements(folder: Path) -> list[Disagreement]:
    """Return the numbers of `results.json` and `per_class.csv` that do not follow from the run's tables.

    Raises:
        UserError: A file is missing, damaged or of another run.
    """
    return [wrong for one in _numbers(folder) if (wrong := _check(*one)) is not None]


def _numbers(folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """Place, stored and derived value of every number."""
    for name in ("results.json", PER_IMAGE, CURVES, "per_class.csv"):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder} is not the folder of a finished run: it has no {name}. Give the folder that holds "
                "results.json."
            )
    try:
        results = read_results(folder / "results.json")
        rows = read_per_image(folder / PER_IMAGE, results.findings)
        counts = read_pair_counts(folder / CURVES, results.findings, rows.image_ids)
        with (folder / "per_class.csv").open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        if counts.mask.shape[1] != len(results.thresholds) or any("finding" not in line for line in lines):
            raise ValueError(f"{CURVES} has another number of thresholds, or per_class.csv no column finding")
    except (OSError, ValueError, KeyError, csv.Error, pa.ArrowException) as error:
        raise UserError(f"{folder}: a file cannot be read: {' '.join(str(error).split())}") from None
    yield "counts / images", results.images, len(rows.image_ids)
    pairs = np.stack([counts.index, counts.column], 1)
    yield "scored pairs", pairs.tolist(), np.argwhere(rows.scored).tolist()
    yield from _grounding(results, rows, counts)
    yield from _classification(results, rows)
    yield from _per_class(results, lines)


def _grounding(results: Results, rows: ImageRows, counts: PairCounts) -> Iterator[tuple[str, Any, Any]]:
    dice, iou = counts.dice(), counts.iou()
    fixed = len(results.thresholds) // 2
    scored = (counts.index, counts.column)
    yield "per_image / dice", rows.dice[scored].tolist(), dice[:, fixed].tolist()
    yield "per_image / iou", rows.iou[scored].tolist(), iou[:, fixed].tolist()
    yield "per_image / region_area", rows.region_area[scored].tolist(), (counts.region / counts.grid).tolist()
    kept: dict[str, list[float]] = {name: [] for name in results.grounding_macro}
    for column, finding in enumerate(results.findings):
        mine = counts.column == column
        scores: dict[str, Any] = dict.fromkeys(asdict(results.grounding[finding]))
        scores["count"] = int(mine.sum())
        if mine.any():
            scores["pointing_game"] = float(rows.pointing_hit[rows.scored[:, column], column].mean())
            for name, curve in (("dice", dice[mine].mean(0)), ("iou", iou[mine].mean(0))):
                # A tie that rounding hides: the stored threshold counts if its mean is as good.
                stored = getattr(results.grounding[finding], f"{name}_best_threshold")
                best = [results.thresholds[k] for k in np.flatnonzero(curve > curve.max() - TOLERANCE)]
                scores |= {
                    f"{name}_fixed": float(curve[fixed]),
                    f"{name}_best": float(curve.max()),
                    f"{name}_best_threshold": stored if stored in best else best[0],
                    f"{name}_curve": curve.tolist(),
                }
            for name, values in kept.items():
                values.append(scores[name])
        for name, value in scores.items():
            yield f"grounding / {finding} / {name}", getattr(results.grounding[finding], name), value
        known = rows.labels[:, column]
        count = results.counts[finding]
        yield f"counts / {finding} / positives", count.positives, int((known == 1).sum())
        yield f"counts / {finding} / negatives", count.negatives, int((known == 0).sum())
        yield f"counts / {finding} / with_region", count.with_region, int(mine.sum())
    for name, values in kept.items():
        yield f"grounding / macro / {name}", results.grounding_macro[name], float(np.mean(values)) if values else None


def _classification(results: Results, rows: ImageRows) -> Iterator[tuple[str, Any, Any]]:
    kept: dict[str, list[float]] = {name: [] for name in results.classification_macro}
    for column, finding in enumerate(results.findings):
        known = rows.labels[:, column] >= 0
        scores = _recognition(rows.labels[known, column] == 1, rows.probabilities[known, column])
        for name, value in scores.items():
            yield f"classification / {finding} / {name}", getattr(results.classification[finding], name), value
        if scores["positives"] and scores["negatives"]:
            for name, values in kept.items():
                values.append(scores[name])
    for name, values in kept.items():
        derived = float(np.mean(values)) if values else None
        yield f"classification / macro / {name}", results.classification_macro[name], derived


def _recognition(present: NDArray[np.bool_], probability: NDArray[np.float64]) -> dict[str, Any]:
    """Scores of one finding by their definitions; None where one does not exist."""
    positives, negatives = int(present.sum()), int((~present).sum())
    said = probability >= 0.5
    right = int((said & present).sum())
    auroc = average_precision = None
    if positives and negatives:
        statistic = mannwhitneyu(probability[present], probability[~present]).statistic
        auroc = float(statistic / (positives * negatives))
        found, average_precision = 0, 0.0
        values, inverse = np.unique(probability, return_inverse=True)
        hits = np.bincount(inverse, weights=present, minlength=len(values))[::-1]
        taken = np.bincount(inverse, minlength=len(values))[::-1].cumsum()
        for gained, number in zip(hits, taken, strict=True):
            found += int(gained)
            average_precision += float(gained) / positives * found / int(number)
    return {
        "auroc": auroc,
        "average_precision": average_precision,
        "f1": 2 * right / (int(said.sum()) + positives) if positives else None,
        "accuracy": float((said == present).mean()) if len(present) else None,
        "positives": positives,
        "negatives": negatives,
    }


def _per_class(results: Results, lines: Sequence[dict[str, str]]) -> Iterator[tuple[str, Any, Any]]:
    """The table for spreadsheets against results.json."""
    yield "per_class.csv / findings", [line["finding"] for line in lines], [*results.findings, "macro"]
    for line in lines:
        finding = line["finding"]
        if finding == "macro":
            stored: dict[str, Any] = {**results.grounding_macro, **results.classification_macro}
        elif finding in results.grounding:
            stored = asdict(results.grounding[finding]) | asdict(results.classification[finding])
        else:
            continue
        for name, text in line.items():
            if name != "finding":
                value = stored.get(name)
                yield f"per_class.csv / {finding} / {name}", text, "" if value is None else str(value)


def _check(place: str, stored: Any, derived: Any) -> Disagreement | None:
    if isinstance(stored, (int, float)) and isinstance(derived, (int, float)):
        agree = abs(stored - derived) <= TOLERANCE
    elif isinstance(stored, list) and isinstance(derived, list):
        one, other = np.array(stored, dtype=object), np.array(derived, dtype=object)
        if one.shape != other.shape:
            agree = False
        elif all(isinstance(value, (int, float)) for value in (*one.flat, *other.flat)):
            agree = bool(np.allclose(one.astype(float), other.astype(float), rtol=0, atol=TOLERANCE))
        else:
            agree = stored == derived
        if not agree and len(stored) > 8:
            return Disagreement(place, f"{len(stored)} values", f"{len(derived)} values")
    else:
        agree = stored == derived
    return None if agree else Disagreement(place, stored, derived)
