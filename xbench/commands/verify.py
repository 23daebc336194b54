"""What `verify` does: every number of a run derived again from its tables, by other code than wrote it.

Needs no torch and none of the metrics: means are plain means, the AUROC is a Mann-Whitney statistic of scipy, and the
average precision is a sum of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.stats import binomtest, mannwhitneyu

from xbench.commands.arguments import verify_parser
from xbench.commands.verify_answers import answer_numbers, only_points
from xbench.runs.files import CURVES, PER_CLASS, PER_IMAGE, REGIONS, RESULTS, reading
from xbench.runs.finished import FinishedRun
from xbench.runs.protocols import check_protocol, stored_protocols
from xbench.runs.results import SIGN_LEVEL, FindingClassification, FindingGrounding
from xbench.runs.scores import scored_on
from xbench.runtime.errors import UserError

TOLERANCE = 1e-11
"""The metrics keep sums as multiples of 2**-40, which moves a mean by less than 1e-12."""

_SHOWN = 20
_ABSENT = "no entry"


@dataclass(frozen=True)
class Disagreement:
    """A number that does not follow from the tables.

    Attributes:
        place: Where it stands, such as `results.json / grounding / per_class / Nodule / dice_best`.
        stored: What is there.
        derived: What the tables give; a tuple of values if any of them, to the last bit, would be right.
    """

    place: str
    stored: Any
    derived: Any

    def __str__(self) -> str:
        """Return it on one line."""
        derived = self.derived if isinstance(self.derived, tuple) else (self.derived,)
        return f"{_said(self.place)}: stored {_said(self.stored)}, derived {' or '.join(map(_said, derived))}"


def verify(arguments: Sequence[str]) -> None:
    """Print whether the numbers of a run follow from its tables; `arguments` is the run's folder."""
    folder = verify_parser().parse_args(arguments).run.expanduser()
    run = _read(folder)
    with reading(folder):
        found = [*_numbers(run)]
    wrong = [Disagreement(*one) for one in found if not _agrees(one[1], one[2])]
    # Names of findings may look like markup.
    console = Console(highlight=False, markup=False)
    if not wrong:
        console.print(f"All {len(found)} numbers of {folder} follow from {PER_IMAGE} and {CURVES}.", soft_wrap=True)
        return
    for one in wrong[:_SHOWN]:
        console.print(str(one), soft_wrap=True)
    raise UserError(
        f"{folder}: {len(wrong)} of {len(found)} numbers do not follow from the run's tables (first: {wrong[0]}). A "
        "file was changed after the run, or belongs to another one: do not use these results, run the command again."
    )


def disagreements(folder: Path) -> list[Disagreement]:
    """Return the numbers of `results.json`, `per_class.csv` and the tables that contradict the run's tables.

    A file that is missing, damaged or of another run raises a `UserError`.
    """
    run = _read(folder)
    with reading(folder):
        found = [*_numbers(run)]
    return [Disagreement(*one) for one in found if not _agrees(one[1], one[2])]


_Number = tuple[str, Any, Any]
"""Place, stored and derived value."""


def _read(folder: Path) -> FinishedRun:
    # All tables at once, so that what is damaged is refused before any number is compared.
    run = FinishedRun.open(folder, PER_IMAGE, CURVES, PER_CLASS)
    thresholds = run.pair_counts.mask.shape[1]
    with reading(folder):
        run.image_scores.check_complete(run.results.answers is not None)
        if thresholds < 3 or thresholds % 2 == 0:
            raise ValueError(f"{CURVES} has {thresholds} thresholds, and those of a run are odd in number")
    return run


def _flat(run: FinishedRun) -> NDArray[np.bool_]:
    """Which scored pairs have a map that is the same everywhere, or none (P,).

    Such a map is all zeros when normalised; of any other the maximum is exactly 1, which every threshold lets in.
    """
    return np.asarray(run.pair_counts.mask[:, -1] == 0)


def _missing(run: FinishedRun) -> NDArray[np.bool_]:
    """Which scored pairs have a map that nobody drew, by `per_image.parquet`: it is highest nowhere (P,)."""
    counts = run.pair_counts
    return np.isnan(run.image_scores.peak_x[counts.index, counts.column]) & (run.results.answers is None)


def _pair(run: FinishedRun, place: int) -> tuple[str, str]:
    """Image and finding of a scored pair."""
    return run.pair_counts.image_ids[place], run.results.findings[run.pair_counts.column[place]]


