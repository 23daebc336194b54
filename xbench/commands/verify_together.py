"""Numbers of protocols that are of all images of a finding together, derived again from its pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.calibration import expected_ece

_RATES = 2.0 ** np.arange(-3, 4)


def calibration_of(pairs: Mapping[str, NDArray[Any]]) -> dict[str, float | None]:
    """Return errors of calibration: sums over bins of what sorting puts into them."""
    p, y = pairs["probability"].astype(np.float64), pairs["label"].astype(np.float64)
    names = ("ece", "ece_adaptive", "ece_by_chance", "mce", "brier")
    if not len(p):
        return dict.fromkeys(names)
    edges = np.array([-1, *(k / 15 for k in range(1, 15)), 1])
    inside = (p[None] > edges[:-1, None]) & (p[None] <= edges[1:, None])
    gaps = np.abs(np.where(inside, p - y, 0).sum(axis=1))
    filled = inside.any(axis=1)
    adaptive, begin, ordered = 0.0, 0, np.sort(p)
    for k in range(1, 16):
        # The bin ends with the last of equal probabilities.
        last = ordered[int(np.ceil(len(p) * k / 15)) - 1]
        end = int((p <= last).sum())
        if end > begin:
            low = ordered[begin - 1] if begin else -1
            adaptive += abs(float((p - y)[(p > low) & (p <= last)].sum()))
            begin = end
    values = (
        gaps.sum() / len(p),
        adaptive / len(p),
        expected_ece(p),
        (gaps[filled] / inside[filled].sum(axis=1)).max(),
        np.square(p - y).mean(),
    )
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def detections_of(pairs: Mapping[str, NDArray[Any]]) -> dict[str, float | None]:
    """Return FROC, sensitivities and average precisions, counting at each score what lies at it or above."""
    images, lesions = len(pairs["lesions"]), int(pairs["lesions"].sum())
    sizes = ("small", "medium", "large")
    names = ("froc", "sensitivity", "map", "ap_30", "ap_50", *(f"sensitivity_{size}" for size in sizes))
    if not lesions:
        return dict.fromkeys(names)
    scores = np.array([score for one in pairs["scores"] for score in one], np.float64)
    hits = {
        percent: np.array([hit for one in pairs[f"hits_{percent}"] for hit in one], bool)
        for percent in (10, 20, 30, 40, 50)
    }
    true, false = (np.sort(scores[which]) for which in (hits[30], ~hits[30]))
    levels = np.unique(scores)
    found, wrong = (len(one) - np.searchsorted(one, levels) for one in (true, false))
    at = [found[wrong <= rate * images].max(initial=0) / lesions for rate in _RATES]
    precisions = {percent: _precision(scores, hit, lesions) for percent, hit in hits.items()}
    values = {
        "froc": float(np.mean(at)),
        "sensitivity": float(at[3]),
        "map": float(np.mean([*precisions.values()])),
        "ap_30": precisions[30],
        "ap_50": precisions[50],
    }
    allowed = levels[wrong <= images]
    counted = scores >= allowed[0] if len(allowed) else np.zeros(len(scores), bool)
    which = np.array([size for one in pairs["sizes"] for size in one], int)
    by_size: dict[str, float | None] = {}
    for place, size in enumerate(sizes):
        every = int(pairs[f"lesions_{size}"].sum())
        by_size[f"sensitivity_{size}"] = int((counted & (which == place)).sum()) / every if every else None
    return values | by_size


def _precision(scores: NDArray[np.float64], hits: NDArray[np.bool_], lesions: int) -> float:
    best = np.zeros(101)
    found = 0
    for rank, place in enumerate(np.argsort(-scores, kind="stable"), 1):
        found += int(hits[place])
        reached = np.linspace(0, 1, 101) <= found / lesions
        best[reached] = np.maximum(best[reached], found / rank)
    return float(best.mean())
