"""Measure predictions for a batch against the truth, as rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.predictions.answer import Answer, Point
from xbench.runtime.errors import UserError
from xbench.runtime.stopwatch import Stopwatch
from xbench.scoring.boxes import answer_columns, draw_boxes, score_on_grid
from xbench.scoring.map_measures import Measurer, least_distance
from xbench.scoring.numbers import dice, iou
from xbench.scoring.rows import SCHEMA, column_of, float_columns, nulls, query_columns, texts_column
from xbench.scoring.sweep import own_thresholds
from xbench.types import Answers, Maps, Prediction, Rules, Truth

_KINDS = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
_FLOATS = frozenset(name for name, kind in _KINDS.items() if kind == pa.float64())
_nulls = lru_cache(maxsize=8)(partial(nulls, SCHEMA))
Check = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]], None]


def measure(
    prediction: Prediction,
    truth: Truth,
    rules: Rules,
    stopwatch: Stopwatch | None = None,
    measurer: Measurer | None = None,
    check: Check | None = None,
    condition: str = "",
) -> pa.Table:
    """Measure predictions for P pairs; return a table of `SCHEMA` with a row for each.

    The stopwatch counts measuring maps as `saliency`, the time before as `metrics`. `check`, not called for answers,
    raises for values that cannot be scored: logits and probabilities (P,), NaN if missing, and which maps are finite.
    `condition` is the change of the images.
    """
    pairs, image, scored = len(truth.queries), truth.image.tolist(), truth.scored
    values: dict[str, Any] = {}
    pixels: dict[str, Any] = {}
    logits, probabilities = prediction.scores(pairs)
    asked = np.full(pairs, prediction.given[1])
    match prediction.shown:
        case Maps() as maps:
            given = logits.to(maps.values.device), probabilities.to(maps.values.device)
            scores, values, pixels = _measure_maps(maps, given, truth, rules, stopwatch or Stopwatch(), measurer, check)
        case Answers() as answers:
            scores = torch.stack([logits.cpu(), probabilities.cpu()]).double().numpy()
            asked[:] = False
            asked[[question.pair for question, _ in answers.replies if question.kind == "recognise"]] = True
            values, pixels = _measure_answers(answers.answers, truth, rules)
        case None:
            scores = torch.stack([logits.cpu(), probabilities.cpu()]).double().numpy()
            scored = np.zeros(pairs, np.bool_)
            if check is not None:
                check(scores[0], scores[1], np.ones(pairs, np.bool_))
    texts = {
        "image_id": [truth.image_ids[place] for place in image],
        "patient_id": [truth.patient_ids[place] for place in image],
        "condition": [condition] * pairs,
        "region_digest": [digest.decode() or None for digest in truth.digests.tolist()],
    }
    numbers = {
        "index": truth.index[truth.image],
        "label": truth.labels,
        "has_region": truth.has_region,
        "scored": scored,
        "asked": asked,
        **dict(zip(("logit", "probability"), scores, strict=True)),
        **dict(zip(("region_area", "region_x", "region_y"), truth.places.T, strict=True)),
        **dict(zip(("reader_dice", "reader_iou"), truth.agreement.T, strict=True)),
    }
    columns = _nulls(pairs) | {name: texts_column(tuple(column)) for name, column in texts.items()}
    columns |= query_columns(tuple(truth.queries))
    floats = {}
    for name, column in (numbers | values | pixels).items():
        if isinstance(column, list):
            columns[name] = pa.array(column, _KINDS[name], from_pandas=True)
        elif name in _FLOATS:
            floats[name] = column
        else:
            columns[name] = column_of(column, _KINDS[name], None if name in numbers else scored)
    columns |= float_columns(floats, scored)
    return pa.Table.from_arrays([*columns.values()], schema=SCHEMA)


def _measure_maps(
    shown: Maps,
    given: tuple[Tensor, Tensor],
    truth: Truth,
    rules: Rules,
    stopwatch: Stopwatch,
    measurer: Measurer | None,
    check: Check | None,
) -> tuple[NDArray[np.float64], dict[str, Any], dict[str, Any]]:
    scored = truth.scored
    row = np.flatnonzero(scored)
    regions = [region if wanted else None for region, wanted in zip(truth.regions, scored.tolist(), strict=True)]
    views = [truth.views[image] for image in truth.image.tolist()]
    maps = shown.values if shown.missing is None else shown.values.masked_fill(shown.missing[..., None, None], 0)
    stopwatch.lap("metrics")
    limits = own_thresholds(rules.scale, rules.thresholds)
    every = (measurer or Measurer())(maps, regions, views, rules.thresholds, rules.upsampling, given, limits)
    stopwatch.lap("saliency")
    scores = every.scores
    if check is not None:
        check(scores[0], scores[1], every.finite)
    pairs = every[row]
    mask, overlap, region = pairs.counts()
    for fine, what in (
        (pairs.finite, "a scored map has NaN, infinity or a range beyond float32"),
        (region > 0, "a scored region is empty"),
    ):
        if not fine.all():
            raise ValueError(f"image {truth.image_ids[truth.image[row[fine.argmin()]]]}: {what}")
    sizes = np.array([one.shape for one in regions if one is not None], dtype=np.int64).reshape(-1, 2)
    pixels = {"grid_pixels": sizes.prod(1), "region_pixels": region, "mask_pixels": mask, "overlap_pixels": overlap}
    if len(limits):
        pixels["own_mask_pixels"], pixels["own_overlap_pixels"], _ = pairs.counts(own=True)
    found: dict[str, Any] = {"pointing_hit": pairs.hits(rules.ties), "minimum_hit": pairs.minimum_hits()}
    found |= dict(zip(("peak_x", "peak_y", "peak_distance"), pairs.peaks(sizes), strict=True))
    found["constant"] = pairs.constant
    if shown.missing is not None:
        nobody = shown.missing.cpu().numpy()[row]
        nothing = {name: np.nan if name.startswith("peak") else 0 for name in found}
        found = {name: np.where(nobody, nothing[name], values).astype(values.dtype) for name, values in found.items()}
        # Masks of missing maps are empty, even at threshold 0, where those of all other maps are full.
        for name in pixels.keys() - {"grid_pixels", "region_pixels"}:
            pixels[name] = pixels[name] * ~nobody[:, None]
    fixed = *(pixels[name][:, rules.thresholds // 2] for name in ("mask_pixels", "overlap_pixels")), region
    return scores, found | {"dice": dice(*fixed), "iou": iou(*fixed)}, pixels


def _measure_answers(
    answers: Sequence[Answer | None], truth: Truth, rules: Rules
) -> tuple[dict[str, Any], dict[str, NDArray[np.int64]]]:
    scored = np.flatnonzero(truth.scored)
    names = ("pointing_hit", "dice", "iou", "peak_x", "peak_y", "peak_distance")
    found = {name: np.full(len(scored), np.nan) for name in names}
    pixels = {name: np.zeros(len(scored), np.int64) for name in ("grid_pixels", "region_pixels")}
    pixels |= {name: np.zeros((len(scored), 1), np.int64) for name in ("mask_pixels", "overlap_pixels")}
    boxes: list[Mapping[str, Any]] = [{} if answer is None else answer_columns(answer, None) for answer in answers]
    for place, pair in enumerate(scored.tolist()):
        answer, on_grid = answers[pair], truth.regions[pair]
        if answer is None or on_grid is None:
            name = truth.image_ids[truth.image[pair]]
            raise UserError(f"image {name}: the model was not asked about a pair that is scored.")
        region = on_grid.cpu().numpy()
        drawn = draw_boxes(answer.boxes, region.shape, rules.gamma)
        pixels["grid_pixels"][place], pixels["region_pixels"][place] = region.size, region.sum()
        pixels["mask_pixels"][place], pixels["overlap_pixels"][place] = drawn.sum(), (drawn & region).sum()
        scores = score_on_grid(answer.boxes, region, answer.points, rules.gamma, drawn, rules.ties)
        for name, value in zip(names, (*scores, *_peak(drawn, answer.points, region)), strict=True):
            found[name][place] = np.nan if value is None else value
        boxes[pair] = answer_columns(answer, *truth.boxes(pair)) | {"outlined": truth.outlined(pair)}
    of_boxes = dict.fromkeys(name for one in boxes for name in one)
    return found | {name: [one.get(name) for one in boxes] for name in of_boxes}, pixels


def _peak(drawn: NDArray[np.bool_], points: Sequence[Point], region: NDArray[np.bool_]) -> tuple[float | None, ...]:
    """Return x and y of the middle of the boxes, or else of the points, and their distance from the region."""
    height, width = region.shape
    if not (pixels := np.argwhere(drawn)).size and points:
        last = np.array([height - 1, width - 1])
        pixels = np.minimum(np.array([[y * height, x * width] for x, y in points]), last).astype(np.int64)
    if not len(pixels):
        return None, None, None
    y, x = (pixels + 0.5).mean(axis=0) / (height, width)
    return float(x), float(y), math.sqrt(least_distance(pixels, region)) / (height * width)