def _numbers(run: FinishedRun) -> Iterator[_Number]:
    yield from _scored_pairs(run)
    yield from _curves(run)
    yield from _per_image(run)
    yield from _scored_on(run)
    content = asdict(run.results)
    del content["answers"]
    yield from _images_left_out(run)
    counts = {key: value for key, value in content["counts"].items() if key not in ("skipped", "notes")}
    yield from _compare(f"{RESULTS} / counts", counts, _counts(run))
    yield from _compare(f"{RESULTS} / grounding", content["grounding"], _grounding(run))
    yield from _compare(f"{RESULTS} / classification", content["classification"], _classification(run))
    thresholds = (run.results.provenance.get("evaluation") or {}).get("thresholds", run.pair_counts.mask.shape[1])
    yield f"{RESULTS} / provenance / evaluation / thresholds", thresholds, run.pair_counts.mask.shape[1]
    yield from _per_class(run, content)
    for name in stored_protocols(run.folder):
        for number in check_protocol(run, name):
            yield from _compare(*number)
    if run.results.answers is not None:
        yield from answer_numbers(run, run.results.answers)


def _scored_pairs(run: FinishedRun) -> Iterator[_Number]:
    """The rows of `curves.parquet` are the pairs that `per_image.parquet` says are scored, in its order."""
    stored, derived = np.stack([run.pair_counts.index, run.pair_counts.column], 1), np.argwhere(run.image_scores.scored)
    yield f"{CURVES} / rows", len(stored), len(derived)
    for row in np.flatnonzero((stored[: len(derived)] != derived[: len(stored)]).any(1))[:1]:
        image, column = derived[row]
        name = f"{run.image_scores.image_ids[image]} / {run.results.findings[column]}"
        yield f"{CURVES} / row {row}", " / ".join(_pair(run, row)), name


def _curves(run: FinishedRun) -> Iterator[_Number]:
    """Masks shrink from the whole grid to the maximum, and what is outside of a region and inside of it with them."""
    counts = run.pair_counts
    grid = (run.results.provenance.get("data") or {}).get("grid")
    if isinstance(grid, list) and len(grid) == 2 and all(type(side) is int and 0 < side < 2**20 for side in grid):
        yield from _each_pair(run, f"{CURVES} / grid_pixels", counts.grid, np.full(len(counts.grid), grid[0] * grid[1]))
    shown = ~_missing(run)
    yield from _each_pair(run, f"{CURVES} / mask_pixels at threshold 0", counts.mask[:, 0], counts.grid * shown)
    yield from _each_pair(run, f"{CURVES} / overlap_pixels at threshold 0", counts.overlap[:, 0], counts.region * shown)
    outside = counts.mask - counts.overlap
    for name, pixels in (("mask_pixels", counts.mask), ("overlap_pixels", counts.overlap), ("mask outside", outside)):
        most = np.minimum.accumulate(pixels, axis=1)
        worst = (pixels - most).argmax(1)[:, None]
        one, other = (np.take_along_axis(values, worst, 1)[:, 0] for values in (pixels, most))
        yield from _each_pair(run, f"{CURVES} / {name} where it grows", one, other)
    # Only a map that is the same everywhere reaches no threshold at all but the first.
    empty = np.where(_flat(run), 0, counts.mask[:, 1])
    yield from _each_pair(run, f"{CURVES} / mask_pixels at the second threshold", counts.mask[:, 1], empty)


