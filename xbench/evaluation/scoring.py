"""Scores of one batch: what a model said about it against what the annotations say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.geometry.grid import View, chunk_pixels, runs_of_views, saliency_on_grid, seen_on_grid
from xbench.metrics import PointingGame, PointingGamePairs, ThresholdSweep, ThresholdSweepPairs
from xbench.metrics.peaks import peak_distance
from xbench.metrics.pointing_game import highest_places, hits_at, pointing_hits
from xbench.metrics.sweep import PixelCounts, sweep_chunk
from xbench.runs.scores import BatchScores, ImageScores, PairCounts
from xbench.runtime.stopwatch import Stopwatch
from xbench.types import GroundTruth, ModelOutput, Rules


def score_batch(
    output: ModelOutput, truth: GroundTruth, rules: Rules, stopwatch: Stopwatch | None = None
) -> BatchScores:
    """Score the outputs of a model.

    Args:
        output: Of the model; maps in the frame of its input.
        truth: What the dataset says about the same images, at least one.
        rules: How maps are scored; the regions of `truth` are cut at its gamma already.
        stopwatch: Counts bringing maps to the grid as `saliency`, the time before as `metrics`.
    """
    stopwatch = stopwatch or Stopwatch()
    device = output.saliency.device
    middle = slice(rules.thresholds // 2, rules.thresholds // 2 + 1)
    scored: list[_Scored] = []
    # Everything is found out about a few pairs while they are in the cache, one pass over all.
    for rows, columns, places, regions in _pairs(truth, rules.grid == "native", chunk_pixels(device)):
        image, finding = (torch.from_numpy(place).to(device, non_blocking=True) for place in (rows, columns))
        raw = output.saliency[image, finding]
        stopwatch.lap("metrics")
        views = [truth.views[row] for row in rows]
        on_grid = saliency_on_grid(raw, views, (regions.shape[1], regions.shape[2]), rules.upsampling)
        stopwatch.lap("saliency")
        counts = sweep_chunk(on_grid, regions, rules.thresholds)
        if not counts.region.all():
            raise ValueError(
                f"images {truth.image_ids[rows[0]]} to {truth.image_ids[rows[-1]]}: a scored region is empty"
            )
        at_half = PixelCounts(counts.mask[:, middle], counts.overlap[:, middle], counts.region)
        highest = highest_places(on_grid)
        scored.append(
            _Scored(
                rows,
                columns,
                places,
                (regions.shape[1], regions.shape[2]),
                # Any other map is 1 somewhere once it is normalised.
                constant=counts.mask[:, -1] == 0,
                hit=hits_at(highest, regions, rules.ties),
                counts=counts,
                fixed=torch.cat([at_half.dice(), at_half.iou()], 1).T,
                highest=torch.stack(highest, 1).cpu().numpy(),
                minimum=_minimum_hits(on_grid, regions, views),
            )
        )

    names = ("pointing_hit", "dice", "iou", "peak_x", "peak_y", "peak_distance", "minimum_hit")
    found = {name: np.full(truth.labels.shape, np.nan) for name in names}
    none, table = np.zeros(0, np.int64), np.zeros((0, rules.thresholds), np.int32)
    tables = [PairCounts(none, none, [], none, none, table, table)]
    constant: list[tuple[int, str, int]] = []
    for part in scored:
        place = part.rows, part.columns
        found["pointing_hit"][place] = hit = part.hit.cpu().numpy()
        found["dice"][place], found["iou"][place] = part.fixed.cpu().numpy()
        found["minimum_hit"][place] = part.minimum.cpu().numpy()
        found["peak_x"][place], found["peak_y"][place] = _peaks(part.highest, len(part.rows), part.size)
        regions_of_pairs = (truth.regions[row][at] for row, at in zip(part.rows, part.places, strict=True))
        found["peak_distance"][place] = _distances(part.highest, regions_of_pairs, hit)
        for pair in part.constant.nonzero()[:, 0].tolist():
            row, column = int(part.rows[pair]), int(part.columns[pair])
            constant.append((int(truth.index[row]), truth.image_ids[row], column))
        tables.append(
            PairCounts(
                index=truth.index[part.rows],
                column=part.columns,
                image_ids=[truth.image_ids[row] for row in part.rows.tolist()],
                grid=np.full(len(part.rows), part.size[0] * part.size[1], dtype=np.int64),
                region=part.counts.region.cpu().numpy(),
                mask=part.counts.mask.cpu().numpy().astype(np.int32),
                overlap=part.counts.overlap.cpu().numpy().astype(np.int32),
            )
        )
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
    return BatchScores(images, PairCounts.concatenate(tables), tuple(constant))


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


@dataclass(frozen=True)
class _Scored:
    """Scores of P pairs, tensors on the model's device."""

    rows: NDArray[np.int64]  # place of each pair's image in the batch (P,)
    columns: NDArray[np.int64]  # its finding (P,)
    places: NDArray[np.int64]  # which of its image's regions is its own (P,)
    size: tuple[int, int]  # height and width of the grid
    constant: Tensor  # whether the map is the same everywhere on the grid (P,) bool
    hit: Tensor  # pointing game (P,) float64
    counts: PixelCounts
    fixed: Tensor  # Dice and IoU at threshold 0.5 (2, P) float64
    highest: NDArray[np.int64]  # map, row and column of every place where a map is highest (K, 3)
    minimum: Tensor  # share of the map's minima in the region (P,) float64


