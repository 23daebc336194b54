"""What `verify` does for a model that answers: its words read again, its boxes scored again, by other code.

As there, without torch and without the metrics: areas are sums over the cells that all edges cut, and matchings are
those of scipy's graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from xbench.predictions import family_named
from xbench.predictions.asking import READER
from xbench.predictions.conventions import Convention
from xbench.runs.answers import AnswerRow
from xbench.runs.files import ANSWERS, RESULTS
from xbench.runs.finished import FinishedRun
from xbench.runs.results import Answers

_ROUNDING = 1e-12
_READ = ("status", "boxes", "points", "confidence", "clipped", "reordered", "dropped", "duplicates", "suspect_frame")
_Number = tuple[str, Any, Any]


def answer_numbers(run: FinishedRun, stored: Answers) -> Iterator[_Number]:
    """Yield place, stored and derived value of what `answers.parquet` says, and of what follows from it.

    Texts are read again only if this version's reader is the run's.
    """
    rows = [row for rows in (run.answers or {}).values() for row in rows]
    for row in rows:
        yield from _row(run, row, stored)
    findings = run.results.findings
    by_finding = {finding: _scores([row for row in rows if row.finding == finding]) for finding in findings}
    macro = {name: _mean([one[name] for one in by_finding.values()]) for name in stored.macro}
    for place, one, other in [
        *((f"per_class / {finding}", stored.per_class[finding], by_finding[finding]) for finding in findings),
        ("overall", stored.overall, _scores(rows)),
        ("macro", stored.macro, macro),
        *((f"sensitivity / {name}", one, _counted(run, rows, name)) for name, one in stored.sensitivity.items()),
        ("recognition", _flat(stored.recognition), _recognised(rows)),
    ]:
        for name in {**one, **other}:
            yield f"{RESULTS} / answers / {place} / {name}", one.get(name, "no entry"), other.get(name, "no entry")
    yield f"{RESULTS} / answers / kind", stored.kind, "points" if only_points(rows) else "boxes"
    if (tokens := stored.tokens) is not None:
        yield f"{RESULTS} / answers / tokens sent", tokens.sent, sum(row.tokens_in or 0 for row in rows)
        yield f"{RESULTS} / answers / tokens received", tokens.received, sum(row.tokens_out or 0 for row in rows)
    if (repeats := stored.repeats) is not None:
        first = {(row.image_id, row.finding): row for row in rows if row.query == "locate"}
        both = [(row, first[row.image_id, row.finding]) for row in rows if row.query == "again"]
        ious = [(areas := _areas(row.boxes or (), other.boxes or ()))[0] / (areas[1] or 1) for row, other in both]
        alike = [iou > 0.9 or not (row.boxes or other.boxes) for iou, (row, other) in zip(ious, both, strict=True)]
        yield f"{RESULTS} / answers / repeats", repeats.asked, len(both)
        same = sum(row.status == other.status for row, other in both)
        yield f"{RESULTS} / answers / repeats of one status", repeats.same_status, same
        yield f"{RESULTS} / answers / repeats of the same boxes", repeats.same_boxes, sum(alike)
    yield f"{RESULTS} / answers / outlined", stored.outlined, sum(bool(row.outlined) for row in rows)


def only_points(rows: Sequence[AnswerRow]) -> bool:
    """Tell whether a model answered with points, and not one box."""
    located = [row for row in rows if row.query == "locate"]
    return any(row.points for row in located) and not any(row.boxes for row in located)


def _row(run: FinishedRun, row: AnswerRow, stored: Answers) -> Iterator[_Number]:
    place = f"{ANSWERS} / {row.image_id} / {row.finding} / {row.query}"
    if row.query == "recognise":
        column = run.results.findings.index(row.finding)
        kept = run.image_scores.probabilities[run.row_of[row.image_id], column]
        yield f"{place} / probability", row.probability, row.reply().recognition().probability
        yield f"{place} / probability of the image", None if np.isnan(kept) else float(kept), row.probability
        return
    if stored.reader == READER:
        answer = row.read_again(family_named(stored.family), Convention.named(stored.frame))[1]
        for name in _READ:
            derived = getattr(answer if hasattr(answer, name) else answer.counts, name)
            yield f"{place} / {name}", _listed(getattr(row, name)), _listed(derived)
    if row.annotated is not None and run.saves_instances:
        items = run.instances.get((row.image_id, row.finding), ())
        if boxes := tuple(box for item in items if (box := item.box()) is not None):
            yield f"{place} / annotated", _listed(row.annotated), _listed(boxes)
            yield f"{place} / one_by_one", row.one_by_one, len({item.reader for item in items}) == 1


def _scores(rows: Sequence[AnswerRow]) -> dict[str, float | int | None]:
    located = [row for row in rows if row.query == "locate"]
    pairs = [row for row in located if row.annotated is not None]
    negatives = [row for row in located if row.annotated is None]
    lesions = [row for row in pairs if row.one_by_one]
    ious = [_union_iou(row) for row in pairs]
    found: dict[str, float | int | None] = {"pairs": len(pairs), "negatives": len(negatives)}
    found |= {"box_iou": _mean(ious), "centre_hit": _mean([_centres(row) for row in pairs])}
    found |= {f"acc_{t}": _mean([float(iou > t / 100 + _ROUNDING) for iou in ious]) for t in (30, 50, 75)}
    each = [_each(row) for row in lesions]
    found["best_iou"] = _mean([float(iou.max(initial=0)) for iou in each])
    answered, true = (sum(len(getattr(row, name) or ()) for row in lesions) for name in ("boxes", "annotated"))
    for t in (30, 50):
        graphs = [csr_array(iou >= t / 100 - _ROUNDING) for iou in each if iou.size]
        matched = sum(int((maximum_bipartite_matching(graph) >= 0).sum()) for graph in graphs)
        found[f"precision_{t}"] = _share(matched, answered)
        found[f"recall_{t}"] = _share(matched, true)
        found[f"f1_{t}"] = _share(2 * matched, answered + true) if true else None
    found["count_error"] = _share(answered - true, len(lesions))
    for status in ("answered", "abstained", "unparsable", "truncated"):
        found[status] = _share(sum(row.status == status for row in pairs), len(pairs))
    found["boxes"] = _share(sum(len(row.boxes or ()) for row in pairs), len(pairs))
    for name in ("clipped", "reordered", "dropped", "duplicates", "suspect_frame"):
        found[name] = _share(sum(bool(getattr(row, name)) for row in pairs), len(pairs))
    found["false_alarm"] = _share(sum(bool(row.boxes) for row in negatives), len(negatives))
    found["false_area"] = _mean([_areas(row.boxes or (), ())[1] for row in negatives])
    return found


def _counted(run: FinishedRun, rows: Sequence[AnswerRow], variant: str) -> dict[str, float | int | None]:
    """Macro numbers if what has no box had counted otherwise: see `Answers.sensitivity`."""
    status, value = {
        "answered_only": ("", None),
        "truncated_as_misses": ("truncated", 0.0),
        "unparsable_as_useless": ("unparsable", 0.0),
        "unparsable_as_perfect": ("unparsable", 1.0),
    }[variant]
    names = ("pointing_game", "dice_fixed", "iou_fixed", "box_iou", "acc_50")
    by_finding: dict[str, list[list[float]]] = {}
    for row in rows:
        if row.annotated is None or (variant == "answered_only" and row.status != "answered"):
            continue
        place = run.row_of[row.image_id], run.results.findings.index(row.finding)
        scores = run.image_scores
        grid = [float(np.nan_to_num(one[place])) for one in (scores.pointing_hit, scores.dice, scores.iou)]
        iou = _union_iou(row)
        numbers = [*grid, iou, float(iou > 0.5 + _ROUNDING)]
        numbers = numbers if row.status != status or value is None else [value] * len(numbers)
        by_finding.setdefault(row.finding, []).append(numbers)
    means = [np.mean(numbers, axis=0) for numbers in by_finding.values()]
    lacking = names[1:] if only_points(rows) else ()
    found: dict[str, float | int | None] = {"pairs": sum(map(len, by_finding.values()))}
    for at, name in enumerate(names):
        found[name] = None if name in lacking else _mean([float(each[at]) for each in means])
    return found


def _recognised(rows: Sequence[AnswerRow]) -> dict[str, Any]:
    asked = [row for row in rows if row.query == "recognise"]
    if not asked:
        return {}
    ways = {way: sum(row.way == way and row.probability is not None for row in asked) for way in _WAYS}
    masses = [row.mass for row in asked if row.mass is not None]
    return {
        "asked": len(asked),
        "unreadable": sum(row.probability is None for row in asked),
        "bounded": sum(bool(row.bounded) for row in asked),
        "ways": {way: count for way, count in ways.items() if count},
        "decisions_only": [way for way, count in ways.items() if count] == ["decision"],
        "median_mass": float(np.median(masses)) if masses else None,
    }


_WAYS = ("decision", "first token", "stated confidence")


def _flat(recognition: Any) -> Mapping[str, Any]:
    found = {} if recognition is None else asdict(recognition)
    return {name: value for name, value in found.items() if name != "readable_only"}


def _areas(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Areas of the intersection and of the union of two unions of boxes."""
    boxes = np.array([*one, *other], np.float64).reshape(-1, 4)
    xs, ys = np.unique(boxes[:, ::2]), np.unique(boxes[:, 1::2])
    cells = np.outer(np.diff(ys), np.diff(xs))
    covered = []
    for some in (boxes[: len(one)], boxes[len(one) :]):
        inside = np.zeros(cells.shape, np.bool_)
        for left, right, top, bottom in zip(
            *(np.searchsorted(edges, some[:, at]) for at, edges in ((0, xs), (2, xs), (1, ys), (3, ys))), strict=True
        ):
            inside[top:bottom, left:right] = True
        covered.append(inside)
    return float(cells[covered[0] & covered[1]].sum()), float(cells[covered[0] | covered[1]].sum())


def _union_iou(row: AnswerRow) -> float:
    shared, either = _areas(row.boxes or (), row.annotated or ())
    return shared / either


def _centres(row: AnswerRow) -> float:
    middles = [((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for box in row.boxes or ()]
    hits = [any(x0 <= x <= x1 and y0 <= y <= y1 for x0, y0, x1, y1 in row.annotated or ()) for x, y in middles]
    return sum(hits) / len(hits) if hits else 0.0


def _each(row: AnswerRow) -> NDArray[np.float64]:
    """IoU of each answered with each annotated box."""
    areas = [[_areas([box], [true]) for true in row.annotated or ()] for box in row.boxes or ()]
    ious = [[shared / either for shared, either in of_box] for of_box in areas]
    return np.array(ious, np.float64).reshape(len(row.boxes or ()), len(row.annotated or ()))


def _listed(value: Any) -> Any:
    """Tuples as lists, for several values in a tuple would be ones of which each is right."""
    return [_listed(one) for one in value] if isinstance(value, tuple) else value


def _mean(values: Sequence[float | int | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def _share(part: int, whole: int) -> float | None:
    return float(Fraction(part, whole)) if whole else None
