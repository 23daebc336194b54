"""Test whether AUROC is below one half; then the sign or the column of the scores is in doubt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from xbench.findings.names import MACRO
from xbench.runs.results import SIGN_LEVEL, Results
from xbench.scoring.rows import Rows

_EXCHANGES = 999


def auroc_warning(results: Results, rows: Rows) -> str:
    """Name the findings with an AUROC significantly below one half, in a sentence; empty without one."""
    scores = results.classification
    auroc = {name: one.auroc for name, one in scores.per_class.items()} | {MACRO: scores.macro.get("auroc")}
    wanted = [place for place, value in enumerate(auroc.values()) if value is not None and value < 0.5]
    if not wanted:
        return ""
    chances = chances_below_half(rows.matrix("label"), rows.matrix("probability"), rows.patient, wanted)
    p = dict(zip(auroc, chances, strict=True))
    low = {name: value for name, value in auroc.items() if value is not None and value < 0.5 and p[name] <= SIGN_LEVEL}
    if not low:
        return ""
    named = ", ".join("all findings together" if name == MACRO else name for name in low)
    surest = min(low, key=lambda name: (p[name], low[name]))
    return (
        f"AUROC is significantly below one half for {named} ({low[surest]:.3f}, p = {p[surest]:.2g}): images with the "
        "finding get lower scores than images without it. Check whether scores have the right sign, and whether each "
        "column belongs to its finding."
    )


def chances_below_half(
    labels: NDArray[np.int8], scores: NDArray[np.float64], patients: Sequence[Hashable], wanted: Sequence[int] = ()
) -> list[float]:
    """Return one-sided p-values of an AUROC below one half: for each of C findings, then their mean.

    Scores of images are exchanged at random. A patient counts once, with the image that has the most findings. Each
    p-value is the share of exchanges in which any AUROC, over its standard deviation, is as low (Westfall and Young
    1993), so it is corrected for all of them.

    `labels` (N, C) are 1 present, 0 absent, -1 unknown; `scores` (N, C) are NaN if missing. All p-values are 1 once
    none at the indices `wanted` can be at most `SIGN_LEVEL`.
    """
    film_of: dict[Hashable, int] = {}
    for row in np.argsort(-(labels == 1).sum(axis=1), kind="stable").tolist():
        film_of.setdefault(patients[row], row)
    labels, scores = labels[[*film_of.values()]], scores[[*film_of.values()]]
    counts = [np.maximum(1, (labels == label).sum(axis=0)) for label in (1, 0)]
    both = (labels == 1).any(axis=0) & (labels == 0).any(axis=0)
    weights = ((labels == 1) / counts[0] - (labels == 0) / counts[1]) * both
    ranks = np.zeros(scores.shape)
    for column, known in enumerate(~np.isnan(scores.T)):
        if known.any():
            own = np.sort(scores[known, column])
            places = np.searchsorted(own, scores[known, column]) + np.searchsorted(own, scores[known, column], "right")
            ranks[known, column] = (places - places.mean()) / len(own)
    random = np.random.default_rng(0)
    found = np.empty((_EXCHANGES + 1, len(both) + 1))
    for place, one in enumerate(found):
        order = random.permutation(len(ranks)) if place else np.arange(len(ranks))
        one[:-1] = np.einsum("ij,ij->j", weights, ranks.take(order, axis=0))
        one[-1] = one[:-1][both].sum()
        if wanted and (found[: place + 1, wanted] <= found[0, wanted]).sum(axis=0).min() > SIGN_LEVEL * len(found):
            return [1.0] * len(one)
    spread = found.std(axis=0)
    found /= np.where(spread > 0, spread, np.inf)
    # 1e-9: sums in another order are rounded differently.
    return [float((found.min(axis=1) <= one + 1e-9).mean()) for one in found[0]]
