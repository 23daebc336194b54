"""What the numbers of a model mean, and the way between them and fractions of the whole radiograph.

A convention is declared for a model and never chosen by looking at an answer, much less at the truth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from xbench.predictions.answer import Size
from xbench.runtime.errors import UsageError, UserError

_FARTHEST = 1e12  # of a number from the convention; farther ones overflow, and lie outside all the same


class Axis(NamedTuple):
    """How the numbers of a model lie along one side of a radiograph.

    The numbers 0 to `top` span `extent` pixels that begin `start` pixels inside the side, or before it if negative.
    """

    top: float
    start: float
    extent: float
    side: int  # in the same pixels
    bins: bool = False  # whole numbers 0 to top - 1, each meaning the centre of its bin
    whole_pixels: bool = False  # the model's own code goes back to whole pixels, rounded down

    def to_fraction(self, number: float) -> float:
        """Return where a number of the model lies, as a fraction of the side."""
        number = min(max(number, -_FARTHEST), _FARTHEST) + self.bins / 2
        if self.start == 0 and self.extent == self.side and not self.whole_pixels:
            return number / self.top  # no detour over pixels, so that rounding adds nothing
        pixel = number / self.top * self.extent + self.start
        return (math.floor(pixel) if self.whole_pixels else pixel) / self.side

    def from_fraction(self, fraction: float) -> float:
        """Return the number for a fraction of the side, in the convention's range: a bin, or unrounded."""
        number = (fraction * self.side - self.start) / self.extent * self.top
        if self.bins:
            return min(max(math.floor(number), 0), self.top - 1)
        return min(max(number, 0.0), self.top)


Axes = Callable[[Size], tuple[Axis, Axis]]


@dataclass(frozen=True)
class Convention:
    """What the numbers of a model mean."""

    name: str  # by which `named` finds it again
    axes: Axes = field(compare=False, repr=False)  # x and y for a radiograph of a size
    step: float = 1  # distance of neighbouring numbers as models write them; 0 if any number may be written
    y_first: bool = False  # whether y comes before x

    @property
    def base(self) -> str:
        """The name without a size and the order of axes."""
        return self.name.partition("@")[0].removesuffix("_yx")

    def __reduce__(self) -> tuple[Callable[[str], Convention], tuple[str]]:
        return Convention.named, (self.name,)  # for pickle knows no functions within functions

    @classmethod
    def named(cls, name: str) -> Convention:
        """Return the convention of a name.

        `_yx` at the end says that y comes before x. A convention of pixels may end in `@WxH`, the size of the image
        whose pixels they are: what the processor made of it, or what was sent. Raises a UserError for other names.

        Examples:
            >>> x, y = Convention.named("thousand_padded_yx").axes(Size(512, 1024))
            >>> x.to_fraction(500), y.to_fraction(500)
            (0.5, 0.5)
            >>> Convention.named("pixels_sent@100x200").axes(Size(512, 1024))[1].to_fraction(50)
            0.25
        """
        base, _, pixels = name.partition("@")
        y_first = base.endswith("_yx")
        base = base.removesuffix("_yx")
        size = re.fullmatch(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})", pixels)
        if base not in _CONVENTIONS or (pixels and not (size and base.startswith("pixels_"))):
            raise UsageError(
                f"There is no frame {name!r}. Frames are {', '.join(_CONVENTIONS)}; each may be followed by _yx where "
                "y comes before x, and those of pixels by the size of the image that they count on, as @1024x768."
            )
        convention = replace(_CONVENTIONS[base], name=name, y_first=y_first)
        if size is None:
            return convention
        shown = Size(int(size[1]), int(size[2]))
        return replace(convention, axes=lambda size: _over(size, shown))

    def shown(self, width: int, height: int) -> Convention:
        """Return this convention of pixels for an image that the model, or its server, was shown in this size."""
        return Convention.named(f"{self.base}{'_yx' if self.y_first else ''}@{width}x{height}")


def smart_resize(size: Size, factor: int = 28, least: int = 3_136, most: int = 12_845_056) -> Size:
    """Return the size to which the processor of Qwen's models resizes an image, or raise a UserError if it is too long.

    Both sides become a multiple of `factor`, and the pixels at least `least` and at most `most`: those of the published
    processor of Qwen2.5-VL. Other limits give other sizes: take these from the processor that ran.

    Examples:
        >>> smart_resize(Size(2544, 3056))
        Size(width=2548, height=3052)
    """
    width, height = size
    if max(size) > 200 * min(size):
        limit = "no side may be more than 200 times as long as the other"
        raise UserError(f"An image of {width} x {height} pixels cannot be shown to this model: {limit}.")
    # round() takes halves to even, as the processor does.
    sides = [round(side / factor) * factor for side in size]
    if sides[0] * sides[1] > most:
        shrink = math.sqrt(width * height / most)
        sides = [max(factor, math.floor(side / shrink / factor) * factor) for side in size]
    elif sides[0] * sides[1] < least:
        grow = math.sqrt(least / (width * height))
        sides = [math.ceil(side * grow / factor) * factor for side in size]
    return Size(*sides)


def checked_size(size: tuple[int, int]) -> Size:
    """Return the size of a radiograph, (width, height); a UserError if a side has no pixels."""
    if min(size) < 1:
        raise UserError(f"An image of {size[0]} x {size[1]} pixels has no place for a box.")
    return Size(*size)


def _over(size: Size, tops: tuple[float, float], bins: bool = False) -> tuple[Axis, Axis]:
    """Return the axes of numbers that span the whole radiograph."""
    x, y = (Axis(top, 0, side, side, bins) for top, side in zip(tops, size, strict=True))
    return x, y


def _square(top: float, size: Size, side: int, bins: bool = False, whole_pixels: bool = False) -> tuple[Axis, Axis]:
    """Return the axes of numbers that span a square in the middle, which is cut out or padded to, in whole pixels."""
    x, y = (Axis(top, int((whole - side) / 2), side, whole, bins, whole_pixels) for whole in size)
    return x, y


def _centre_fractions(size: Size) -> tuple[Axis, Axis]:
    x, y = (Axis(1, (side - min(size)) / 2, min(size), side) for side in size)
    return x, y


def _padded_512(size: Size) -> tuple[Axis, Axis]:
    # The longer side becomes 512 pixels, the other is rounded (halves up).
    width, height = (max(1, (2 * 512 * side + max(size)) // (2 * max(size))) for side in size)
    return _square(1000, Size(width, height), 512, bins=True)


_CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention("fraction_whole", lambda size: _over(size, (1, 1)), step=0.01),
        Convention("percent_whole", lambda size: _over(size, (100, 100))),
        Convention("thousand_whole", lambda size: _over(size, (1000, 1000))),
        Convention("thousand_padded", lambda size: _square(1000, size, max(size))),
        Convention("pixels_resized", lambda size: _over(size, smart_resize(size))),
        Convention("pixels_sent", lambda size: _over(size, size)),
        Convention("loc1000_whole", lambda size: _over(size, (1000, 1000), bins=True)),
        Convention("loc1000_padded512", _padded_512),
        Convention("bins100_centre_square", lambda size: _square(100, size, min(size), bins=True, whole_pixels=True)),
        Convention("fraction_centre_square", _centre_fractions, step=0),
    )
}
