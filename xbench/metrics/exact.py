"""Sums of float64 that no order of adding changes, kept in whole numbers so that they can be added over processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor
from torchmetrics import Metric

LIMBS = 67
"""Digits to the base 2**32 of a sum, lowest first: all 2,098 bits that a float64 can have, and one for carries."""

_LOWEST = 1074
"""The least positive float64 is 2**-1074."""


def add_exactly(total: Tensor, value: float) -> None:
    """Add a finite value to a sum (LIMBS,) int64, in place and without rounding; 2**31 values fit."""
    fraction, exponent = math.frexp(value)
    mantissa = int(fraction * 2**53)
    # The mantissa of a number near 2**-1074 ends in zeros.
    shift = exponent - 53 + _LOWEST
    digits = abs(mantissa) << shift if shift >= 0 else abs(mantissa) >> -shift
    sign, limb = (1 if mantissa > 0 else -1), max(0, shift) // 32
    digits >>= 32 * limb
    while digits:
        total[limb] += sign * (digits & 0xFFFFFFFF)
        digits >>= 32
        limb += 1


def rounded(total: Tensor) -> float:
    """Return the float64 nearest to a sum, as `math.fsum` of the values does.

    Examples:
        >>> import torch
        >>> total = torch.zeros(LIMBS, dtype=torch.int64)
        >>> for value in (1e300, 0.1, -1e300):
        ...     add_exactly(total, value)
        >>> rounded(total)
        0.1
    """
    whole: int = sum(limb << (32 * place) for place, limb in enumerate(total.tolist()))
    # Division of whole numbers rounds to the nearest.
    return whole / (1 << _LOWEST)


class KeepsShape(Metric):
    """A metric whose results keep the first dimension even where there is one class: torchmetrics squeezes them."""

    is_differentiable = False
    full_state_update = False

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        squeezing = super()._wrap_compute(compute)

        @wraps(compute)
        def keeping(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            return {
                name: value[None] if value.ndim == 0 else value for name, value in squeezing(*args, **kwargs).items()
            }

        return keeping
