"""What the metrics over classes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric

from xbench.geometry.grid import on_host
from xbench.metrics.dense import in_any_order
from xbench.metrics.functional import check_inputs, check_pair_inputs, to_fixed_point


@dataclass(frozen=True)
class ClassPairs(ABC):
    """Pairs of image and class whose scores a metric has added up.

    Args:
        rows: (N,) int64, the place of the pair's image in the batch, or of the pair.
        classes: (N,) int64.
    """

    rows: Tensor
    classes: Tensor

    @abstractmethod
    def chosen(self, valid: Tensor) -> Self:
        """Return the pairs that are `valid` (N,) bool."""


Pairs = TypeVar("Pairs", bound=ClassPairs)

_PROBLEMS = (
    "{number} with NaN or infinite saliency (of class {classes})",
    "{number} whose region is empty, yet they are valid (of class {classes})",
    "{number} of classes outside 0..{last}, the classes that the metric was made for",
)


class PerClassMetric(Metric, ABC, Generic[Pairs]):
    """A metric over the valid pairs of image and class, whose results have the classes as first dimension.

    On the CPU only valid pairs are read, and a pair that no score is defined for is refused at once. On an accelerator
    neither `update` nor `update_pairs` makes the host wait: all pairs are scored, to the same whole numbers
    (`xbench.metrics.dense` says why); pairs without a score stay out of the sums, are counted, and make every `compute`
    fail until `reset`.

    After either, `pairs` holds the scores of the valid pairs; `reset` empties it. After an `update` on an accelerator,
    reading it for the first time waits for them.

    Args:
        num_classes: C, the number of findings.

    Raises:
        ValueError: `num_classes` is below 1.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    count: Tensor
    refused: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, not {num_classes}")
        self.num_classes = num_classes
        self.add_state("count", torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")
        refused = torch.zeros(num_classes, len(_PROBLEMS), dtype=torch.int64)
        self.add_state("refused", refused, dist_reduce_fx="sum")
        self._pairs: Pairs | None = None
        self._valid: Tensor | None = None

    @property
    def pairs(self) -> Pairs:
        """Scores of the last batch's valid pairs in row-major order, or of the last `update_pairs` in its order."""
        if self._pairs is None:
            return self._no_pairs()
        if self._valid is not None:
            self._pairs, self._valid = self._pairs.chosen(self._valid), None
        return self._pairs

    def update(self, saliency: Tensor, regions: Tensor, valid: Tensor) -> None:
        """Add the valid pairs of a batch.

        Args:
            saliency: (B, C, h, w) floating, raw values.
            regions: (B, C, H, W) bool on the evaluation grid.
            valid: (B, C) bool, true where the class is positive and has a region.

        Raises:
            ValueError: Shapes or dtypes do not fit, or a valid pair's map is not finite or its region is empty; the
                latter two by `compute` if the batch is on an accelerator.
        """
        check_inputs(saliency, regions, valid, self.num_classes)
        if on_host(saliency):
            self._add(saliency, regions, *valid.nonzero(as_tuple=True))
            return
        images, classes = (torch.arange(number, device=valid.device) for number in valid.shape)
        rows = images[:, None].expand_as(valid).flatten()
        self._add_all(saliency.flatten(0, 1), regions.flatten(0, 1), rows, classes.expand_as(valid).flatten(), valid)

    def update_pairs(self, saliency: Tensor, regions: Tensor, classes: Tensor) -> None:
        """Add pairs of image and class that are all valid and belong to no batch.

        The sums are to the bit those of `update` with these pairs in this order; `pairs.rows` counts them from 0.

        Args:
            saliency: (P, h, w) floating, raw values.
            regions: (P, H, W) bool on the evaluation grid.
            classes: (P,) int64, the class of each pair.

        Raises:
            ValueError: Shapes, dtypes or classes do not fit, or a map is not finite or its region is empty; what is
                not about shapes and dtypes by `compute` if the pairs are on an accelerator.
        """
        # Wrapped as torchmetrics wraps `update`: no gradient, and results computed before are forgotten.
        self._wrap_update(self._update_pairs)(saliency, regions, classes)

    def _update_pairs(self, saliency: Tensor, regions: Tensor, classes: Tensor) -> None:
        check_pair_inputs(saliency, regions, classes, self.num_classes)
        rows = torch.arange(len(classes), device=classes.device)
        if on_host(saliency):
            self._add(saliency, regions, rows, classes)
        else:
            self._add_all(saliency, regions, rows, classes, None)

    def reset(self) -> None:
        """Forget everything, the last batch's pairs included."""
        super().reset()
        self._pairs = self._valid = None

    @abstractmethod
    def _no_pairs(self) -> Pairs:
        """Return empty pairs, for before the first batch."""

    @abstractmethod
    def _add(self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor) -> None:
        """Check and add pairs: those at `rows` and `classes` (N,) of a batch, or all of (N, h, w)."""

    @abstractmethod
    def _score_all(self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor) -> tuple[Pairs, Tensor]:
        """Return scores of all pairs, and whether each map is finite and each region has a pixel (P, 2) bool."""

    @abstractmethod
    def _sums(self, pairs: Pairs) -> dict[str, Tensor]:
        """Return what each pair adds to each state: fractions in [0, 1], the pairs as first dimension."""

    def _add_all(self, saliency: Tensor, regions: Tensor, rows: Tensor, classes: Tensor, valid: Tensor | None) -> None:
        """Add the valid pairs of (P, h, w) and (P, H, W), or all, without looking at their values."""
        known = (classes >= 0) & (classes < self.num_classes)
        classes = classes.clamp(0, self.num_classes - 1)
        pairs, usable = self._score_all(saliency, regions, rows, classes)
        fine = torch.column_stack([usable, known])
        counted = fine.all(1)
        if valid is not None:
            counted &= valid.flatten()
            fine |= ~valid.flatten()[:, None]
        self._add_to("refused", classes, (~fine).long())
        self._add_pairs(pairs, counted)
        self._valid = None if valid is None else valid.flatten()

    def _add_pairs(self, pairs: Pairs, counted: Tensor | None = None) -> None:
        """Keep scored pairs, and add those that are `counted` (N,) bool to the sums."""
        weight = torch.ones_like(pairs.classes) if counted is None else counted.long()
        for name, fractions in self._sums(pairs).items():
            if counted is not None:
                missing = ~counted.view(-1, *[1] * (fractions.ndim - 1))
                fractions = fractions.masked_fill(missing, 0.0)
            self._add_to(name, pairs.classes, to_fixed_point(fractions))
        self._add_to("count", pairs.classes, weight)
        self._pairs, self._valid = pairs, None

    def _add_to(self, state: str, classes: Tensor, values: Tensor) -> None:
        with in_any_order():
            getattr(self, state).index_add_(0, classes, values)

    def check_refused(self) -> None:
        """Refuse what was handed over on an accelerator and could not be refused there.

        Raises:
            ValueError: A pair has no score.
        """
        if not self.refused.any():
            return
        found = []
        for number, problem in zip(self.refused.T.tolist(), _PROBLEMS, strict=True):
            classes = ", ".join(str(place) for place, pairs in enumerate(number) if pairs)
            if classes:
                found.append(problem.format(number=sum(number), classes=classes, last=self.num_classes - 1))
        raise ValueError(
            f"pairs were handed over that no score is defined for: {'; '.join(found)}. They are left out, but what is "
            "wrong with them should be looked for; reset the metric to go on"
        )

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