def _per_image(run: FinishedRun) -> Iterator[_Number]:
    scores, counts = run.image_scores, run.pair_counts
    scored = (counts.index, counts.column)
    fixed = counts.mask.shape[1] // 2
    # What points alone mark has no area, and so neither of both.
    pointed = _pointed(run)
    dice, iou = scores.dice[scored], scores.iou[scored]
    dice, iou = (np.where(pointed, np.where(np.isnan(one), 0, np.inf), one) for one in (dice, iou))
    yield from _each_pair(run, f"{PER_IMAGE} / dice", dice, counts.dice()[:, fixed])
    yield from _each_pair(run, f"{PER_IMAGE} / iou", iou, counts.iou()[:, fixed])
    area = counts.region / counts.grid
    yield from _each_pair(run, f"{PER_IMAGE} / region_area", scores.region_area[scored], area)
    if run.results.answers is not None:
        # The share of the boxes' pixels that lie in the region; without a box a miss that is nowhere.
        stored, drawn = scores.pointing_hit[scored], ~_flat(run)
        shares = counts.overlap[:, -1] / np.maximum(counts.mask[:, -1], 1)
        yield from _each_pair(run, f"{PER_IMAGE} / pointing_hit", stored, np.where(pointed, stored, shares))
        nowhere = np.isnan(scores.peak_distance[scored]).astype(int)
        yield from _each_pair(run, f"{PER_IMAGE} / peak_distance is null", nowhere, (~drawn & ~pointed).astype(int))
        return
    # Places tied for the maximum are all in the mask at the last threshold, beside those that rounding brings there.
    stored, tied, inside = scores.pointing_hit[scored], counts.mask[:, -1], counts.overlap[:, -1]
    nobody, flat = _missing(run), _flat(run) & ~_missing(run)
    hits = np.clip(stored, (inside == tied) & ~_flat(run), (inside > 0) | flat)
    ties = (run.results.provenance.get("evaluation") or {}).get("ties")
    if ties == "share":
        hits = np.where(flat, area, hits)
    elif ties in ("any", "first"):
        hits = np.where(flat & (ties == "any"), 1, hits.round())
    yield from _each_pair(run, f"{PER_IMAGE} / pointing_hit", stored, hits)
    # A peak in the region is no way from it, and one that the last threshold keeps out of the region is some.
    distance = np.where(nobody, 0, scores.peak_distance[scored])
    outside = (stored == 0) & ((ties != "first") | (inside == 0)) & ~_flat(run)
    away = np.maximum(distance, 1 / counts.grid)
    derived = np.where((stored > 0) | _flat(run), 0, np.where(outside, away, distance))
    yield from _each_pair(run, f"{PER_IMAGE} / peak_distance", distance, derived)
    # Places tied for the minimum are all below the second threshold.
    low, low_inside = counts.grid - counts.mask[:, 1], counts.region - counts.overlap[:, 1]
    least = scores.minimum_hit[scored]
    derived = np.clip(least, (low_inside == low) & ~_flat(run), (low_inside > 0) & ~nobody)
    yield from _each_pair(run, f"{PER_IMAGE} / minimum_hit", least, derived)


def _pointed(run: FinishedRun) -> NDArray[np.bool_]:
    """Which scored pairs were answered by points alone (P,)."""
    rows = [row for rows in (run.answers or {}).values() for row in rows]
    pairs = {(row.image_id, row.finding) for row in rows if row.points and not row.boxes}
    return np.array([_pair(run, place) in pairs for place in range(len(run.pair_counts.index))], np.bool_)


def _scored_on(run: FinishedRun) -> Iterator[_Number]:
    """The digests of labels and regions, and the regions that the run saved."""
    scores, findings = run.image_scores, run.results.findings
    derived = {finding: asdict(digests) for finding, digests in scored_on(scores, findings).items()}
    yield from _compare(f"{RESULTS} / scored_on", asdict(run.results)["scored_on"], derived)
    if (run.folder / REGIONS).is_file() and run.region_digests.size:
        saved = run.region_digests
        row, column = np.unravel_index((scores.region_digests != saved).argmax(), saved.shape)
        pair = f"{scores.image_ids[row]} / {findings[column]}"
        one, other = (bytes(digests[row, column]).decode() for digests in (scores.region_digests, saved))
        yield f"{PER_IMAGE} / region_digest / {pair}", one, other


def _each_pair(run: FinishedRun, place: str, stored: NDArray[Any], derived: NDArray[Any]) -> Iterator[_Number]:
    """The first scored pair that disagrees, for all of them."""
    if len(stored):
        pair = int((~(np.abs(stored - derived) <= TOLERANCE)).argmax())
        yield f"{place} / {' / '.join(_pair(run, pair))}", stored[pair].item(), derived[pair].item()


def _images_left_out(run: FinishedRun) -> Iterator[_Number]:
    """No image is both scored and skipped, and notes name as many images as they count, up to ten."""
    scored = {*run.image_scores.image_ids}
    for number, skipped in enumerate(run.results.counts.skipped):
        name = f"scored as {skipped.image_id}" if skipped.image_id in scored else "skipped"
        yield f"{RESULTS} / counts / skipped / {number}", "skipped", name
    for number, note in enumerate(run.results.counts.notes):
        place = f"{RESULTS} / counts / notes / {number}"
        yield f"{place} / first", note.first, sorted({*note.first})
        yield f"{place} / images named", len(note.first), min(10, note.count)


