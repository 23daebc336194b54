"""Scores of one batch: what a model said about it against what the annotations say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.geometry import Upsampling, saliency_on_grid
from xbench.metrics import PointingGame, ThresholdSweep
from xbench.metrics.sweep import PixelCounts
from xbench.rows import ImageRows, PairCounts
from xbench.types import Batch, ModelOutput

__all__ = ["BatchScores", "restore_metrics", "score_batch"]

_PIXELS_AT_A_TIME = 2**24
"""On the grid: one map of 4,096 x 4,096, or all pairs of any usual batch on 224 x 224."""


@dataclass(frozen=True)
class BatchScores:
    """Scores of a batch.

    Attributes:
        images: Per image and finding.
        pairs: Per scored pair.
        constant: Scored pairs whose map is the same everywhere: position of the image in the dataset, its name, and
            position of the finding.
    """

    images: ImageRows
    pairs: PairCounts
    constant: tuple[tuple[int, str, int], ...]


def score_batch(
    output: ModelOutput,
    batch: Batch,
    upsampling: Upsampling,
    pointing_game: PointingGame,
    sweep: ThresholdSweep,
    image_by_image: bool = False,
) -> BatchScores:
    """Score a batch, and update the metrics with it.

    Args:
        output: Of the model; maps in the frame of its input.
        batch: At least one image.
        upsampling: How the model's maps are enlarged.
        pointing_game: Gets the scored pairs.
        sweep: Likewise; its number of thresholds is odd, so that 0.5 is one of them.
        image_by_image: Keep images apart, which may differ in size.
    """
    views = torch.tensor(batch.views, dtype=torch.float32, device=output.saliency.device)
    shape = tuple(batch.labels.shape)
    hit, dice, iou, peak_x, peak_y = (np.full(shape, np.nan) for _ in range(5))
    counts: list[PairCounts] = []
    constant: list[tuple[int, str, int]] = []
    index = batch.index.cpu().numpy()
    for image, finding, regions in _pairs(batch, image_by_image):
        raw = output.saliency[image, finding]
        rows, columns = image.cpu().numpy(), finding.cpu().numpy()
        place = (rows, columns)
        flat = raw.flatten(1)
        for pair in (flat.amin(1) == flat.amax(1)).nonzero()[:, 0].tolist():
            constant.append((int(index[rows[pair]]), batch.image_ids[rows[pair]], int(columns[pair])))
        on_grid = saliency_on_grid(raw, views[image], (regions.shape[1], regions.shape[2]), upsampling)
        pointing_game.update_pairs(on_grid, regions, finding)
        sweep.update_pairs(on_grid, regions, finding)
        hit[place] = pointing_game.pairs.hit.cpu().numpy()
        dice[place] = sweep.pairs.dice[:, sweep.thresholds // 2].cpu().numpy()
        iou[place] = sweep.pairs.iou[:, sweep.thresholds // 2].cpu().numpy()
        peak_x[place], peak_y[place] = _centres(on_grid == on_grid.amax((1, 2), keepdim=True))
        pixels = sweep.pairs.counts
        counts.append(
            PairCounts(
                index=index[rows],
                column=columns,
                image_ids=[batch.image_ids[row] for row in rows.tolist()],
                grid=np.full(len(rows), regions[0].numel(), dtype=np.int64),
                region=pixels.region.cpu().numpy(),
                mask=pixels.mask.cpu().numpy().astype(np.int32),
                overlap=pixels.overlap.cpu().numpy().astype(np.int32),
            )
        )
    has_region = batch.has_region.cpu().numpy()
    area, region_x, region_y = (np.full(shape, np.nan) for _ in range(3))
    each = [region for regions in batch.regions for region in regions]
    area[has_region] = [region.count_nonzero().item() / region.numel() for region in each]
    if each:
        centres = [_centres(region[None]) for region in each]
        region_x[has_region], region_y[has_region] = np.concatenate(centres, axis=1)
    images = ImageRows(
        index=index,
        image_ids=batch.image_ids,
        patient_ids=batch.patient_ids,
        labels=batch.labels.cpu().numpy(),
        has_region=has_region,
        logits=output.logits.double().cpu().numpy(),
        probabilities=output.probabilities.double().cpu().numpy(),
        pointing_hit=hit,
        dice=dice,
        iou=iou,
        region_area=area,
        region_x=region_x,
        region_y=region_y,
        peak_x=peak_x,
        peak_y=peak_y,
        reader_dice=batch.reader_agreement[..., 0],
        reader_iou=batch.reader_agreement[..., 1],
    )
    return BatchScores(images, PairCounts.concatenate(counts or [_no_pairs(sweep.thresholds)]), tuple(constant))


def restore_metrics(scores: BatchScores, pointing_game: PointingGame, sweep: ThresholdSweep) -> None:
    """Update metrics with a batch that was scored before, to the bit as scoring it again would."""
    pairs = scores.pairs
    classes = torch.from_numpy(pairs.column)
    place = np.searchsorted(scores.images.index, pairs.index)
    pointing_game.restore_pairs(classes, torch.from_numpy(scores.images.pointing_hit[place, pairs.column]))
    mask, overlap, region = (
        torch.from_numpy(part.astype(np.int64)) for part in (pairs.mask, pairs.overlap, pairs.region)
    )
    sweep.restore_pairs(classes, PixelCounts(mask, overlap, region))


def _pairs(batch: Batch, image_by_image: bool) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Scored pairs, row by row, in portions that bound the memory.

    Args:
        batch: At least one image, on any device.
        image_by_image: Keep images apart, which may differ in size.

    Yields:
        Place of the image in the batch (P,), finding (P,), both int64, and region (P, H, W) bool; P is at least 1.
    """
    scored = (batch.labels == 1) & batch.has_region
    for rows in torch.arange(len(batch), device=scored.device).split(1 if image_by_image else len(batch)):
        image, finding = scored[rows].nonzero(as_tuple=True)
        regions = [
            region
            for row in rows.tolist()
            for region, wanted in zip(batch.regions[row], scored[row, batch.has_region[row]].tolist(), strict=True)
            if wanted
        ]
        step = max(1, _PIXELS_AT_A_TIME // regions[0].numel()) if regions else 1
        for start in range(0, len(regions), step):
            part = slice(start, start + step)
            yield rows[image[part]], finding[part], torch.stack(regions[part])


def _centres(masks: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centres of mass of masks (N, H, W) bool, none empty: x and y (N,), 0 at the first edge and 1 at the last.

    Sums of whole numbers, so that the order of adding does not matter.
    """
    total = masks.sum((1, 2))
    places = []
    for axis in (2, 1):
        size = masks.shape[axis]
        marginal = masks.sum(3 - axis)
        moment = (marginal * torch.arange(size, device=masks.device)).sum(1)
        places.append(((moment.double() / total + 0.5) / size).cpu().numpy())
    return places[0], places[1]


def _no_pairs(thresholds: int) -> PairCounts:
    none, table = np.zeros(0, np.int64), np.zeros((0, thresholds), np.int32)
    return PairCounts(none, none, [], none, none, table, table)
