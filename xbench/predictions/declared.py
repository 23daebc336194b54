"""Declared geometry of predictions made elsewhere, and contradictions in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.runtime.errors import UsageError


def preprocessing_of(frame: str) -> Preprocessing:
    """Return the geometry of a declared frame; raise a UserError unless all images end in one size."""
    if frame == "whole":
        return Preprocessing(stretch((224, 224)))
    words = re.split(r"[\s,]+", frame.strip())
    steps = [re.fullmatch(r"(stretch|shortest|longest|pad|crop):([1-9]\d{0,3})", word) for word in words]
    known = [(step[1], int(step[2])) for step in steps if step is not None]
    # Reject crops beyond the edge, and sizes that differ from image to image.
    square, smallest, largest = False, 0, 0
    fits = len(known) == len(steps)
    for name, side in known if fits else ():
        if name == "crop":
            fits, square = fits and side <= smallest, True
        elif name == "pad":
            fits, square = fits and 0 < largest <= side, True
        else:
            square = name == "stretch" or square
        smallest = 1 if name == "longest" and not square else side
        largest = 10**9 if name == "shortest" and not square else side
    if not fits or not square:
        raise UsageError(
            f"--frame {frame}: give whole, or the preprocessing of the model, such as "
            "shortest:512,crop:480 or longest:518,pad:518. The steps stretch, shortest, longest, pad and crop must end "
            "in one square for all images."
        )
    from xbench.geometry.transforms import STEPS

    return Preprocessing([STEPS[name](side) for name, side in known])


def shape_problem(shape: Sequence[int], image: tuple[int, int] | None, frame: str) -> str | None:
    """Describe what is odd about maps (h, w) of an image (H, W); a difference of one cell is not."""
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
    scores: Mapping[tuple[str, str], tuple[float, float]], findings: Sequence[str]
) -> list[tuple[str, str]]:
    """Return a text and an image for findings whose logits and probabilities disagree in order.

    They disagree if over 1% of the pairs of images are ordered differently. Ties are not compared, and rounding may
    swap neighbors.
    """
    doubts: list[tuple[str, str]] = []
    if all(logit == probability for logit, probability in scores.values()):  # nearly all tables
        return doubts
    of_finding: dict[str, dict[str, tuple[float, float]]] = {finding: {} for finding in findings}
    for (image, finding), both_of_pair in scores.items():
        if finding in of_finding:
            of_finding[finding][image] = both_of_pair
    for finding, by_image in of_finding.items():
        both = np.array([*by_image.values()]).reshape(-1, 2)
        if (np.diff(both[np.lexsort(both.T), 0]) >= 0).all():  # same order, or a single image
            continue
        from scipy.stats import kendalltau  # import takes half a second

        counts = (np.unique(part, axis=0, return_counts=True)[1] for part in (both[:, 0], both[:, 1], both))
        pairs, tied = len(both) * (len(both) - 1) // 2, [int((n * (n - 1) // 2).sum()) for n in counts]
        compared = pairs - tied[0] - tied[1] + tied[2]
        # Kendall's tau-b is (pairs in one order - pairs in the other) / sqrt((pairs - tied) * (pairs - tied)).
        agreement = kendalltau(*both.T).statistic * sqrt((pairs - tied[0]) * (pairs - tied[1]))
        if (share := round((compared - agreement) / 2) / compared) > 0.01:
            text = f"logits of {finding} order {share:.0%} of the pairs of images differently from its probabilities"
            doubts += [(text, image) for image in by_image]
    return doubts
