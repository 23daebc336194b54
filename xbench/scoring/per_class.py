"""What the metrics over classes share: which pairs count, and sums that no order changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric

from xbench.geometry.grid import FULL_VIEW
from xbench.scoring.measures import Measurer, Measures

_ONE = 2**40


@dataclass(frozen=True)
class ClassPairs:
    """Scored pairs of image and class.

    Args:
        rows: (N,) int64, the place of the pair's image in the batch, or of the pair.
        classes: (N,) int64.
    """

    rows: Tensor
    classes: Tensor


Pairs = TypeVar("Pairs", bound=ClassPairs)


class PerClassMetric(Metric, ABC, Generic[Pairs]):
    """A metric over the valid pairs of image and class, whose results have the classes as first dimension.

    The other pairs are never looked at. Sums are whole multiples of 2**-40, which no order and no cast changes.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    count: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, not {num_classes}")
        self.num_classes = num_classes
        self.add_state("count", torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")
        self._pairs: Pairs | None = None
        self._measurer = Measurer()

    @property
    def pairs(self) -> Pairs:
        """Scores of the last batch's valid pairs in row-major order, or of the last `restore_pairs` in its order."""
        if self._pairs is None:
            none = torch.zeros(0, dtype=torch.int64)
            return self._score(self._measurer(torch.zeros(0, 1, 1), [], [], self._thresholds), none, none)
        return self._pairs

    def update(self, saliency: Tensor, regions: Tensor, valid: Tensor) -> None:
        """Add the valid pairs of a batch.

        Args:
            saliency: (B, C, h, w) floating, raw values.
            regions: (B, C, H, W) bool on the evaluation grid.
            valid: (B, C) bool, true where the class is positive and has a region.

        Raises:
            ValueError: Shapes or dtypes do not fit, or a valid pair's map is not finite or its region is empty.
        """
        if saliency.ndim == 4 and saliency.shape[1] != self.num_classes:
            raise ValueError(
                f"saliency has {saliency.shape[1]} classes, but the metric was made for {self.num_classes}"
            )
        _check_inputs(saliency, regions, valid)
        rows, classes = valid.nonzero(as_tuple=True)
        # index_select copies whole maps where indexing goes pixel by pixel, five times as long.
        places = rows * self.num_classes + classes
        maps, inside = (part.flatten(0, 1).index_select(0, places) for part in (saliency, regions))
        self._add(maps, inside, rows, classes)

    def restore_pairs(self, pairs: Pairs) -> None:
        """Add pairs that were scored before, to the bit as `update` would with their maps."""
        self._wrap_update(self._add_scored)(pairs)

    def reset(self) -> None:
        """Forget everything, the last batch's pairs included."""
        super().reset()
        self._pairs = None

    _thresholds = 2

    @abstractmethod
    def _score(self, measures: Measures, rows: Tensor, classes: Tensor) -> Pairs:
        """Score pairs that were measured at `_thresholds`."""

    @abstractmethod
    def _sums(self, pairs: Pairs) -> dict[str, Tensor]:
        """Return what each pair adds to each state: fractions in [0, 1], the pairs as first dimension."""

    def _add(self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor) -> None:
        measures = self._measurer(saliency, list(regions), [FULL_VIEW] * len(saliency), self._thresholds)
        finite = measures.finite
        fine = finite & (measures.counts().region > 0)
        if not fine.all():
            pair = int((~fine).nonzero()[0, 0])
            problem = (
                "its region is empty, yet it is valid" if finite[pair] else "its saliency has NaN or infinite values"
            )
            raise ValueError(f"pair (image {rows[pair]} of the batch, class {classes[pair]}): {problem}")
        self._add_scored(self._score(measures, rows, classes))

    def _add_scored(self, pairs: Pairs) -> None:
        classes = pairs.classes.to(self.device)
        for name, fractions in self._sums(pairs).items():
            getattr(self, name).index_add_(0, classes, (fractions * _ONE).round().to(self.device, torch.int64))
        self.count.index_add_(0, classes, torch.ones_like(classes))
        self._pairs = pairs

    def _mean(self, total: Tensor) -> Tensor:
        """Mean of the fractions with this sum (C, ...) as float64; NaN for a class without pairs."""
        return total.to(torch.float64) / _ONE / self.count.view(-1, *[1] * (total.ndim - 1))

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        # torchmetrics squeezes every result of one element, so that with one class (C,) would become a scalar.
        squeezing = super()._wrap_compute(compute)

        @wraps(compute)
        def keeping(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            return {
                name: value.reshape(1) if value.ndim == 0 else value
                for name, value in squeezing(*args, **kwargs).items()
            }

        return keeping


def _check_inputs(saliency: Tensor, regions: Tensor, valid: Tensor) -> None:
    """Check that saliency (B, C, h, w), regions (B, C, H, W) and valid (B, C) belong together."""
    pairs = saliency.shape[:2]
    if saliency.ndim != 4 or not saliency.is_floating_point() or 0 in saliency.shape[2:]:
        raise ValueError(
            f"saliency must be a floating tensor (B, C, h, w), not {tuple(saliency.shape)} {saliency.dtype}"
        )
    if regions.ndim != 4 or regions.dtype != torch.bool or regions.shape[:2] != pairs or 0 in regions.shape[2:]:
        raise ValueError(
            f"regions must be a bool tensor ({', '.join(map(str, pairs))}, H, W) beside this saliency, "
            f"not {tuple(regions.shape)} {regions.dtype}"
        )
    if valid.shape != pairs or valid.dtype != torch.bool:
        raise ValueError(
            f"valid must be a bool tensor {tuple(pairs)} beside this saliency, not {tuple(valid.shape)} {valid.dtype}"
        )
