"""Scores of one batch: what a model said about it against what the annotations say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from xbench.evaluation.answers import score_answers
from xbench.metrics import PointingGame, PointingGamePairs, ThresholdSweep, ThresholdSweepPairs
from xbench.runs.scores import BatchScores, ImageScores, PairCounts
from xbench.runtime.stopwatch import Stopwatch
from xbench.scoring.measures import Measurer
from xbench.scoring.sweep import PixelCounts
from xbench.types import GroundTruth, ModelOutput, Rules


def score_batch(
    output: ModelOutput,
    truth: GroundTruth,
    rules: Rules,
    stopwatch: Stopwatch | None = None,
    measurer: Measurer | None = None,
    check: Callable[[ModelOutput, Tensor], None] | None = None,
) -> BatchScores:
    """Score the outputs of a model.

    Args:
        output: Of the model; maps in the frame of its input, or answers, of which the other arguments but `truth` and
            `rules` ask nothing.
        truth: What the dataset says about the same images, at least one.
        rules: How maps are scored; the regions of `truth` are cut at its gamma already.
        stopwatch: Counts measuring the maps as `saliency`, the time before as `metrics`.
        measurer: Measures the maps.
        check: Refuses the output. It is given logits and probabilities on the host, the maps as they are, and which of
            them are finite (B, C) bool.
    """
    if output.answers is not None:
        return score_answers(output, truth, rules)
    stopwatch = stopwatch or Stopwatch()
    (images_count, classes), scored = truth.labels.shape, truth.scored
    rows, columns, _ = scored.T
    regions: list[Tensor | None] = [None] * (images_count * classes)
    for row, column, place in scored.tolist():
        regions[row * classes + column] = truth.regions[row][place]
    views = [view for view in truth.views for _ in range(classes)]
    maps, nobody = output.saliency, np.zeros(len(scored), np.bool_)
    if output.missing is not None:
        maps = maps.masked_fill(output.missing[..., None, None], 0)
        nobody = output.missing.cpu().numpy()[rows, columns]
    flat = (output.logits.flatten(), output.probabilities.flatten())
    stopwatch.lap("metrics")
    every = (measurer or Measurer())(maps.flatten(0, 1), regions, views, rules.thresholds, rules.upsampling, flat)
    stopwatch.lap("saliency")
    logits, probabilities = every.scores.view(2, images_count, classes)
    if check is not None:
        check(ModelOutput(logits, probabilities, maps), every.finite.view(images_count, classes))

    pairs = every[torch.from_numpy(rows * classes + columns)]
    if not pairs.finite.all():
        row = rows[int((~pairs.finite).nonzero()[0, 0])]
        raise ValueError(f"image {truth.image_ids[row]}: a scored map has NaN, infinity or a range beyond float32")
    # What nobody drew is in no mask, not even at threshold 0, which marks the whole image for every map.
    counts, shown = pairs.counts(), torch.from_numpy(~nobody)[:, None]
    counts = PixelCounts(counts.mask * shown, counts.overlap * shown, counts.region)
    if not counts.region.all():
        row = rows[int((counts.region == 0).nonzero()[0, 0])]
        raise ValueError(f"image {truth.image_ids[row]}: a scored region is empty")
    names = ("pointing_hit", "dice", "iou", "peak_x", "peak_y", "peak_distance", "minimum_hit")
    found = {name: np.full(truth.labels.shape, np.nan) for name in names}
    sizes = np.array([truth.regions[row].shape[1:] for row in rows], dtype=np.int64).reshape(-1, 2)
    middle = slice(rules.thresholds // 2, rules.thresholds // 2 + 1)
    fixed = PixelCounts(counts.mask[:, middle], counts.overlap[:, middle], counts.region)
    x, y, distance = pairs.peaks(sizes)
    values = (pairs.hits(rules.ties), fixed.dice()[:, 0], fixed.iou()[:, 0], x, y, distance, pairs.minimum_hits())
    for name, value in zip(names, values, strict=True):
        found[name][rows, columns] = np.where(nobody, np.nan if name.startswith("peak") else 0, value)
    constant = [
        (int(truth.index[rows[pair]]), truth.image_ids[rows[pair]], int(columns[pair]))
        for pair in np.flatnonzero(pairs.constant.numpy() & ~nobody).tolist()
    ]
    table = PairCounts(
        index=truth.index[rows],
        column=columns,
        image_ids=[truth.image_ids[row] for row in rows.tolist()],
        grid=sizes.prod(1),
        region=counts.region.numpy(),
        mask=counts.mask.numpy().astype(np.int32),
        overlap=counts.overlap.numpy().astype(np.int32),
    )
    images = ImageScores(
        index=truth.index,
        image_ids=truth.image_ids,
        patient_ids=truth.patient_ids,
        labels=truth.labels,
        has_region=truth.has_region,
        logits=logits.numpy(),
        probabilities=probabilities.numpy(),
        region_area=truth.region_places[..., 0],
        region_x=truth.region_places[..., 1],
        region_y=truth.region_places[..., 2],
        region_digests=truth.region_digests,
        reader_dice=truth.reader_agreement[..., 0],
        reader_iou=truth.reader_agreement[..., 1],
        **found,
    )
    return BatchScores(images, table, tuple(constant))


def add_scores(scores: BatchScores, pointing_game: PointingGame, sweep: ThresholdSweep) -> None:
    """Update metrics with the scored pairs of a batch, to the bit as its maps would."""
    pairs = scores.pairs
    rows = np.searchsorted(scores.images.index, pairs.index)
    hit = torch.from_numpy(scores.images.pointing_hit[rows, pairs.column])
    place = torch.from_numpy(rows), torch.from_numpy(pairs.column)
    pointing_game.restore_pairs(PointingGamePairs(*place, hit))
    mask, overlap, region = (
        torch.from_numpy(part.astype(np.int64)) for part in (pairs.mask, pairs.overlap, pairs.region)
    )
    sweep.restore_pairs(ThresholdSweepPairs.of(*place, PixelCounts(mask, overlap, region)))
