"""The numbers of a run as torchmetrics, which reduces states over the processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric

from xbench.scoring import numbers
from xbench.scoring.numbers import Numbers, Sums
from xbench.scoring.rows import Rows


class RowMetric(Metric):
    """Numbers by finding from integer sums of the given shapes, independent of order."""

    full_state_update = False

    def __init__(self, findings: int, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        if findings < 1:
            raise ValueError(f"the number of findings must be at least 1, not {findings}")
        self.findings, self._names = findings, tuple(shapes)
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def add(self, sums: Mapping[str, NDArray[np.int64]]) -> None:
        """Add sums to the states."""
        for name in self._names:
            getattr(self, name).add_(torch.from_numpy(sums[name]).to(self.device))

    def totals(self) -> Sums:
        """Return the states on the host."""
        return {name: getattr(self, name).cpu().numpy() for name in self._names}


class ScoredRows(RowMetric):
    """Numbers by finding of measured rows, computed by two functions from `numbers`."""

    def __init__(
        self,
        findings: int,
        sums_of: Callable[[Rows, NDArray[np.int64], int], Sums],
        numbers_of: Callable[[Sums], list[Numbers]],
        **shapes: tuple[int, ...],
    ) -> None:
        super().__init__(findings, **shapes)
        self._sums_of, self._numbers_of = sums_of, numbers_of

    def update(self, rows: Rows) -> None:
        """Add rows."""
        self.add(self._sums_of(rows, rows.finding, self.findings))

    def compute(self) -> list[Numbers]:
        """Return the numbers of each finding."""
        return self._numbers_of(self.totals())


class Classification(RowMetric):
    """AUROC, average precision, F1 and accuracy by finding. Ranking needs all scores, which the state gathers."""

    rows: list[Tensor]

    def __init__(self, findings: int) -> None:
        super().__init__(findings)
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, rows: Rows) -> None:
        """Add rows of findings with known labels."""
        finding = numbers.recognized_findings(rows)
        known = (rows["label"] >= 0) & (finding >= 0)
        bits = numbers.counted_probabilities(rows)[known].view(np.int64)
        packed = np.stack([finding[known], rows["label"][known].astype(np.int64), bits], axis=1)
        self.rows.append(torch.from_numpy(packed).to(self.device))

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather one tensor per process, because torchmetrics aborts if one has no rows of two dimensions."""
        self.rows = [torch.cat([torch.zeros(0, 3, dtype=torch.int64, device=self.device), *self.rows])]
        super().sync(*args, **kwargs)

    def compute(self) -> list[Numbers]:
        """Return the numbers of each finding from `recognition_numbers`."""
        parts = self.rows if isinstance(self.rows, list) else [self.rows]
        table = np.concatenate([np.zeros((0, 3), np.int64), *(part.cpu().numpy() for part in parts)])
        finding, labels, bits = table.T.copy()
        return numbers.recognition_by_finding(labels.astype(np.int8), bits.view(np.float64), finding, self.findings)


def metrics_of(findings: int, thresholds: int) -> dict[str, RowMetric]:
    """Return the metrics of a run by part of its numbers; `thresholds` is 1 for answers, whose boxes are one mask."""
    n, curves = findings, (findings, thresholds)
    boxes = {"counts": (n, len(numbers.BOX_COUNTS)), "score_sum": (n, len(numbers.BOX_SUMS))}
    return {
        "pointing": ScoredRows(n, numbers.pointing_sums, numbers.pointing_numbers, count=(n,), hit_sum=(n,)),
        "sweep": ScoredRows(n, numbers.sweep_sums, numbers.sweep_numbers, count=(n,), dice_sum=curves, iou_sum=curves),
        "own": ScoredRows(n, numbers.own_sums, numbers.sweep_numbers, count=(n,), dice_sum=curves, iou_sum=curves),
        "boxes": ScoredRows(n, numbers.box_sums, numbers.box_numbers_and_all, **boxes),
        "classification": Classification(n),
    }
