"""Scores of models that answer: boxes and points against annotated regions and boxes, and what could not be read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xbench.predictions.answer import Box, Point
from xbench.runs.answers import AnswerRow
from xbench.runs.results import Answers, Recognised, Repeats, Tokens, macro_mean
from xbench.runs.scores import BatchScores, ImageScores, PairCounts
from xbench.runtime.errors import UserError
from xbench.scoring.boxes import BoxScores, box_iou, draw_boxes, score_boxes, score_on_grid
from xbench.scoring.classification import classification_scores, macro
from xbench.scoring.peaks import least_distance
from xbench.types import GroundTruth, ModelOutput, Rules

_SENSITIVE = ("pointing_game", "dice_fixed", "iou_fixed", "box_iou", "acc_50")
"""Numbers for which it is said what answers that cannot be read do to them."""


def score_answers(output: ModelOutput, truth: GroundTruth, rules: Rules) -> BatchScores:
    """Score the answers of a model.

    Boxes are drawn on the evaluation grid as annotated regions are, and count as a map of two values: at each threshold
    but 0 the mask is their union. No box is a miss.

    Args:
        output: Of the model, with an answer to each pair that is scored.
        truth: What the dataset says about the same images, at least one; regions are cut at the gamma of `rules`.
        rules: How maps are scored; of these the grid, gamma, the number of thresholds and, of points, ties matter.
    """
    answers, scored = output.answers, truth.scored
    assert answers is not None
    rows, columns, _ = scored.T
    names = ("pointing_hit", "dice", "iou", "peak_x", "peak_y", "peak_distance", "minimum_hit")
    found = {name: np.full(truth.labels.shape, np.nan) for name in names}
    shape = (len(scored), rules.thresholds)
    mask, overlap = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    grid, area = np.zeros(len(scored), np.int64), np.zeros(len(scored), np.int64)
    for pair, (row, column, place) in enumerate(scored.tolist()):
        answer = answers[row][column]
        if answer is None:
            raise UserError(f"image {truth.image_ids[row]}: the model was not asked about a pair that is scored.")
        region = truth.regions[row][place].cpu().numpy()
        drawn = draw_boxes(answer.boxes, region.shape, rules.gamma)
        grid[pair], area[pair] = region.size, region.sum()
        mask[pair], overlap[pair] = drawn.sum(), (drawn & region).sum()
        mask[pair, 0], overlap[pair, 0] = grid[pair], area[pair]
        on_grid = score_on_grid(answer.boxes, region, answer.points, rules.gamma, drawn, rules.ties)
        values = (*on_grid, *_peak(drawn, answer.points, region))
        for name, value in zip(names, values, strict=False):
            found[name][row, column] = np.nan if value is None else value
    images = ImageScores(
        index=truth.index,
        image_ids=truth.image_ids,
        patient_ids=truth.patient_ids,
        labels=truth.labels,
        has_region=truth.has_region,
        logits=output.logits.double().cpu().numpy(),
        probabilities=output.probabilities.double().cpu().numpy(),
        region_area=truth.region_places[..., 0],
        region_x=truth.region_places[..., 1],
        region_y=truth.region_places[..., 2],
        region_digests=truth.region_digests,
        reader_dice=truth.reader_agreement[..., 0],
        reader_iou=truth.reader_agreement[..., 1],
        **found,
    )
    named = [truth.image_ids[row] for row in rows.tolist()]
    pairs = PairCounts(truth.index[rows], columns, named, grid, area, mask, overlap)
    return BatchScores(images, pairs, (), _rows(output, truth))


def _peak(
    drawn: NDArray[np.bool_], points: Sequence[Point], region: NDArray[np.bool_]
) -> tuple[float | None, float | None, float | None]:
    """Return the middle of the boxes, or else of the points, and how far the nearest of them lies from the region.

    As of a map that is highest there; None without either.
    """
    height, width = region.shape
    if not (pixels := np.argwhere(drawn)).size and points:
        last = np.array([height - 1, width - 1])
        pixels = np.minimum(np.array([[y * height, x * width] for x, y in points]), last).astype(np.int64)
    if not len(pixels):
        return None, None, None
    y, x = (pixels + 0.5).mean(axis=0) / (height, width)
    return float(x), float(y), math.sqrt(least_distance(pixels, region)) / (height * width)


def _rows(output: ModelOutput, truth: GroundTruth) -> tuple[AnswerRow, ...]:
    """Return what was asked about a batch, image by image."""
    made, repeated = [], iter(output.repeated)
    for query, reply in output.replies:
        row, column = query.row, query.column
        size = truth.image_sizes[row]
        if size is None:
            raise UserError(f"image {truth.image_ids[row]}: nobody knows its size, so boxes on it mean nothing.")
        boxes = None
        if query.kind == "locate" and truth.labels[row, column] == 1 and truth.has_region[row, column]:
            items = truth.instances[row].get(column, ())
            boxes = (*truth.boxes(row, column), not items or any(item.kind != "box" for item in items))
        answer = (output.answers or [])[row][column] if query.kind == "locate" else None
        if query.kind == "again":
            answer = next(repeated)
        index, image_id = int(truth.index[row]), truth.image_ids[row]
        made.append(AnswerRow.of(index, image_id, (size[1], size[0]), query, reply, answer, boxes))
    return tuple(sorted(made, key=lambda one: one.index))


def without_text(rows: Sequence[AnswerRow]) -> list[AnswerRow]:
    """Return rows without the texts, for whoever keeps those of a whole run in memory."""
    return [replace(row, raw="", reasoning=None) for row in rows]


def summarise_answers(
    findings: Sequence[str], rows: Sequence[AnswerRow], images: ImageScores, about: Mapping[str, Any]
) -> Answers:
    """Put the numbers of answers together.

    Args:
        findings: Of the run.
        rows: Of all its images, in any order; their texts are not looked at.
        images: Its scores.
        about: The provenance of its model, which names family, frame and reader.
    """
    located = [row for row in rows if row.query == "locate"]
    # The rows are those of all processes, and only the first one comes here.
    each, all_of_them = (BoxScores(classes, sync_on_compute=False) for classes in (len(findings), 1))
    for row in located:
        answer, true = [row.answer()], [row.annotated]
        each.update(answer, [findings.index(row.finding)], true, bool(row.one_by_one))
        all_of_them.update(answer, [0], true, bool(row.one_by_one))
    per_class = dict(zip(findings, each.compute(), strict=True))
    means = [name for name in per_class[findings[0]] if name not in ("pairs", "negatives")]
    pairs = [row for row in located if row.annotated is not None]
    shapes = {name for row in located for name in ("boxes", "points") if getattr(row, name)}
    return Answers(
        family=str(about.get("family")),
        frame=str(about.get("frame")),
        reader=str(about.get("reader")),
        kind="points" if shapes == {"points"} else "boxes",
        outlined=sum(bool(row.outlined) for row in pairs),
        per_class=per_class,
        macro={name: macro_mean([scores[name] for scores in per_class.values()]) for name in means},
        overall=all_of_them.compute()[0],
        sensitivity=_sensitivity(findings, pairs, images, shapes == {"points"}),
        recognition=_recognition([row for row in rows if row.query == "recognise"], images),
        tokens=_tokens(rows),
        repeats=_repeats([row for row in rows if row.query == "again"], located),
    )


def _repeats(again: Sequence[AnswerRow], located: Sequence[AnswerRow]) -> Repeats | None:
    first = {(row.image_id, row.finding): row for row in located}
    both = [(row, first[row.image_id, row.finding]) for row in again]
    return (
        Repeats(
            len(both),
            sum(row.status == other.status for row, other in both),
            sum(_same_boxes(row.boxes or (), other.boxes or ()) for row, other in both),
        )
        if both
        else None
    )


def _same_boxes(one: Sequence[Box], other: Sequence[Box]) -> bool:
    return box_iou(one, other) > 0.9 if one and other else not one and not other


def _tokens(rows: Sequence[AnswerRow]) -> Tokens | None:
    known = [row for row in rows if (row.tokens_in, row.tokens_out) != (None, None)]
    sent, received = sum(row.tokens_in or 0 for row in known), sum(row.tokens_out or 0 for row in known)
    return Tokens(len(known), sent, received) if known else None


def _sensitivity(
    findings: Sequence[str], pairs: Sequence[AnswerRow], images: ImageScores, only_points: bool
) -> dict[str, dict[str, float | None]]:
    """Return the macro numbers if answers that cannot be read had counted otherwise, and of how many pairs."""
    place = {image_id: row for row, image_id in enumerate(images.image_ids)}
    table = []
    for row in pairs:
        where = place[row.image_id], findings.index(row.finding)
        boxes = score_boxes(row.boxes or (), row.annotated or (), instances=False)
        grid = [array[where] for array in (images.pointing_hit, images.dice, images.iou)]
        table.append([*np.nan_to_num(grid), boxes.box_iou, boxes.accuracy(0.5)])
    values = np.asarray(table, np.float64).reshape(-1, len(_SENSITIVE))
    status, of = np.array([row.status for row in pairs]), np.array([row.finding for row in pairs])

    def means(values: NDArray[np.float64], kept: NDArray[np.bool_]) -> dict[str, float | None]:
        groups = [values[kept & (of == finding)] for finding in findings]
        found: dict[str, float | None] = {"pairs": int(kept.sum())}
        for at, name in enumerate(_SENSITIVE):
            lacking = only_points and name not in ("pointing_game",)
            each = [fsum(group[:, at]) / len(group) for group in groups if len(group)]
            found[name] = None if lacking else macro_mean(each)
        return found

    def counted(which: str, value: float) -> dict[str, float | None]:
        return means(np.where((status == which)[:, None], value, values), every)

    every = np.ones(len(pairs), np.bool_)
    return {
        "answered_only": means(values, status == "answered"),
        "truncated_as_misses": counted("truncated", 0),
        "unparsable_as_useless": counted("unparsable", 0),
        "unparsable_as_perfect": counted("unparsable", 1),
    }


def _recognition(rows: Sequence[AnswerRow], images: ImageScores) -> Recognised | None:
    """Return how recognition was asked; None if it was not."""
    if not rows:
        return None
    ways = {row.way for row in rows if row.probability is not None}
    masses = [row.mass for row in rows if row.mass is not None]
    readable = macro(
        classification_scores(
            torch.from_numpy(np.where(np.isnan(images.probabilities), -1, images.labels)),
            torch.from_numpy(np.nan_to_num(images.probabilities)),
        )
    )
    names = ("auroc", "average_precision", "f1", "accuracy")
    return Recognised(
        asked=len(rows),
        unreadable=sum(row.probability is None for row in rows),
        bounded=sum(bool(row.bounded) for row in rows),
        ways={
            way: sum(row.way == way and row.probability is not None for row in rows)
            for way in sorted(filter(None, ways))
        },
        decisions_only=ways == {"decision"},
        median_mass=median(masses) if masses else None,
        readable_only={name: getattr(readable, name) for name in names},
    )
