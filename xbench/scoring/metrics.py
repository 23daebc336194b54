"""The numbers of a run as torchmetrics: states that torchmetrics reduces over the processes, numbers from `compute`."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Numbers by finding over rows that were measured; the sums are whole numbers, so no order changes a bit.

    Args:
        findings: Number of findings.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, findings: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if findings < 1:
            raise ValueError(f"the number of findings must be at least 1, not {findings}")
        self.findings = findings
        self._names: tuple[str, ...] = ()

    def add_sums(self, **shapes: tuple[int, ...]) -> None:
        """Declare states of whole numbers that are summed over processes."""
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")
        self._names = tuple(shapes)

    def add(self, sums: Mapping[str, NDArray[np.int64]]) -> None:
        """Add sums to the states."""
        for name in self._names:
            getattr(self, name).add_(torch.from_numpy(sums[name]).to(self.device))

    def totals(self) -> Sums:
        """Return the states on the host."""
        return {name: getattr(self, name).cpu().numpy() for name in self._names}


class PointingGame(RowMetric):
    """Share of scored rows whose maximum lies in the region, by finding."""

    def __init__(self, findings: int, **kwargs: Any) -> None:
        super().__init__(findings, **kwargs)
        self.add_sums(count=(findings,), hit_sum=(findings,))

    def update(self, rows: Rows) -> None:
        """Add rows."""
        self.add(numbers.pointing_sums(rows, rows.finding, self.findings))

    def compute(self) -> list[Numbers]:
        """Return the numbers of each finding, as `pointing_numbers` does."""
        return numbers.pointing_numbers(self.totals())


class ThresholdSweep(RowMetric):
    """Mean Dice and IoU of scored rows at each of T thresholds, by finding; T is 1 for answers."""

    def __init__(self, findings: int, thresholds: int = 101, **kwargs: Any) -> None:
        super().__init__(findings, **kwargs)
        self.add_sums(count=(findings,), dice_sum=(findings, thresholds), iou_sum=(findings, thresholds))

    def update(self, rows: Rows) -> None:
        """Add rows."""
        if len(rows.counts.row):
            self.add(numbers.sweep_sums(rows, rows.finding, self.findings))

    def compute(self) -> list[Numbers]:
        """Return the numbers of each finding, as `sweep_numbers` does."""
        return numbers.sweep_numbers(self.totals())


class BoxScores(RowMetric):
    """What boxes score without a grid, by finding, and over all findings together as the last entry."""

    def __init__(self, findings: int, **kwargs: Any) -> None:
        super().__init__(findings, **kwargs)
        self.add_sums(counts=(findings, len(numbers.BOX_COUNTS)), score_sum=(findings, len(numbers.BOX_SUMS)))

    def update(self, rows: Rows) -> None:
        """Add rows."""
        self.add(numbers.box_sums(rows, rows.finding, self.findings))

    def compute(self) -> list[Numbers]:
        """Return the numbers of each finding, as `box_numbers` does, then those of all rows together."""
        return numbers.box_numbers(numbers.with_all(self.totals()))


class Classification(RowMetric):
    """AUROC, average precision, F1 and accuracy by finding. Ranking needs all scores, which the state gathers."""

    rows: list[Tensor]

    def __init__(self, findings: int, **kwargs: Any) -> None:
        super().__init__(findings, **kwargs)
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, rows: Rows) -> None:
        """Add rows whose label is known."""
        finding = numbers.recognised_findings(rows)
        known = (rows["label"] >= 0) & (finding >= 0)
        bits = numbers.counted_probabilities(rows)[known].view(np.int64)
        packed = np.stack([finding[known], rows["label"][known].astype(np.int64), bits], axis=1)
        self.rows.append(torch.from_numpy(packed).to(self.device))

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather the rows of all processes.

        As one tensor each: torchmetrics aborts the process where one process has no rows of two dimensions.
        """
        self.rows = [torch.cat([torch.zeros(0, 3, dtype=torch.int64, device=self.device), *self.rows])]
        super().sync(*args, **kwargs)

    def compute(self) -> list[Numbers]:
        """Return the numbers of each finding, as `recognition_numbers` does."""
        parts = self.rows if isinstance(self.rows, list) else [self.rows]
        table = np.concatenate([np.zeros((0, 3), np.int64), *(part.cpu().numpy() for part in parts)])
        own = [table[table[:, 0] == finding] for finding in range(self.findings)]
        return [
            numbers.recognition_numbers(part[:, 1].astype(np.int8), np.ascontiguousarray(part[:, 2]).view(np.float64))
            for part in own
        ]


def metrics_of(findings: int, thresholds: int, answers: bool) -> dict[str, RowMetric]:
    """Return the metrics of a run by the part of its numbers; the mask of an answer has one threshold."""
    return {
        "pointing": PointingGame(findings),
        "sweep": ThresholdSweep(findings, 1 if answers else thresholds),
        "boxes": BoxScores(findings),
        "classification": Classification(findings),
    }
