"""What the metrics over classes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from xbench.metrics.functional import check_inputs, check_pair_inputs

__all__ = ["PerClassMetric"]


class PerClassMetric(Metric, ABC):
    """A metric over the valid pairs of image and class, whose results have the classes as first dimension.

    Args:
        num_classes: C, the number of findings.

    Raises:
        ValueError: `num_classes` is below 1.
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

    def update(self, saliency: Tensor, regions: Tensor, valid: Tensor) -> None:
        """Adds the valid pairs of a batch.

        Args:
            saliency: (B, C, h, w) floating, raw values.
            regions: (B, C, H, W) bool on the evaluation grid.
            valid: (B, C) bool, true where the class is positive and has a region.

        Raises:
            ValueError: Shapes or dtypes do not fit, or a valid pair's map is not finite or its region is empty.
        """
        check_inputs(saliency, regions, valid, self.num_classes)
        rows, classes = valid.nonzero(as_tuple=True)
        self._add(saliency, regions, rows, classes)
        self.count += torch.bincount(classes, minlength=self.num_classes)

    def update_pairs(self, saliency: Tensor, regions: Tensor, classes: Tensor) -> None:
        """Adds pairs of image and class that are all valid, without a batch round them.

        To the bit what `update` does with these pairs in this order; `pairs.rows` then counts them from 0.

        Args:
            saliency: (P, h, w) floating, raw values.
            regions: (P, H, W) bool on the evaluation grid.
            classes: (P,) int64, the class of each pair.

        Raises:
            ValueError: Shapes, dtypes or classes do not fit, or a map is not finite or its region is empty.
        """
        # Wrapped as torchmetrics wraps `update`: no gradient, and results computed before are forgotten.
        self._wrap_update(self._update_pairs)(saliency, regions, classes)

    def _update_pairs(self, saliency: Tensor, regions: Tensor, classes: Tensor) -> None:
        check_pair_inputs(saliency, regions, classes, self.num_classes)
        self._add(saliency, regions, torch.arange(len(classes), device=classes.device), classes)
        self.count += torch.bincount(classes, minlength=self.num_classes)

    @abstractmethod
    def _add(self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor) -> None:
        """Adds checked pairs: those at `rows` and `classes` (N,) of a batch, or all of (N, h, w) and (N, H, W)."""

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
