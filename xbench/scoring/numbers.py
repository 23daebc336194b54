"""Compute sums from rows and numbers from sums, for runs, `verify` and reports. Needs no torch.

Scores are summed as whole multiples of 2**-40, so order does not matter. A group is any code per row: a finding, a
fold, a finding within a subgroup.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.runtime.digests import digest
from xbench.scoring.rows import Rows

Sums = dict[str, NDArray[np.int64]]
Numbers = dict[str, Any]

ONE = 2**40  # value of a score of 1 in sums
_AT_A_TIME = 1024  # rows per step; a whole table at once would take five times as long, and a gigabyte


def dice(mask: NDArray[Any], overlap: NDArray[Any], region: NDArray[Any]) -> NDArray[np.float64]:
    """Return Dice 2 |B and R| / (|B| + |R|) from numbers of pixels; NaN if both are empty."""
    return _ratio(2 * np.asarray(overlap, np.float64), mask + region)


def iou(mask: NDArray[Any], overlap: NDArray[Any], region: NDArray[Any]) -> NDArray[np.float64]:
    """Return IoU |B and R| / |B or R| from numbers of pixels; NaN if both are empty."""
    return _ratio(np.asarray(overlap, np.float64), mask + region - overlap)


@np.errstate(invalid="ignore")
def _ratio(part: NDArray[np.float64], whole: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(part / whole)


def summed(values: NDArray[np.float64], group: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    """Return the sums of scores (S, ...) by group (groups, ...), in units of 2**-40, without rows of group -1."""
    total = np.zeros((groups, *values.shape[1:]), np.int64)
    kept = group >= 0
    np.add.at(total, group[kept], np.rint(values[kept] * ONE).astype(np.int64))
    return total


def counted(group: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    """Return the number of rows by group, without rows of group -1."""
    return np.bincount(group[group >= 0], minlength=groups).astype(np.int64)


@np.errstate(invalid="ignore")
def mean(total: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return means from sums (groups, ...) and counts; NaN for a group without rows."""
    return np.asarray(total.astype(np.float64) / ONE / count.reshape(-1, *[1] * (total.ndim - 1)))


def pointing_sums(rows: Rows, group: NDArray[np.int64], groups: int) -> Sums:
    """Return the sums of the pointing game over scored rows; `group` has a code per row (R,)."""
    scored, own = rows.counts.row, group[rows.counts.row]
    return {"count": counted(own, groups), "hit_sum": summed(rows["pointing_hit"][scored], own, groups)}


def pointing_numbers(sums: Mapping[str, NDArray[np.int64]]) -> list[Numbers]:
    """Return by group `count` and `pointing_game`, None without rows."""
    return [
        {"count": count, "pointing_game": value if count else None}
        for count, value in zip(sums["count"].tolist(), mean(sums["hit_sum"], sums["count"]).tolist(), strict=True)
    ]


