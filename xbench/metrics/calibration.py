"""Do probabilities mean what they say? Calibration errors and the Brier score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.metrics.exact import LIMBS, KeepsShape, add_exactly, rounded

BINS = 15

Probabilities = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class CalibrationScores:
    """Calibration of one finding, or of several pooled; None without a known label.

    Args:
        ece: Expected calibration error, sum over bins of |sum of p - positives| / N.
        mce: Largest |mean p - share of positives| of a bin that is not empty.
        brier: Mean of (p - y)^2.
        count: Images with a known label, N.
        positives: Those of them with the finding.
        bins: Of each bin that is not empty: number of images, mean probability, share of positives.
    """

    ece: float | None
    mce: float | None
    brier: float | None
    count: int
    positives: int
    bins: tuple[tuple[int, float, float], ...]


def bin_of(probabilities: Probabilities, bins: int = BINS) -> NDArray[np.int64]:
    """Return the bin of each probability: number k, from 0, holds (k / bins, (k + 1) / bins], and 0 joins the first.

    Examples:
        >>> bin_of(np.array([0.0, 0.1, 0.3, 0.31, 1.0]), 10).tolist()
        [0, 0, 2, 3, 9]
    """
    # The edges are the float64 nearest to k / bins, as whoever writes 0.3 means.
    edges = np.arange(1, bins) / bins
    return np.searchsorted(edges, probabilities, side="left")


def calibration(labels: Labels, probabilities: Probabilities, bins: int = BINS) -> CalibrationScores:
    """Score probabilities (N,) of labels (N,): 1 positive, 0 negative, -1 unknown and left out.

    Bins are of equal width and closed on the right. Naeini et al., AAAI 2015; Brier 1950.

    Raises:
        ValueError: A known probability is not in [0, 1].

    Examples:
        >>> calibration(np.array([1, 0, 1, -1]), np.array([0.75, 0.25, 0.5, 0.1]), 2)  # doctest: +NORMALIZE_WHITESPACE
        CalibrationScores(ece=0.16666666666666666, mce=0.25, brier=0.125, count=3, positives=2,
                          bins=((2, 0.375, 0.5), (1, 0.75, 1.0)))
    """
    known = labels >= 0
    y, p = labels[known].astype(np.int64), probabilities[known].astype(np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("probabilities must lie in [0, 1]")
    where = bin_of(p, bins)
    return _scores(
        np.bincount(where, minlength=bins).tolist(),
        [math.fsum(p[where == k].tolist()) for k in range(bins)],
        np.bincount(where, y, minlength=bins).astype(int).tolist(),
        math.fsum(((p - y) ** 2).tolist()),
    )


def adaptive_ece(labels: Labels, probabilities: Probabilities, bins: int = BINS) -> float:
    """Return the calibration error over bins of equal counts, in which equal probabilities stay together.

    NaN without a known label. Nixon et al., CVPR workshops 2019.
    """
    known = labels >= 0
    order = np.argsort(probabilities[known], kind="stable")
    y, p = labels[known][order], probabilities[known][order]
    if not len(p):
        return math.nan
    # A bin ends where its share of the images does, and after the last image that has this probability.
    ends = np.unique(np.searchsorted(p, p[np.ceil(len(p) * np.arange(1, bins + 1) / bins).astype(int) - 1], "right"))
    starts = [0, *ends[:-1].tolist()]
    gaps = [abs(math.fsum(p[a:b].tolist()) - int(y[a:b].sum())) for a, b in zip(starts, ends.tolist(), strict=True)]
    return math.fsum(gaps) / len(p)


def expected_ece(probabilities: Probabilities, bins: int = BINS, draws: int = 1000, seed: int = 0) -> float:
    """Return the mean calibration error of labels drawn from the probabilities themselves: what chance alone gives.

    The error of a finite number of images is never 0, however well the model is calibrated. NaN without a probability.
    """
    if not len(probabilities):
        return math.nan
    p = np.sort(probabilities.astype(np.float64))
    where = bin_of(p, bins)
    sums = np.bincount(where, p, minlength=bins)
    random = np.random.default_rng(seed)
    errors = []
    for _ in range(draws):
        positives = np.bincount(where, random.random(len(p)) < p, minlength=bins)
        errors.append(float(np.abs(sums - positives).sum()) / len(p))
    return math.fsum(errors) / draws


def calibration_numbers(labels: Labels, probabilities: Probabilities) -> dict[str, float | None]:
    """Return `ece`, `ece_adaptive`, `ece_by_chance` (see `expected_ece`), `mce` and `brier`; None without an image."""
    scores = calibration(labels, probabilities)
    known = probabilities[labels >= 0]
    others = (adaptive_ece(labels, probabilities), expected_ece(known)) if len(known) else (None, None)
    return {
        "ece": scores.ece,
        "ece_adaptive": others[0],
        "ece_by_chance": others[1],
        "mce": scores.mce,
        "brier": scores.brier,
    }


def _scores(
    counts: Sequence[int], sums: Sequence[float], positives: Sequence[int], squares: float
) -> CalibrationScores:
    """From each bin's number of images, sum of probabilities and positives, and the sum of squared errors."""
    total = sum(counts)
    if not total:
        return CalibrationScores(None, None, None, 0, 0, ())
    filled = [part for part in zip(counts, sums, positives, strict=True) if part[0]]
    return CalibrationScores(
        ece=math.fsum(abs(mass - found) for _, mass, found in filled) / total,
        mce=max(abs(mass - found) / count for count, mass, found in filled),
        brier=squares / total,
        count=total,
        positives=sum(positives),
        bins=tuple((count, mass / count, found / count) for count, mass, found in filled),
    )


