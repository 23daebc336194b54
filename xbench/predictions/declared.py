"""What is declared about predictions made elsewhere, such as the part of a radiograph they show, and contradictions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.runtime.errors import UsageError


def preprocessing_of(frame: str) -> Preprocessing:
    """Return the geometry that a declared frame stands for, without mean and standard deviation.

    `whole` is the whole radiograph. Otherwise it is what was done to it, step by step, separated by spaces or commas:
    `shortest:N` or `longest:N` resize that side to N pixels in proportion, `stretch:N` both, `pad:N` pads to a square
    and `crop:N` cuts the square in the middle out. Raises a UserError unless it ends in one size for all images.
    """
    if frame == "whole":
        return Preprocessing(stretch((224, 224)))
    words = re.split(r"[\s,]+", frame.strip())
    steps = [re.fullmatch(r"(stretch|shortest|longest|pad|crop):([1-9]\d{0,3})", word) for word in words]
    known = [(step[1], int(step[2])) for step in steps if step is not None]
    # A crop beyond the edge would be cut off there, and a side that is only scaled differs from image to image.
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
            f"--frame {frame}: give whole, or what was done to a radiograph before the model saw it, such as "
            "shortest:512,crop:480 or longest:518,pad:518; steps are stretch, shortest, longest, pad and crop, and "
            "they must end in one square for all images."
        )
    from xbench.geometry.transforms import STEPS

    return Preprocessing([STEPS[name](side) for name, side in known])


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
    scores: Mapping[tuple[str, str], tuple[float, float]], findings: Sequence[str]
) -> list[tuple[str, str]]:
    """Return a text and an image for findings whose logits and probabilities order over 1 % of pairs of images unlike.

    Pairs that are tied in either are not compared. Rounding may exchange neighbors, and no more than these.
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
        if (np.diff(both[np.lexsort(both.T), 0]) >= 0).all():  # no pair is ordered unlike, or there is none
            continue
        from scipy.stats import kendalltau  # half a second

        counts = (np.unique(part, axis=0, return_counts=True)[1] for part in (both[:, 0], both[:, 1], both))
        pairs, tied = len(both) * (len(both) - 1) // 2, [int((n * (n - 1) // 2).sum()) for n in counts]
        compared = pairs - tied[0] - tied[1] + tied[2]
        # Kendall's tau-b is (pairs in one order - pairs in the other) / sqrt((pairs - tied) * (pairs - tied)).
        agreement = kendalltau(*both.T).statistic * sqrt((pairs - tied[0]) * (pairs - tied[1]))
        if (share := round((compared - agreement) / 2) / compared) > 0.01:
            text = f"logits of {finding} order {share:.0%} of the pairs of images unlike its probabilities"
            doubts += [(text, image) for image in by_image]
    return doubts
