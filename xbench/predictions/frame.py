"""What part of a radiograph a map shows, as whoever made it declares: a preprocessing without its mean and std."""

from __future__ import annotations

import re
from collections.abc import Callable

import albumentations as A

from xbench.geometry.preprocessing import CentreCrop, PillowResize, Preprocessing, stretch
from xbench.runtime.errors import UserError

_STEPS: dict[str, Callable[[int], A.BasicTransform]] = {
    "stretch": lambda side: stretch((side, side))[0],
    "shortest": lambda side: PillowResize(side, "shortest"),
    "longest": lambda side: PillowResize(side, "longest"),
    "pad": lambda side: A.PadIfNeeded(side, side),
    "crop": CentreCrop,
}


def preprocessing_of(frame: str) -> Preprocessing:
    """Return the geometry that a declared frame stands for; a UserError unless it ends in one size for all images.

    `whole` is the whole radiograph. Otherwise it is what was done to it, step by step, separated by spaces or commas:
    `shortest:N` or `longest:N` resize that side to N pixels in proportion, `stretch:N` both, `pad:N` pads to a square
    and `crop:N` cuts the square in the middle out.
    """
    if frame == "whole":
        return Preprocessing(stretch((224, 224)))
    steps = [re.fullmatch(r"([a-z]+):([1-9]\d{0,3})", word) for word in re.split(r"[\s,]+", frame.strip())]
    known = [step for step in steps if step is not None and step[1] in _STEPS]
    # A crop beyond the edge would be cut off there, and a side that is only scaled differs from image to image.
    square, smallest, largest = False, 0, 0
    fits = len(known) == len(steps)
    for step in known if fits else ():
        side = int(step[2])
        if step[1] == "crop":
            fits, square = fits and side <= smallest, True
        elif step[1] == "pad":
            fits, square = fits and 0 < largest <= side, True
        else:
            square = step[1] == "stretch" or square
        smallest = 1 if step[1] == "longest" and not square else side
        largest = 10**9 if step[1] == "shortest" and not square else side
    if not fits or not square:
        raise UserError(
            f"--frame {frame}: give whole, or what was done to a radiograph before the model saw it, such as "
            "shortest:512,crop:480 or longest:518,pad:518; steps are stretch, shortest, longest, pad and crop, and "
            "they must end in one square for all images.",
            exit_status=2,
        )
    return Preprocessing([_STEPS[step[1]](int(step[2])) for step in known])
