"""Free-response curves and average precision of a stored run: of the parts of its maps, or of the boxes it answered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.runs.answers import AnswerRow
from xbench.runs.finished import FinishedRun
from xbench.runtime.errors import UserError
from xbench.scoring.boxes import pairwise_iou
from xbench.scoring.lesions import IOUS, average_precision, froc, match

SIZES = {"small": 0.0, "medium": 0.01, "large": 0.05}
"""From which share of the radiograph on a lesion has a size."""
MOST = 100
"""Detections of a pair that count, those with the highest scores, as in COCO."""
_FROC_IOU = 0.3
_RATE = 1.0


def sizes_of(areas: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the place in `SIZES` of lesions that take such shares of the radiograph."""
    return np.digitize(areas, [*SIZES.values()][1:])


def ranked(scores: NDArray[np.float64], iou: NDArray[np.float64], areas: NDArray[np.float64]) -> dict[str, Any]:
    """Return the columns of a pair: its detections, highest score first, and what each finds at each overlap.

    Args:
        scores: Of D detections.
        iou: With L lesions, (D, L).
        areas: Shares of the radiograph that the lesions take (L,).
    """
    kept = np.argsort(-scores, kind="stable")[:MOST]
    scores, iou, sizes = scores[kept], iou[kept], sizes_of(areas)
    found: dict[str, Any] = {"lesions": len(areas), "scores": scores.tolist()}
    for least in IOUS:
        lesion = match(iou, scores, least)
        found[_hits(least)] = (lesion >= 0).tolist()
        if least == _FROC_IOU:
            found["sizes"] = [int(sizes[place]) if place >= 0 else -1 for place in lesion.tolist()]
    return found | {f"lesions_{size}": int((sizes == place).sum()) for place, size in enumerate(SIZES)}


def check_answered(run: FinishedRun) -> None:
    """Refuse answers that cannot be ranked: boxes without a confidence, and points.

    Raises:
        UserError: There is one.
    """
    for answer in _located(run):
        problem = "a box without a confidence" if None in (answer.confidence or ()) else ""
        problem = "a point, which has no extent" if answer.points and not answer.boxes else problem
        if problem:
            raise UserError(
                f"--protocol detections ranks boxes by the confidence that the model gives each, and {run.folder} has "
                f"{problem} (first: {answer.finding} on {answer.image_id}).",
                exit_status=2,
            )


def answered(run: FinishedRun) -> list[dict[str, Any]]:
    """Return a row for each pair whose annotated boxes are known one by one, or where the finding is absent."""
    rows, scores = [], run.image_scores
    column_of = {finding: column for column, finding in enumerate(run.results.findings)}
    for answer in _located(run):
        row, column = run.row_of[answer.image_id], column_of[answer.finding]
        label = int(scores.labels[row, column])
        if not (answer.one_by_one if answer.annotated else label == 0):
            continue
        true = np.array(answer.annotated or (), np.float64).reshape(-1, 4)
        about = {
            "index": int(scores.index[row]),
            "image_id": answer.image_id,
            "column": column,
            "label": label,
            "probability": float(scores.probabilities[row, column]),
            "chance": float(scores.region_area[row, column]) if answer.annotated else 0.0,
        }
        iou = pairwise_iou(answer.boxes or (), true)
        confidence = np.array(answer.confidence or (), np.float64)
        rows.append(about | ranked(confidence, iou, (true[:, 2:] - true[:, :2]).prod(axis=1)))
    return sorted(rows, key=lambda one: (one["index"], one["column"]))


def _located(run: FinishedRun) -> Iterator[AnswerRow]:
    for answers in (run.answers or {}).values():
        yield from (answer for answer in answers if answer.query == "locate")


def detection_numbers(table: Mapping[str, NDArray[Any]]) -> dict[str, float | None]:
    """Return the numbers of one finding from its pairs; None without a lesion.

    `froc`: mean sensitivity at 1/8 to 8 false detections an image, at an IoU of 0.3; `sensitivity`: that at one false
    detection an image, and by size; `ap_30`, `ap_50`: COCO's average precision; `map`: its mean over IoU 0.1 to 0.5.
    """
    lesions, images = int(table["lesions"].sum()), len(table["lesions"])
    scores = _joined(table["scores"], np.float64)
    hits = {iou: _joined(table[_hits(iou)], np.bool_) for iou in IOUS}
    precisions = {iou: average_precision(scores, hit, lesions) for iou, hit in hits.items()}
    known = [value for value in precisions.values() if value is not None]
    curve = froc(scores, hits[_FROC_IOU], lesions, images)
    numbers: dict[str, float | None] = {
        "froc": None if curve is None else curve.score,
        "sensitivity": curve.sensitivity_at[_RATE] if curve is not None and lesions else None,
        "map": math.fsum(known) / len(known) if known else None,
        "ap_30": precisions[0.3],
        "ap_50": precisions[0.5],
    }
    counted = _counted(scores, hits[_FROC_IOU], images)
    sizes = _joined(table["sizes"], np.int64)
    for place, size in enumerate(SIZES):
        of_size = int(table[f"lesions_{size}"].sum())
        found = int(((sizes == place) & counted).sum())
        numbers[f"sensitivity_{size}"] = found / of_size if of_size else None
    return numbers


def _counted(scores: NDArray[np.float64], hits: NDArray[np.bool_], images: int) -> NDArray[np.bool_]:
    """Which detections stand above the lowest score with at most one false detection an image; equal ones together."""
    levels, place = np.unique(-scores, return_inverse=True)
    false = np.cumsum(np.bincount(place, ~hits, len(levels)))
    return np.asarray(place < np.searchsorted(false, _RATE * images, side="right"))


def _joined(lists: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(one, dtype) for one in lists)])


def _hits(iou: float) -> str:
    return f"hits_{round(100 * iou)}"
