"""Are maps upside down, that is, does their minimum lie in the region more often than their maximum?"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray


def sign_tests(
    hits: NDArray[np.float64], minima: NDArray[np.float64], patients: Sequence[str | int]
) -> tuple[list[float | None], float | None]:
    """Test whether the minimum of maps lies in the region more often than the maximum, by an exact sign test.

    A pair votes for the minimum if at least half of the tied minima but not of the tied maxima lie in the region, for
    the maximum if it is the other way round, and else for neither. Each patient has one vote, that of the majority of
    the pairs. For maps that know nothing both are equally likely, so the number of patients for the minimum is compared
    with tosses of a coin (Dixon and Mood 1946). p-values are one-sided and corrected after Holm for all tests of the
    run.

    Args:
        hits: Share of the maxima of N images and C findings in the region (N, C); NaN where a pair is not scored.
        minima: The same of the minima.
        patients: Whose image each is, N of them.

    Returns:
        The corrected p-value of each finding, and of all findings together; None without a scored pair.
    """
    # Comparing with NaN is false.
    scored, votes = ~np.isnan(hits), (minima >= 0.5).astype(np.int64) - (hits >= 0.5)
    numbers: dict[str | int, int] = {}
    patient = [numbers.setdefault(name, len(numbers)) for name in patients]
    tests = [*zip(votes.T, scored.T, strict=True), (votes.sum(1), scored)]
    corrected = _holm([_p(np.bincount(patient, vote)) if mine.any() else None for vote, mine in tests])
    return corrected[:-1], corrected[-1]


def _p(votes: NDArray[Any]) -> float:
    """Chance of at least so many positive ones among the votes that are not 0, exact to the last bit."""
    positive, count = int((votes > 0).sum()), int((votes != 0).sum())
    ways = term = comb(count, positive)
    for k in range(positive + 1, count + 1):
        term = term * (count - k + 1) // k
        ways += term
    return ways / (1 << count)


def _holm(p_values: list[float | None]) -> list[float | None]:
    ordered = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(ordered):
        least = corrected[place] = max(least, min(1.0, p * (len(ordered) - rank)))
    return corrected
