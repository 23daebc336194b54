"""What the metrics over classes share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torchmetrics import Metric

__all__ = ["PerClassMetric"]


class PerClassMetric(Metric):
    """A metric whose `compute` gives a dict of tensors with the classes as first dimension, also when there is one."""

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