def sweep_sums(rows: Rows, group: NDArray[np.int64], groups: int) -> Sums:
    """Return the sums of Dice and IoU at each threshold over scored rows; `group` has a code per row (R,)."""
    counts = rows.counts
    sums = {name: np.zeros((groups, counts.mask.shape[1]), np.int64) for name in ("dice_sum", "iou_sum")}
    for start in range(0, len(counts.row), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        own = group[counts.row[part]]
        mask, overlap, region = counts.mask[part], counts.overlap[part], counts.region[part, None]
        sums["dice_sum"] += summed(dice(mask, overlap, region), own, groups)
        sums["iou_sum"] += summed(iou(mask, overlap, region), own, groups)
    return sums | {"count": counted(group[counts.row], groups)}


def own_sums(rows: Rows, group: NDArray[np.int64], groups: int) -> Sums:
    """Return the sums of `sweep_sums` at thresholds of the maps' own scale; without one, a count of 0."""
    return sweep_sums(replace(rows, counts=rows.own), group, groups)


def sweep_numbers(sums: Mapping[str, NDArray[np.int64]]) -> list[Numbers]:
    """Return by group Dice and IoU at 0.5, at the best threshold (lowest if tied), and at all; None without rows."""
    found = []
    curves = {name: mean(sums[f"{name}_sum"], sums["count"]).tolist() for name in ("dice", "iou")}
    for place, count in enumerate(sums["count"].tolist()):
        numbers: Numbers = {"count": count}
        for name, of_groups in curves.items():
            curve = of_groups[place]
            numbers[f"{name}_fixed"] = curve[len(curve) // 2] if count else None
            swept = bool(count) and len(curve) > 1
            best = max(curve) if swept else None
            numbers[f"{name}_best"] = best
            numbers[f"{name}_best_threshold"] = curve.index(best) / (len(curve) - 1) if swept else None
            numbers[f"{name}_curve"] = curve if swept else None
        found.append(numbers)
    return found


STATUSES = ("answered", "abstained", "unparsable", "truncated")
_ODD = ("clipped", "reordered", "dropped", "duplicates", "suspect_frame")
_ACCURACIES = (30, 50, 75)
ROUNDING = 1e-12  # an IoU this close to a threshold counts as equal
BOX_COUNTS = (
    *("pairs", "instances", *(f"acc_{percent}" for percent in _ACCURACIES), "matched_30", "matched_50", "predicted"),
    *("annotated", *STATUSES, "boxes", *_ODD, "negatives", "false_alarms"),
)
BOX_SUMS = ("box_iou", "centre_hit", "best_iou", "false_area")


def box_sums(rows: Rows, group: NDArray[np.int64], groups: int) -> Sums:
    """Return counts `BOX_COUNTS` and sums `BOX_SUMS` by group, over rows with an answer."""
    return box_column_sums(rows.columns, rows.columns["scored"].astype(bool), group, groups)


def box_column_sums(
    columns: Mapping[str, NDArray[Any]], positive: NDArray[np.bool_], group: NDArray[np.int64], groups: int
) -> Sums:
    """Return the sums of `box_sums` from columns (R,); `positive` rows have annotated boxes."""
    answered = columns["answer_status"] != ""
    pairs, negatives = answered & positive, answered & ~positive
    one_by_one = pairs & (np.nan_to_num(columns["one_by_one"]) > 0)
    per_row: dict[str, NDArray[Any]] = {"pairs": pairs, "instances": one_by_one, "negatives": negatives}
    per_row |= {f"acc_{t}": pairs & (columns["box_iou"] > t / 100 + ROUNDING) for t in _ACCURACIES}
    per_row |= {name: np.where(one_by_one, columns[name], 0) for name in ("matched_30", "matched_50", "annotated")}
    per_row |= {"predicted": np.where(one_by_one, columns["boxes"], 0), "boxes": np.where(pairs, columns["boxes"], 0)}
    per_row |= {status: pairs & (columns["answer_status"] == status) for status in STATUSES}
    per_row |= {name: pairs & (np.nan_to_num(columns[name]) > 0) for name in _ODD}
    per_row["false_alarms"] = negatives & (np.nan_to_num(columns["boxes"]) > 0)
    where = {"box_iou": pairs, "centre_hit": pairs, "best_iou": one_by_one, "false_area": negatives}
    scores = np.stack([np.where(where[name], columns[name], 0.0) for name in BOX_SUMS], axis=1)
    counts = np.stack([per_row[name].astype(np.int64) for name in BOX_COUNTS], axis=1)
    total, kept = np.zeros((groups, len(BOX_COUNTS)), np.int64), group >= 0
    np.add.at(total, group[kept], counts[kept])
    return {"counts": total, "score_sum": summed(np.nan_to_num(scores), group, groups)}


def box_numbers(sums: Mapping[str, NDArray[np.int64]]) -> list[Numbers]:
    """Return by group box scores over scored pairs, `false_alarm` and `false_area` over images without the finding."""
    found = []
    for of_counts, of_sums in zip(sums["counts"].tolist(), sums["score_sum"].tolist(), strict=True):
        counts, scores = (dict(zip(*part, strict=True)) for part in ((BOX_COUNTS, of_counts), (BOX_SUMS, of_sums)))
        pairs, instances, negatives = counts["pairs"], counts["instances"], counts["negatives"]
        numbers: Numbers = {"pairs": pairs, "negatives": negatives}
        numbers |= {name: share(scores[name], pairs * ONE) for name in ("box_iou", "centre_hit")}
        numbers |= {name: share(counts[name], pairs) for name in (f"acc_{t}" for t in _ACCURACIES)}
        numbers["best_iou"] = share(scores["best_iou"], instances * ONE)
        for percent in (30, 50):
            matched, predicted, true = counts[f"matched_{percent}"], counts["predicted"], counts["annotated"]
            numbers[f"precision_{percent}"] = share(matched, predicted)
            numbers[f"recall_{percent}"] = share(matched, true)
            numbers[f"f1_{percent}"] = share(2 * matched, predicted + true) if true else None
        numbers["count_error"] = share(counts["predicted"] - counts["annotated"], instances)
        numbers |= {name: share(counts[name], pairs) for name in (*STATUSES, "boxes", *_ODD)}
        numbers["false_alarm"] = share(counts["false_alarms"], negatives)
        numbers["false_area"] = share(scores["false_area"], negatives * ONE)
        found.append(numbers)
    return found


def box_numbers_and_all(sums: Sums) -> list[Numbers]:
    """Return the numbers of `box_numbers`, and at the end those of all rows together."""
    return box_numbers({name: np.concatenate([part, part.sum(0, keepdims=True)]) for name, part in sums.items()})


def share(part: int, whole: int) -> float | None:
    """Return the quotient of two integers, rounded once; None if the divisor is 0."""
    return part / whole if whole else None


def recognition_numbers(labels: NDArray[np.int8], probabilities: NDArray[np.float64]) -> Numbers:
    """Return AUROC, average precision, F1 and accuracy of one finding, with its positives and negatives.

    AUROC and average precision need both labels, F1 a positive; otherwise they are None. All four are None if a
    probability is NaN: the model gives no scores. Ranking is exact: tied pairs count one half. Labels (N,) are 1, 0, or
    -1 to be left out; probabilities (N,) are float64, because confident float32 scores tie.
    """
    known = labels >= 0
    present, scores = labels[known] == 1, probabilities[known]
    positives, negatives = int(present.sum()), int((~present).sum())
    numbers: Numbers = dict.fromkeys(("auroc", "average_precision", "f1", "accuracy"))
    if len(scores) and not np.isnan(scores).any():
        decided = scores >= 0.5
        tp, fp = int((decided & present).sum()), int((decided & ~present).sum())
        numbers |= {"f1": share(2 * tp, tp + fp + positives) if positives else None}
        numbers |= {"accuracy": (tp + negatives - fp) / len(scores)}
        if positives and negatives:
            level = np.unique(-scores, return_inverse=True)[1]
            true, false = (np.bincount(level, which).astype(np.int64) for which in (present, ~present))
            above = np.cumsum(true)
            # Exactly twice the number of correctly ordered pairs.
            area = int((false * (2 * above - true)).sum())
            numbers["auroc"] = area / (2 * positives * negatives)
            precision = above / np.cumsum(true + false)
            numbers["average_precision"] = fsum((true * precision).tolist()) / positives
    return numbers | {"positives": positives, "negatives": negatives}


def recognition_by_finding(
    labels: NDArray[np.int8], probabilities: NDArray[np.float64], finding: NDArray[np.int64], findings: int
) -> list[Numbers]:
    """Return `recognition_numbers` by finding; rows (N,) of finding -1 are left out."""
    own = (finding == place for place in range(findings))
    return [recognition_numbers(labels[rows], probabilities[rows]) for rows in own]


def macro_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if all are."""
    existing = [value for value in values if value is not None]
    return sum(existing) / len(existing) if existing else None


def recognition_macro(findings: Sequence[Numbers]) -> dict[str, float | None]:
    """Average without weights over the findings with both labels, the same findings for all four scores."""
    both = [one for one in findings if one["positives"] and one["negatives"]]
    return {name: macro_mean(one[name] for one in both) for name in ("auroc", "average_precision", "f1", "accuracy")}


def recognized_findings(rows: Rows) -> NDArray[np.int64]:
    """Return the finding that each row counts for in recognition (R,); -1 for phrases, which may concern one place."""
    return np.where(rows.of_finding, rows.finding, -1)


def counted_probabilities(rows: Rows) -> NDArray[np.float64]:
    """Return the probabilities for recognition (R,): NaN if not asked; unreadable replies count as wrong, 0 or 1."""
    worst = np.where(rows["asked"], (rows["label"] != 1).astype(np.float64), np.nan)
    return np.where(np.isnan(rows["probability"]), worst, rows["probability"])


def youden(labels: NDArray[np.int8], scores: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the two neighboring scores between which Youden's J is best (Youden 1950, Cancer 3, 32).

    The second is the lowest score s that maximizes sensitivity plus specificity of `>= s`, the first the next lower
    score, or minus infinity. None without both labels. Labels (N,) are 1, 0, or -1 to be left out, scores (N,).

    Examples:
        >>> youden(np.array([0, 0, 1, 1], np.int8), np.array([0.1, 0.2, 0.6, 0.8]))
        (0.2, 0.6)
    """
    positive, negative = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
    if not len(positive) or not len(negative):
        return None
    candidates = np.unique(np.concatenate([positive, negative]))
    missed, rejected = np.searchsorted(positive, candidates), np.searchsorted(negative, candidates)
    best = int((rejected * len(positive) - missed * len(negative)).argmax())
    return float(candidates[best - 1]) if best else -math.inf, float(candidates[best])


def by_digest(names: Sequence[str]) -> NDArray[np.int64]:
    """Return the rank of each name (N,) by SHA-256 digest, which is independent of the images."""
    digests = [hashlib.sha256(name.encode()).digest() for name in names]
    return np.argsort(sorted(range(len(digests)), key=digests.__getitem__))


def scored_on(rows: Rows) -> dict[str, dict[str, str]]:
    """Return digests of what each finding was scored on: its `labels` and its `regions`.

    They cover the names and labels of labeled images, and the names and regions of scored pairs, sorted by name, so
    they are equal exactly if two runs scored the same images on the same truth.
    """
    names = np.array(rows.image_ids, dtype=object)[rows.image]
    phrases = np.flatnonzero(~rows.of_finding)
    names[phrases] += "\n" + np.array(rows.queries, dtype=object)[rows.query[phrases]]
    found = {}
    for place, finding in enumerate(rows.findings):
        own = rows.finding == place
        parts = {"labels": (own & (rows["label"] >= 0), "label"), "regions": (own & rows["scored"], "region_digest")}
        found[finding] = {
            part: digest(sorted(zip(names[kept].tolist(), rows[column][kept].tolist(), strict=True)))
            for part, (kept, column) in parts.items()
        }
    return found


def constant_maps(rows: Rows) -> list[tuple[str, str]]:
    """Return image and query of the scored rows with a constant map, in the dataset's order."""
    own = np.flatnonzero(rows["constant"] == 1).tolist()
    return [(rows.image_ids[rows.image[row]], rows.queries[rows.query[row]]) for row in own]


def sign_tests(rows: Rows) -> tuple[list[float | None], float | None]:
    """Test by an exact sign test whether the minimum of maps is in the region more often than the maximum.

    A pair votes for the minimum if at least half of the tied minima, but not of the tied maxima, are in the region, for
    the maximum in the opposite case. Each patient has one vote, the majority of their pairs. The votes for the minimum
    are compared with coin tosses (Dixon and Mood 1946). Return the one-sided p-values of each finding and of all
    together, Holm-corrected for all tests of the run; None without a scored pair.
    """
    row = rows.counts.row
    votes = (rows["minimum_hit"][row] >= 0.5).astype(np.int64) - (rows["pointing_hit"][row] >= 0.5)
    patients = {name: place for place, name in enumerate(dict.fromkeys(rows.patient))}
    patient = np.array([patients[name] for name in rows.patient], np.int64)[rows.image[row]]
    finding = rows.finding[row]
    parts = [finding == place for place in range(len(rows.findings))] + [np.ones(len(row), np.bool_)]
    p_values = [_sign_p(np.bincount(patient[part], votes[part])) if part.any() else None for part in parts]
    known = iter(holm([p for p in p_values if p is not None]))
    *of_findings, of_all = [None if p is None else next(known) for p in p_values]
    return of_findings, of_all


def _sign_p(votes: NDArray[Any]) -> float:
    """Return the chance of at least this many positive votes among those that are not 0, exactly."""
    positive, count = int((votes > 0).sum()), int((votes != 0).sum())
    ways = term = math.comb(count, positive)
    for k in range(positive + 1, count + 1):
        term = term * (count - k + 1) // k
        ways += term
    return ways / (1 << count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number after Holm (1979, Scandinavian Journal of Statistics 6, 65).

    Holm bounds the chance of any false difference, whatever the dependence between tests.

    Examples:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
