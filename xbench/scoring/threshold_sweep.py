"""Dice and IoU of the binarised saliency map over a sweep of thresholds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xbench.scoring.measures import Measures
from xbench.scoring.per_class import ClassPairs, PerClassMetric
from xbench.scoring.sweep import PixelCounts, check_thresholds, threshold_values


@dataclass(frozen=True)
class ThresholdSweepPairs(ClassPairs):
    """Scores of pairs.

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

    Args:
        num_classes: C, the number of findings, at least 1.
        thresholds: T, the number of thresholds from 0 to 1, both included.

    Examples:
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
        self.thresholds = self._thresholds = thresholds
        for name in ("dice_sum", "iou_sum"):
            self.add_state(name, torch.zeros(num_classes, thresholds, dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> dict[str, Tensor]:
        """Average over the valid pairs.

        Returns:
            `dice` and `iou` (C, T) float64, NaN for a class without valid pairs; `count` (C,) int64, the number of
            valid pairs; `thresholds` (T,) float32.
        """
        return {
            "dice": self._mean(self.dice_sum),
            "iou": self._mean(self.iou_sum),
            "count": self.count.clone(),
            "thresholds": threshold_values(self.thresholds).to(self.device),
        }

    def _score(self, measures: Measures, rows: Tensor, classes: Tensor) -> ThresholdSweepPairs:
        return ThresholdSweepPairs.of(rows, classes, measures.counts())

    def _sums(self, pairs: ThresholdSweepPairs) -> dict[str, Tensor]:
        return {"dice_sum": pairs.dice, "iou_sum": pairs.iou}