def _pairs(
    truth: GroundTruth, image_by_image: bool, pixels: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Tensor]]:
    """Scored pairs, row by row, in portions of so many pixels; image by image where they may differ in size.

    Yields place of the image in the batch (P,), finding (P,), place of the region among the image's (P,), and region
    (P, H, W) bool; P is at least 1.
    """
    scored = truth.scored
    groups = [scored[scored[:, 0] == row] for row in range(len(truth.index))] if image_by_image else [scored]
    for pairs in groups:
        step = max(1, pixels // truth.regions[pairs[0, 0]][0].numel()) if len(pairs) else 1
        for start in range(0, len(pairs), step):
            rows, columns, places = pairs[start : start + step].T.copy()
            regions = torch.stack([truth.regions[row][place] for row, place in zip(rows, places, strict=True)])
            yield rows, columns, places, regions


def _minimum_hits(maps: Tensor, regions: Tensor, views: Sequence[View]) -> Tensor:
    """Share of the tied minima of maps (N, H, W) that lie in the region (N,) float64.

    Pixels that the model never saw, which count as its minimum elsewhere, are none here.
    """
    found = []
    for view, same in runs_of_views(views):
        rows, columns = seen_on_grid(view, (maps.shape[1], maps.shape[2]))
        shown, inside = (part[same, rows, columns] for part in (maps, regions))
        found.append(pointing_hits(shown.neg(), inside, "share"))
    return torch.cat(found)


def _peaks(tied: NDArray[np.int64], count: int, size: tuple[int, int]) -> NDArray[np.float64]:
    """Where `count` maps are highest: x and y (2, N), from 0 at the first edge to 1 at the last.

    Of tied places it is the mean. Sums of whole numbers, so that the order of adding does not matter.
    """
    number = np.bincount(tied[:, 0], minlength=count)
    x, y = (np.bincount(tied[:, 0], tied[:, axis], count) / number for axis in (2, 1))
    return np.stack([(x + 0.5) / size[1], (y + 0.5) / size[0]])


def _distances(tied: NDArray[np.int64], regions: Iterable[Tensor], hits: NDArray[np.float64]) -> list[float]:
    """From the tied places of each map to its region (H, W) bool; 0 where the pointing game counts a hit."""
    ends = np.searchsorted(tied[:, 0], np.arange(len(hits) + 1))
    return [
        0.0 if hit > 0 else peak_distance(tied[first:last, 1:], region.cpu().numpy())
        for hit, region, (first, last) in zip(hits, regions, pairwise(ends), strict=True)
    ]
