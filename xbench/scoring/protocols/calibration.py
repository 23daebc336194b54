"""Calibration of probabilities: calibration errors and the Brier score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.protocols.base import Group, Number, PairTruth, PairView, Protocol, of_group

BINS = 15

Probabilities = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class CalibrationScores:
    """Calibration of one finding, or of several pooled; None without a known label."""

    ece: float | None  # expected calibration error, sum over bins of |sum of p - positives| / N
    mce: float | None  # largest |mean p - share of positives| of a non-empty bin
    brier: float | None  # mean of (p - y)^2
    count: int  # N, images with a known label
    positives: int  # those of them with the finding
    bins: tuple[tuple[int, float, float], ...]  # of each non-empty bin: images, mean probability, share of positives


def calibration(labels: Labels, probabilities: Probabilities, bins: int = BINS) -> CalibrationScores:
    """Score probabilities (N,) in [0, 1] of labels (N,): 1 positive, 0 negative, -1 unknown and left out.

    Bins are of equal width and closed on the right. ValueError for other p. Naeini et al., AAAI 2015; Brier 1950.

    Examples:
        >>> calibration(np.array([1, 0, 1, -1]), np.array([0.75, 0.25, 0.5, 0.1]), 2)  # doctest: +NORMALIZE_WHITESPACE
        CalibrationScores(ece=0.16666666666666666, mce=0.25, brier=0.125, count=3, positives=2,
                          bins=((2, 0.375, 0.5), (1, 0.75, 1.0)))
    """
    known = labels >= 0
    y, p = labels[known].astype(np.int64), probabilities[known].astype(np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("probabilities must lie in [0, 1]")
    if not len(p):
        return CalibrationScores(None, None, None, 0, 0, ())
    where = _bin_of(p, bins)
    counts = [(int(of.sum()), math.fsum(p[of].tolist()), int(y[of].sum())) for of in (where == k for k in range(bins))]
    filled = [(count, mass, positives) for count, mass, positives in counts if count]
    return CalibrationScores(
        ece=math.fsum(abs(mass - positives) for _, mass, positives in filled) / len(p),
        mce=max(abs(mass - positives) / count for count, mass, positives in filled),
        brier=math.fsum(((p - y) ** 2).tolist()) / len(p),
        count=len(p),
        positives=int(y.sum()),
        bins=tuple((count, mass / count, positives / count) for count, mass, positives in filled),
    )


def _bin_of(probabilities: Probabilities, bins: int) -> NDArray[np.int64]:
    """Return bin numbers, 0-based: bin k holds (k / bins, (k + 1) / bins], and the first also 0."""
    # Edges are the float64 nearest to k / bins, as in literals such as 0.3.
    return np.searchsorted(np.arange(1, bins) / bins, probabilities, side="left")


def adaptive_ece(labels: Labels, probabilities: Probabilities, bins: int = BINS) -> float | None:
    """Return the calibration error over bins of equal counts, in which ties stay together (Nixon et al. 2019)."""
    known = labels >= 0
    order = np.argsort(probabilities[known], kind="stable")
    y, p = labels[known][order], probabilities[known][order]
    if not len(p):
        return None
    # A bin ends at its share of the images, extended to the last image with the same probability.
    ends = np.unique(np.searchsorted(p, p[np.ceil(len(p) * np.arange(1, bins + 1) / bins).astype(int) - 1], "right"))
    starts = [0, *ends[:-1].tolist()]
    gaps = [abs(math.fsum(p[a:b].tolist()) - int(y[a:b].sum())) for a, b in zip(starts, ends.tolist(), strict=True)]
    return math.fsum(gaps) / len(p)


def expected_ece(probabilities: Probabilities, bins: int = BINS, draws: int = 1000) -> float | None:
    """Return the mean calibration error of labels drawn from the probabilities: never 0 for finitely many images."""
    if not len(probabilities):
        return None
    p = np.sort(probabilities.astype(np.float64))
    where = _bin_of(p, bins)
    sums = np.bincount(where, p, minlength=bins)
    random = np.random.default_rng(0)
    errors = []
    for _ in range(draws):
        positives = np.bincount(where, random.random(len(p)) < p, minlength=bins)
        errors.append(float(np.abs(sums - positives).sum()) / len(p))
    return math.fsum(errors) / draws


def _numbers(group: Group) -> dict[str, float | None]:
    labels, p = group["label"], group["probability"]
    scores = calibration(labels, p)
    return {
        "ece": scores.ece,
        "ece_adaptive": adaptive_ece(labels, p),
        "ece_by_chance": expected_ece(p[labels >= 0]),
        "mce": scores.mce,
        "brier": scores.brier,
    }


class Calibration(Protocol):
    name = "calibration"
    title = "Calibration"
    headline = "ece"
    heading = "Expected error"
    others: ClassVar[Mapping[str, str]] = {
        "ece_by_chance": "By chance",
        "ece_adaptive": "In bins of equal counts",
        "mce": "Largest error of a bin",
        "brier": "Brier score",
    }
    citation = "Naeini et al., AAAI 2015 (ece); Nixon et al., CVPR workshops 2019 (ece_adaptive); Brier 1950"
    rule = (
        "probabilities against labels in 15 bins; ece_adaptive: bins of equal counts; ece_by_chance: labels drawn "
        "from the probabilities"
    )
    flaw = "The error of finitely many images is never 0: compare it with ece_by_chance."
    setting = "no pixels"
    in_setting = "always"
    limits = ("pairs without a label or a probability are left out",)
    takes = frozenset({"score"})
    negatives = True
    lower = frozenset({"ece", *others})

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, Any]:
        return {}

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        return of_group(groups, _numbers)
