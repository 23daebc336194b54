"""Score phrases by their finding, their length and whether they deny."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from xbench.findings.phrases import LENGTHS, denies, length_group
from xbench.report.runs import Run
from xbench.report.schema import Estimate, PhraseGroup
from xbench.report.statistics import intervals
from xbench.report.statistics.measures import Measures, estimate

SCORES = ("pointing_game", "dice_fixed", "iou_fixed")
_DENIAL = ("without a denial", "with a denial")


def phrase_groups(measures: Measures, run: Run) -> tuple[PhraseGroup, ...]:
    """Return the groups of a run's phrases, without empty ones."""
    rows, sample = run.rows, measures.sample
    if not len(rows.texts):
        return ()
    is_phrase = rows.text >= 0
    image = dict(zip(sample.image_ids, sample.image_cluster.tolist(), strict=True))
    cluster = np.array([image[name] for name in rows.image_ids], np.int64)[rows.image]
    absent = is_phrase & (rows["label"] == 0)
    # Null for a map, and for an answer about an image that was not asked.
    asked = absent & ~np.isnan(rows["boxes"])

    def by(kind: str, names: list[str], name_of: Callable[[int], str]) -> list[PhraseGroup]:
        own = np.array([name_of(row) if is_phrase[row] else "" for row in range(len(rows))], dtype=object)
        return [group(kind, name, own == name) for name in names if (own == name).any()]

    def group(kind: str, name: str, mine: NDArray[np.bool_]) -> PhraseGroup:
        pairs, false = np.flatnonzero(mine[sample.row]), np.flatnonzero(mine & asked)
        alarms = Estimate(None)
        if len(false):
            boxes = (rows["boxes"][false] > 0).astype(np.float64)
            spread = intervals.share(boxes, cluster[false], len(sample.clusters))
            alarms = estimate(spread.value, spread.interval())
        counts = int(mine.sum()), len(pairs), int((mine & absent).sum())
        return PhraseGroup(kind, name, *counts, measures.means(pairs, SCORES), alarms)

    texts, languages = rows.texts, rows["language"].tolist()
    lengths, denial = [*map(length_group, texts)], cache(denies)
    return (
        *by("all", ["all phrases"], lambda row: "all phrases"),
        *by("category", [*rows.findings], lambda row: rows.findings[rows.finding[row]]),
        *by("length", [*LENGTHS], lambda row: lengths[rows.text[row]]),
        *by("denial", [*_DENIAL], lambda row: _DENIAL[denial(texts[rows.text[row]], languages[row])]),
    )
