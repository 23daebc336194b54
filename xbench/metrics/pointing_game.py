"""The pointing game: how often the hottest point of the saliency map lies in the annotated region."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from xbench.metrics.dense import all_on_grid, dense_hits
from xbench.metrics.functional import check_pairs, from_fixed_point, pairs_on_grid, pointing_hits
from xbench.metrics.per_class import ClassPairs, PerClassMetric
from xbench.types import TieRule


@dataclass(frozen=True)
class PointingGamePairs(ClassPairs):
    """Hits of one batch's valid pairs in row-major order, or of the pairs of one `update_pairs` in its order.

    Args:
        rows: (N,) int64, the place of the pair's image in the batch, or of the pair.
        classes: (N,) int64.
        hit: (N,) float64 in [0, 1]; fractions only where `ties="share"` met tied maxima.
    """

    hit: Tensor

    def chosen(self, valid: Tensor) -> PointingGamePairs:
        """Return the pairs that are `valid` (N,) bool."""
        return PointingGamePairs(self.rows[valid], self.classes[valid], self.hit[valid])


class PointingGame(PerClassMetric[PointingGamePairs]):
    """Mean pointing game per class.

    A raw map is brought to the grid of the regions bilinearly (nothing happens to maps that have that size); a pair
    hits if the map's maximum lies in the region. Tied maxima are frequent, so their rule is an option, described at
    `pointing_hits`. Pairs that are not valid are never read. Sums are whole multiples of 2**-40, and `pairs` holds the
    hits of the last batch, as in `ThresholdSweep`; accelerators are treated as there too.

    Args:
        num_classes: C, the number of findings.
        ties: `"share"`, `"any"` or `"first"`.

    Raises:
        ValueError: `num_classes` is below 1 or `ties` is not one of the three.

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
        if ties not in get_args(TieRule):
            raise ValueError(f"ties must be one of {', '.join(map(repr, get_args(TieRule)))}, not {ties!r}")
        self.ties: TieRule = ties
        self.add_state("hit_sum", torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def restore_pairs(self, classes: Tensor, hit: Tensor) -> None:
        """Add pairs that were scored before, to the bit as `update_pairs` would with their maps.

        Args:
            classes: (P,) int64, the class of each pair.
            hit: (P,) float64 in [0, 1].
        """
        self._wrap_update(self._restore_pairs)(classes.to(self.device), hit.to(self.device))

    def _restore_pairs(self, classes: Tensor, hit: Tensor) -> None:
        self._add_pairs(PointingGamePairs(torch.arange(len(classes), device=classes.device), classes, hit))

    def compute(self) -> dict[str, Tensor]:
        """Average over the valid pairs.

        Returns:
            `pointing_game` (C,) float64, NaN for a class without valid pairs; `count` (C,) int64, the number of
            valid pairs.

        Raises:
            ValueError: A pair that was handed over on an accelerator has no score.
        """
        self.check_refused()
        return {"pointing_game": from_fixed_point(self.hit_sum, self.count), "count": self.count.clone()}

    def _add(self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor) -> None:
        check_pairs(saliency, regions, rows, classes)
        chunks = pairs_on_grid(saliency, regions, rows, classes)
        hit = torch.cat([pointing_hits(maps, inside, self.ties) for maps, inside in chunks])
        self._add_pairs(PointingGamePairs(rows, classes, hit))

    def _score_all(
        self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor
    ) -> tuple[PointingGamePairs, Tensor]:
        parts = [
            (dense_hits(maps, inside, self.ties), finite & maps.amax((1, 2)).isfinite(), inside.flatten(1).any(1))
            for maps, inside, finite in all_on_grid(saliency, regions)
        ]
        hit, finite, filled = (torch.cat(part) for part in zip(*parts, strict=True))
        return PointingGamePairs(rows, classes, hit), torch.column_stack([finite, filled])

    def _sums(self, pairs: PointingGamePairs) -> dict[str, Tensor]:
        return {"hit_sum": pairs.hit}

    def _no_pairs(self) -> PointingGamePairs:
        index = torch.zeros(0, dtype=torch.int64)
        return PointingGamePairs(index, index, torch.zeros(0, dtype=torch.float64))
