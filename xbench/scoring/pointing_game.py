"""The pointing game: how often the hottest point of the saliency map lies in the annotated region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from xbench.scoring.measures import Measures, places_of, pointing_game, tally
from xbench.scoring.per_class import ClassPairs, PerClassMetric
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

    Examples:
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

    def _score(self, measures: Measures, rows: Tensor, classes: Tensor) -> PointingGamePairs:
        return PointingGamePairs(rows, classes, measures.hits(self.ties))

    def _sums(self, pairs: PointingGamePairs) -> dict[str, Tensor]:
        return {"hit_sum": pairs.hit}


def pointing_hits(maps: Tensor, regions: Tensor, ties: TieRule = "share") -> Tensor:
    """Score the pointing game of each pair: does the maximum of the raw map lie in the region?

    Several pixels often share the maximum (saliency from attention or ReLU saturates), and then `ties` decides:
    `"share"` gives the share of the tied pixels that lie in the region, `"any"` 1 if at least one does (the scripts of
    MedKLIP), `"first"` looks at the first of them in row-major order alone (CheXlocalize). After Zhang et al.,
    "Top-down Neural Attention by Excitation Backprop", IJCV 2018.

    Args:
        maps: (N, H, W) float32 maps on the evaluation grid, not normalised.
        regions: (N, H, W) bool.
        ties: The rule for tied maxima.

    Returns:
        (N,) float64 in [0, 1].

    Raises:
        ValueError: `ties` is no rule, the shapes differ, or a map's maximum is not finite.

    Examples:
        >>> maps = torch.tensor([[[9.0, 1.0], [9.0, 0.0]]])
        >>> regions = torch.tensor([[[False, False], [True, True]]])
        >>> [pointing_hits(maps, regions, ties).item() for ties in ("share", "any", "first")]
        [0.5, 1.0, 0.0]
    """
    check_ties(ties)
    if maps.ndim != 3 or maps.shape != regions.shape:
        raise ValueError(f"maps and regions must both be (N, H, W), not {tuple(maps.shape)} and {tuple(regions.shape)}")
    row_peak = maps.amax(2)
    peak = row_peak.amax(1, keepdim=True)
    if not peak.isfinite().all():
        raise ValueError(f"the maximum of map {(~peak.isfinite()).nonzero()[0, 0]} is not finite")
    return pointing_game(*tally(places_of(maps, row_peak, peak), regions), ties)


def check_ties(ties: TieRule) -> None:
    """Check that `ties` is one of the three rules."""
    if ties not in get_args(TieRule):
        raise ValueError(f"ties must be one of {', '.join(map(repr, get_args(TieRule)))}, not {ties!r}")