def _counts(run: FinishedRun) -> dict[str, Any]:
    labels, scored, findings = run.image_scores.labels, run.image_scores.scored, run.results.findings
    # No box is a miss, and no map that is the same everywhere.
    flat = np.flatnonzero(_flat(run) & ~_missing(run) & (run.results.answers is None))
    return {
        "images": len(run.image_scores.image_ids),
        "constant_maps": {
            "count": len(flat),
            "first": [dict(zip(("image_id", "finding"), _pair(run, pair), strict=True)) for pair in flat[:10]],
        },
        "per_finding": {
            finding: {
                "positives": int((labels[:, column] == 1).sum()),
                "negatives": int((labels[:, column] == 0).sum()),
                "with_region": int(scored[:, column].sum()),
            }
            for column, finding in enumerate(findings)
        },
    }


def _grounding(run: FinishedRun) -> dict[str, Any]:
    counts, dice, iou = run.pair_counts, run.pair_counts.dice(), run.pair_counts.iou()
    steps = counts.mask.shape[1] - 1
    thresholds = [k / steps for k in range(steps + 1)]
    per_class: dict[str, dict[str, Any]] = {}
    maps, rows = run.results.answers is None, [row for rows in (run.answers or {}).values() for row in rows]
    pointing = only_points(rows)
    sign = _sign(run) if maps else {}
    for column, finding in enumerate(run.results.findings):
        mine = counts.column == column
        scores: dict[str, Any] = {field.name: None for field in fields(FindingGrounding)} | {"count": int(mine.sum())}
        if mine.any():
            scores["pointing_game"] = float(run.image_scores.pointing_hit[counts.index[mine], column].mean())
            if maps:
                least = run.image_scores.minimum_hit[counts.index[mine], column]
                scores |= {"pointing_game_of_minimum": float(least.mean()), "sign_p": sign[finding]}
            for name, curve in (("dice", dice[mine].mean(0)), ("iou", iou[mine].mean(0))):
                # Rounding hides ties: each threshold whose mean is as good may be the lowest of the best.
                best = np.flatnonzero(curve > curve.max() - TOLERANCE)
                scores[f"{name}_fixed"] = None if pointing else float(curve[steps // 2])
                if not maps:  # boxes are one mask
                    continue
                scores |= {
                    f"{name}_best": float(curve.max()),
                    f"{name}_best_threshold": tuple(thresholds[k] for k in best),
                    f"{name}_curve": curve.tolist(),
                }
        per_class[finding] = scores
    means = ("pointing_game", "dice_fixed", "iou_fixed", "dice_best", "iou_best")
    scored = [scores for scores in per_class.values() if scores["count"]]
    return {
        "thresholds": [(threshold,) for threshold in thresholds],
        "per_class": per_class,
        "macro": _means(means, scored),
        "sign_test": None
        if not maps
        else _means(("pointing_game_of_minimum",), scored)
        | {"sign_p": sign.get("macro"), "may_be_wrong": [name for name, p in sign.items() if p <= SIGN_LEVEL]},
    }


def _sign(run: FinishedRun) -> dict[str, float]:
    """The corrected p-values of the sign tests, of the findings with a scored pair and of all together."""
    scores, findings = run.image_scores, run.results.findings
    votes: dict[str, Counter[str | int]] = {
        name: Counter() for name in (*(findings[column] for column in np.unique(run.pair_counts.column)), "macro")
    }
    for image, column in zip(run.pair_counts.index.tolist(), run.pair_counts.column.tolist(), strict=True):
        vote = int(scores.minimum_hit[image, column] >= 0.5) - int(scores.pointing_hit[image, column] >= 0.5)
        patient = scores.patient_ids[image]
        for name in (findings[column], "macro"):
            votes[name][image if patient is None else patient] += vote
    p_values = {}
    for name, counter in votes.items():
        signs = [vote > 0 for vote in counter.values() if vote]
        p_values[name] = binomtest(sum(signs), len(signs), alternative="greater").pvalue if signs else 1.0
    ordered = sorted(p_values, key=lambda name: p_values[name])
    steps = [min(1.0, (len(ordered) - rank) * p_values[name]) for rank, name in enumerate(ordered)]
    corrected = dict(zip(ordered, np.maximum.accumulate(steps).tolist(), strict=True))
    return {name: corrected[name] for name in votes} if len(run.pair_counts.index) else {}


def _classification(run: FinishedRun) -> dict[str, Any]:
    per_class = {}
    for column, finding in enumerate(run.results.findings):
        labels = run.image_scores.labels[:, column]
        known = labels >= 0
        present, probability = labels[known] == 1, run.image_scores.probabilities[known, column]
        # What could not be read counts as the worst.
        scores = _recognition(present, np.where(np.isnan(probability), ~present, probability))
        answers = run.results.answers
        if np.isnan(run.image_scores.probabilities).all() if answers is None else answers.recognition is None:
            scores |= dict.fromkeys(("auroc", "average_precision", "f1", "accuracy"))
        per_class[finding] = scores
    both = [scores for scores in per_class.values() if scores["positives"] and scores["negatives"]]
    return {"per_class": per_class, "macro": _means(("auroc", "average_precision", "f1", "accuracy"), both)}


def _means(names: Sequence[str], scores: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    values = {name: [one[name] for one in scores if one[name] is not None] for name in names}
    return {name: float(np.mean(of)) if of else None for name, of in values.items()}


def _recognition(present: NDArray[np.bool_], probability: NDArray[np.float64]) -> dict[str, Any]:
    """Scores of one finding by their definitions; None where one does not exist."""
    positives, negatives = int(present.sum()), int((~present).sum())
    said = probability >= 0.5
    right = int((said & present).sum())
    auroc = average_precision = None
    if positives and negatives:
        statistic = mannwhitneyu(probability[present], probability[~present]).statistic
        auroc = float(statistic / (positives * negatives))
        inverse = np.unique(probability, return_inverse=True)[1]
        # From the highest value down: a step of recall for what is gained there, at the precision so far.
        gained, taken = np.bincount(inverse, weights=present)[::-1], np.bincount(inverse)[::-1]
        average_precision = float((gained / positives * gained.cumsum() / taken.cumsum()).sum())
    return {
        "auroc": auroc,
        "average_precision": average_precision,
        "f1": 2 * right / (int(said.sum()) + positives) if positives else None,
        "accuracy": float((said == present).mean()) if len(present) else None,
        "positives": positives,
        "negatives": negatives,
    }


def _per_class(run: FinishedRun, content: Mapping[str, Any]) -> Iterator[_Number]:
    """The table for spreadsheets against the content of `results.json`, cell by cell."""
    names = [field.name for field in (*fields(FindingGrounding), *fields(FindingClassification))]
    columns = ["finding", *(name for name in names if not name.endswith("_curve"))]
    yield f"{PER_CLASS} / columns", run.per_class[0] if run.per_class else [], columns
    yield f"{PER_CLASS} / findings", [line[0] for line in run.per_class[1:]], [*run.results.findings, "macro"]
    for line in run.per_class[1:]:
        scores: dict[str, Any] = {}
        for part in ("grounding", "classification"):
            macro = content[part]["macro"] if line[0] == "macro" else {}
            scores |= content[part]["per_class"].get(line[0], macro)
        yield f"{PER_CLASS} / {line[0]} / cells", len(line), len(columns)
        for name, text in zip(columns[1:], line[1:], strict=False):
            value = scores.get(name)
            yield f"{PER_CLASS} / {line[0]} / {name}", text, "" if value is None else str(value)


def _compare(place: str, stored: Any, derived: Any) -> Iterator[_Number]:
    """Every leaf of nested mappings and lists."""
    if isinstance(stored, Mapping) and isinstance(derived, Mapping):
        for key in {**derived, **stored}:
            yield from _compare(f"{place} / {key}", stored.get(key, _ABSENT), derived.get(key, _ABSENT))
    elif isinstance(stored, list) and isinstance(derived, list):
        yield f"{place} / length", len(stored), len(derived)
        for key, (one, other) in enumerate(zip(stored, derived, strict=False)):
            yield from _compare(f"{place} / {key}", one, other)
    else:
        yield place, stored, derived


def _agrees(stored: Any, derived: Any) -> bool:
    if isinstance(derived, tuple):
        return stored in derived
    if isinstance(stored, (int, float)) and isinstance(derived, (int, float)):
        return abs(stored - derived) <= TOLERANCE
    return bool(stored == derived)


def _said(value: Any) -> str:
    """A value on one line, however long it is and whatever it holds."""
    text = "nothing" if value is None or value == "" else str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 200 else f"{text[:197]}..."
