"""The pointing game: how often the hottest point of the saliency map lies in the annotated region."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xbench.metrics.functional import check_ties, on_grid, pointing_hits
from xbench.metrics.per_class import ClassPairs, PerClassMetric
from xbench.types import TieRule


@dataclass(frozen=True)
class PointingGamePairs(ClassPairs):
    """Hits of pairs.

    Args:
        rows: (N,) int64, the place of the pair's image in the batch, or of the pair.
        classes: (N,) int64.
        hit: (N,) float64 in [0, 1]; fractions only where `ties="share"` met tied maxima.
    """

    hit: Tensor


class PointingGame(PerClassMetric[PointingGamePairs]):
    """Mean pointing game per class.

    A raw map is brought to the grid of the regions bilinearly (nothing happens to maps that have that size); a pair
    hits if the map's maximum lies in the region. Tied maxima are frequent, so their rule is an option, described at
    `pointing_hits`. Which pairs count and how they are summed is as in `ThresholdSweep`; `pairs` holds the hits of the
    last batch.

    Args:
        num_classes: C, the number of findings, at least 1.
        ties: `"share"`, `"any"` or `"first"`.

    Example:
        >>> metric = PointingGame(num_classes=2)
        >>> saliency = torch.tensor([[[[0.0, 2.0]], [[5.0, 5.0]]]])
        >>> regions = torch.tensor([[[[False, True]], [[False, True]]]])
        >>> metric.update(saliency, regions, torch.tensor([[True, True]]))
        >>> metric.compute()["pointing_game"]
        tensor([1.0000, 0.5000], dtype=torch.float64)
    """

    hit_sum: Tensor

    def __init__(self, num_classes: int, ties: TieRule = "share") -> None:
        super().__init__(num_classes)
        check_ties(ties)
        self.ties: TieRule = ties
        self.add_state("hit_sum", torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> dict[str, Tensor]:
        """Average over the valid pairs.

        Returns:
            `pointing_game` (C,) float64, NaN for a class without valid pairs; `count` (C,) int64, the number of
            valid pairs.
        """
        return {"pointing_game": self._mean(self.hit_sum), "count": self.count.clone()}

    def _score(self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor) -> PointingGamePairs:
        hits = [pointing_hits(maps, inside, self.ties) for maps, inside in on_grid(saliency, regions)]
        return PointingGamePairs(rows, classes, torch.cat(hits))

    def _sums(self, pairs: PointingGamePairs) -> dict[str, Tensor]:
        return {"hit_sum": pairs.hit}