class Calibration(KeepsShape):
    """Calibration errors and Brier score per class.

    The sums are exact, so neither the order of the batches nor the number of processes changes a bit.

    Args:
        num_classes: C, the number of findings, at least 1.
        bins: Of equal width, closed on the right.

    Examples:
        >>> metric = Calibration(num_classes=1, bins=2)
        >>> metric.update(torch.tensor([[1], [0], [1], [-1]]), torch.tensor([[0.75], [0.25], [0.5], [0.1]]))
        >>> metric.compute()["ece"]
        tensor([0.1667], dtype=torch.float64)
    """

    counts: Tensor
    positives: Tensor
    sums: Tensor
    squares: Tensor

    def __init__(self, num_classes: int, bins: int = BINS) -> None:
        super().__init__()
        if num_classes < 1 or bins < 1:
            raise ValueError(f"there must be a class and a bin, not {num_classes} and {bins}")
        self.bins = bins
        shapes = {"counts": (bins,), "positives": (bins,), "sums": (bins, LIMBS), "squares": (LIMBS,)}
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(num_classes, *shape, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, labels: Tensor, probabilities: Tensor) -> None:
        """Add images.

        Args:
            labels: (N, C) integer: 1 positive, 0 negative, -1 unknown and left out.
            probabilities: (N, C) floating in [0, 1], wherever the label is known.

        Raises:
            ValueError: Shapes differ, or a probability of a known label is out of range.
        """
        if labels.shape != probabilities.shape or labels.ndim != 2 or labels.shape[1] != len(self.counts):
            raise ValueError(
                f"labels and probabilities must both be (N, {len(self.counts)}), "
                f"not {tuple(labels.shape)} and {tuple(probabilities.shape)}"
            )
        y, p = labels.cpu().numpy(), probabilities.detach().double().cpu().numpy()
        if not ((y < 0) | ((p >= 0) & (p <= 1))).all():
            raise ValueError("probabilities must lie in [0, 1]")
        for row, column in np.argwhere(y >= 0).tolist():
            label, probability = int(y[row, column]), float(p[row, column])
            place = int(bin_of(p[row, column : column + 1], self.bins)[0])
            self.counts[column, place] += 1
            self.positives[column, place] += label
            add_exactly(self.sums[column, place], probability)
            add_exactly(self.squares[column], (probability - label) ** 2)

    def compute(self) -> dict[str, Tensor]:
        """Return `ece`, `mce` and `brier` (C,) float64, NaN without a known label, and `count` (C,) int64."""
        scores = [
            _scores(counts.tolist(), [rounded(total) for total in sums], positives.tolist(), rounded(squares))
            for counts, sums, positives, squares in zip(
                self.counts, self.sums, self.positives, self.squares, strict=True
            )
        ]
        found = {
            name: torch.tensor(
                [math.nan if getattr(one, name) is None else getattr(one, name) for one in scores], dtype=torch.float64
            ).to(self.device)
            for name in ("ece", "mce", "brier")
        }
        return found | {"count": self.counts.sum(1)}
