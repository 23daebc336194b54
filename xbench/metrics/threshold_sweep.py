"""Dice and IoU of the binarised saliency map over a sweep of thresholds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xbench.metrics.functional import from_fixed_point
from xbench.metrics.per_class import ClassPairs, PerClassMetric
from xbench.metrics.sweep import PixelCounts, check_thresholds, sweep_all, sweep_pairs, threshold_values


@dataclass(frozen=True)
class ThresholdSweepPairs(ClassPairs):
    """Scores of one batch's valid pairs in row-major order, or of the pairs of one `update_pairs` in its order.

    Args:
        rows: (N,) int64, the place of the pair's image in the batch, or of the pair.
        classes: (N,) int64.
        dice: (N, T) float64.
        iou: (N, T) float64.
        counts: The pixels that both follow from.
    """

    dice: Tensor
    iou: Tensor
    counts: PixelCounts

    def chosen(self, valid: Tensor) -> ThresholdSweepPairs:
        """Return the pairs that are `valid` (N,) bool."""
        counts = PixelCounts(self.counts.mask[valid], self.counts.overlap[valid], self.counts.region[valid])
        return ThresholdSweepPairs(self.rows[valid], self.classes[valid], self.dice[valid], self.iou[valid], counts)

    @classmethod
    def of(cls, rows: Tensor, classes: Tensor, counts: PixelCounts) -> ThresholdSweepPairs:
        """Return the scores that follow from pixel counts."""
        return cls(rows, classes, counts.dice(), counts.iou(), counts)


class ThresholdSweep(PerClassMetric[ThresholdSweepPairs]):
    """Mean Dice and IoU per class at each of T thresholds.

    A raw map is brought to the grid of the regions bilinearly (nothing happens to maps that have that size), stretched
    to [0, 1] and compared with each threshold t_k = k / (T - 1) as float32: the mask is M >= t_k. Dice and IoU are
    averaged over the valid pairs of a class; the other pairs are never looked at and may hold anything.

    The sums are kept as whole multiples of 2**-40. So neither the order of the batches nor the number of processes
    changes a bit of the result, and casting the metric to half precision does not touch them.

    After each `update`, `pairs` holds the scores of that batch's valid pairs; `reset` empties it.

    On an accelerator the host never waits, and pairs without a score are refused by `compute`: see `PerClassMetric`.

    Args:
        num_classes: C, the number of findings.
        thresholds: T, the number of thresholds from 0 to 1, both included.

    Raises:
        ValueError: `num_classes` or `thresholds` is out of range.

    Example:
        >>> metric = ThresholdSweep(num_classes=1, thresholds=3)
        >>> saliency = torch.tensor([[[[0.0, 2.0], [3.0, 4.0]]]])
        >>> metric.update(saliency, saliency > 2, torch.tensor([[True]]))
        >>> metric.compute()["dice"]
        tensor([[0.6667, 0.8000, 0.6667]], dtype=torch.float64)
        >>> metric.pairs.iou
        tensor([[0.5000, 0.6667, 0.5000]], dtype=torch.float64)
    """

    dice_sum: Tensor
    iou_sum: Tensor

    def __init__(self, num_classes: int, thresholds: int = 101) -> None:
        super().__init__(num_classes)
        check_thresholds(thresholds)
        self.thresholds = thresholds
        empty = torch.zeros(num_classes, thresholds, dtype=torch.int64)
        self.add_state("dice_sum", empty, dist_reduce_fx="sum")
        self.add_state("iou_sum", empty.clone(), dist_reduce_fx="sum")

    def restore_pairs(self, classes: Tensor, counts: PixelCounts) -> None:
        """Add pairs that were counted before, to the bit as `update_pairs` would with their maps.

        Args:
            classes: (P,) int64, the class of each pair.
            counts: Of P pairs and T thresholds.
        """
        places = (counts.mask, counts.overlap, counts.region)
        self._wrap_update(self._restore_pairs)(classes.to(self.device), *(part.to(self.device) for part in places))

    def _restore_pairs(self, classes: Tensor, mask: Tensor, overlap: Tensor, region: Tensor) -> None:
        rows = torch.arange(len(classes), device=classes.device)
        self._add_pairs(ThresholdSweepPairs.of(rows, classes, PixelCounts(mask, overlap, region)))

    def compute(self) -> dict[str, Tensor]:
        """Average over the valid pairs.

        Returns:
            `dice` and `iou` (C, T) float64, NaN for a class without valid pairs; `count` (C,) int64, the number of
            valid pairs; `thresholds` (T,) float32.

        Raises:
            ValueError: A pair that was handed over on an accelerator has no score.
        """
        self.check_refused()
        return {
            "dice": from_fixed_point(self.dice_sum, self.count[:, None]),
            "iou": from_fixed_point(self.iou_sum, self.count[:, None]),
            "count": self.count.clone(),
            "thresholds": threshold_values(self.thresholds, self.count.device),
        }

    def _add(self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor) -> None:
        counts = sweep_pairs(saliency, regions, rows, classes, self.thresholds)
        self._add_pairs(ThresholdSweepPairs.of(rows, classes, counts))

    def _score_all(
        self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor
    ) -> tuple[ThresholdSweepPairs, Tensor]:
        counts, finite = sweep_all(saliency, regions, self.thresholds)
        return ThresholdSweepPairs.of(rows, classes, counts), torch.column_stack([finite, counts.region > 0])

    def _sums(self, pairs: ThresholdSweepPairs) -> dict[str, Tensor]:
        return {"dice_sum": pairs.dice, "iou_sum": pairs.iou}

    def _no_pairs(self) -> ThresholdSweepPairs:
        index = torch.zeros(0, dtype=torch.int64)
        scores = torch.zeros(0, self.thresholds, dtype=torch.float64)
        counts = PixelCounts(scores.long(), scores.long(), index)
        return ThresholdSweepPairs(index, index, scores, scores, counts)
