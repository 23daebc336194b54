"""What looks wrong about predictions and may be right all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np


def shape_problem(shape: Sequence[int], image: tuple[int, int] | None, frame: str) -> str | None:
    """Return what is odd about maps (h, w) of an image (H, W) in a declared frame; a cell more or less is not."""
    height, width = shape

    def has_aspect(rows: int, columns: int) -> bool:
        return abs(height - width * rows / columns) <= 1 or abs(width - height * columns / rows) <= 1

    rows, columns = image if image is not None and frame == "whole" else (1, 1)
    if has_aspect(1, 1) or has_aspect(rows, columns):
        return None
    if has_aspect(columns, rows):
        return "maps have the shape of the image with rows and columns exchanged"
    return f"maps are neither square nor as long and wide as what --frame {frame} declares"


def contradictions(
    numbers: Mapping[tuple[str, str], tuple[float, float]], findings: Sequence[str]
) -> list[tuple[str, str]]:
    """Return a text and an image for findings whose logits and probabilities order over 1 % of pairs of images unlike.

    Pairs that are tied in either are not compared. Rounding may exchange neighbors, and no more than these.
    """
    from scipy.stats import kendalltau

    doubts = []
    for finding in findings:
        of = {image: both for (image, other), both in numbers.items() if other == finding}
        both = np.array([*of.values()]).reshape(-1, 2)
        counts = (np.unique(part, axis=0, return_counts=True)[1] for part in (both[:, 0], both[:, 1], both))
        pairs, tied = len(of) * (len(of) - 1) // 2, [int((n * (n - 1) // 2).sum()) for n in counts]
        compared = pairs - tied[0] - tied[1] + tied[2]
        if compared < 1:  # nothing to compare, or no scores
            continue
        # Kendall's tau-b is (pairs in one order - pairs in the other) / sqrt((pairs - tied) * (pairs - tied)).
        agreement = kendalltau(*both.T).statistic * sqrt((pairs - tied[0]) * (pairs - tied[1]))
        if (share := round((compared - agreement) / 2) / compared) > 0.01:
            text = f"logits of {finding} order {share:.0%} of the pairs of images unlike its probabilities"
            doubts += [(text, image) for image in of]
    return doubts
