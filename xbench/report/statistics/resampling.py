"""The bootstrap: how often each cluster is drawn, and the interval that follows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from xbench.report.analysis import Estimate

__all__ = ["chunks", "draw", "estimate", "generator"]

_ENDS = (2.5, 97.5)
_ELEMENTS_AT_A_TIME = 2_000_000


@lru_cache(maxsize=2)
def draw(clusters: tuple[str, ...], resamples: int, seed: int, ground: str) -> NDArray[np.int16]:
    """Return how often each of K clusters is drawn in each of B resamples of K draws with replacement, (K, B).

    The draws depend on the seed, the ground and the clusters' names alone, so runs that scored the same images are
    resampled together and their differences can be too.

    Args:
        clusters: Names, sorted.
        resamples: B.
        seed: Any whole number that is not negative.
        ground: Dataset and split.

    Example:
        >>> draw(("a", "b", "c"), 1000, seed=0, ground="dataset/test").sum(axis=0).tolist() == [3] * 1000
        True
    """
    count = len(clusters)
    counts = generator(seed, ground, *clusters).multinomial(count, np.full(count, 1 / count), size=resamples)
    draws = np.ascontiguousarray(counts.T.astype(np.int16))
    draws.setflags(write=False)
    return draws


def chunks(draws: NDArray[np.int16], width: int) -> Iterator[NDArray[np.float64]]:
    """Yield the draws (K, B) some resamples at a time, as float64, so that B x width numbers take little memory."""
    step = max(1, _ELEMENTS_AT_A_TIME // max(1, width))
    for start in range(0, draws.shape[1], step):
        yield draws[:, start : start + step].astype(np.float64)


def estimate(value: float, resampled: NDArray[np.float64], clusters: int) -> Estimate:
    """Return a value with its 95 % percentile interval (Efron and Tibshirani 1993, chapter 13).

    Args:
        value: On the sample itself; NaN where it does not exist.
        resampled: On each resample, (B,); NaN where it does not exist, and these are left out.
        clusters: How many clusters the value rests on. One cluster, drawn once or thrice, says nothing about the
            spread, so with fewer than two there is no interval.

    Example:
        >>> estimate(20.0, np.arange(41.0), clusters=5)
        Estimate(value=20.0, low=1.0, high=39.0)
        >>> estimate(0.5, np.array([0.5, 0.5]), clusters=1)
        Estimate(value=0.5, low=None, high=None)
    """
    if np.isnan(value):
        return Estimate(None)
    existing = resampled[~np.isnan(resampled)]
    if clusters < 2 or not len(existing):
        return Estimate(float(value))
    low, high = np.percentile(existing, _ENDS)
    return Estimate(float(value), float(low), float(high))


def generator(seed: int, *words: str) -> np.random.Generator:
    """Return a random generator that depends on a seed and some words."""
    digest = hashlib.sha256("\0".join(words).encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest, dtype=np.uint32).tolist()])
