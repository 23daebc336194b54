"""Conversion between the numbers of a model and fractions of the whole radiograph.

A convention is declared for a model, never guessed from an answer or the truth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from xbench.predictions.answer import Size
from xbench.runtime.errors import UsageError, UserError

_FARTHEST = 1e12  # limit of a number; larger ones would overflow, and lie outside anyway


class Axis(NamedTuple):
    """Scale along a side: 0 to `top` span `extent` pixels from `start`, which is negative if padding comes first."""

    top: float
    start: float
    extent: float
    side: int  # in pixels
    bins: bool = False  # integers 0 to top - 1, each for the center of its bin
    whole_pixels: bool = False  # the model's own code rounds pixels down

    def to_fraction(self, number: float) -> float:
        """Return a number of the model as a fraction of the side."""
        number = min(max(number, -_FARTHEST), _FARTHEST) + self.bins / 2
        if self.start == 0 and self.extent == self.side and not self.whole_pixels:
            return number / self.top  # avoids rounding in pixels
        pixel = number / self.top * self.extent + self.start
        return (math.floor(pixel) if self.whole_pixels else pixel) / self.side

    def from_fraction(self, fraction: float) -> float:
        """Return the number for a fraction of the side, clipped to the range: a bin, or unrounded."""
        number = (fraction * self.side - self.start) / self.extent * self.top
        if self.bins:
            return min(max(math.floor(number), 0), self.top - 1)
        return min(max(number, 0.0), self.top)


Axes = Callable[[Size], tuple[Axis, ...]]


@dataclass(frozen=True)
class Convention:
    """Meaning of the numbers of a model."""

    name: str  # key for `named`
    axes: Axes = field(compare=False, repr=False)  # x and y for the size of a radiograph
    step: float = 1  # difference between adjacent written numbers; 0 for any precision
    y_first: bool = False

    @property
    def base(self) -> str:
        """Name without size and order of axes."""
        return self.name.partition("@")[0].removesuffix("_yx")

    def __reduce__(self) -> tuple[Callable[[str], Convention], tuple[str]]:
        return Convention.named, (self.name,)  # pickle cannot store the function in `axes`

    @classmethod
    def named(cls, name: str) -> Convention:
        """Return the convention of a name, or raise a UserError.

        The suffix `_yx` puts y before x. Pixel conventions accept `@WxH`, the size of the image that the model or its
        server used.

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
                f"There is no frame {name!r}. Frames are {', '.join(_CONVENTIONS)}. Append _yx if y comes before x, "
                "and to frames of pixels the size of the image, as in @1024x768."
            )
        convention = replace(_CONVENTIONS[base], name=name, y_first=y_first)
        if size is None:
            return convention
        shown = Size(int(size[1]), int(size[2]))
        return replace(convention, axes=lambda size: _over(size, shown))

    def shown(self, width: int, height: int) -> Convention:
        """Return this pixel convention for the size in which the model or its server saw the image."""
        return Convention.named(f"{self.base}{'_yx' if self.y_first else ''}@{width}x{height}")


def smart_resize(size: Size, factor: int = 28, least: int = 3_136, most: int = 12_845_056) -> Size:
    """Return the size to which the processor of Qwen's models resizes an image.

    Both sides become multiples of `factor`, with `least` to `most` pixels in all. The defaults are those of the
    published processor of Qwen2.5-VL; take other limits from the processor that ran. Raises a UserError if one side is
    more than 200 times as long as the other.

    >>> smart_resize(Size(2544, 3056))
    Size(width=2548, height=3052)
    """
    width, height = size
    if max(size) > 200 * min(size):
        limit = "no side may be more than 200 times as long as the other"
        raise UserError(f"An image of {width} x {height} pixels cannot be shown to this model: {limit}.")
    # round() takes halves to even, like the processor.
    sides = [round(side / factor) * factor for side in size]
    if sides[0] * sides[1] > most:
        shrink = math.sqrt(width * height / most)
        sides = [max(factor, math.floor(side / shrink / factor) * factor) for side in size]
    elif sides[0] * sides[1] < least:
        grow = math.sqrt(least / (width * height))
        sides = [math.ceil(side * grow / factor) * factor for side in size]
    return Size(*sides)


def checked_size(size: tuple[int, int]) -> Size:
    """Return the size (width, height), or raise a UserError if a side has no pixels."""
    if min(size) < 1:
        raise UserError(f"An image of {size[0]} x {size[1]} pixels has no place for a box.")
    return Size(*size)


def _over(size: Size, tops: tuple[float, float], bins: bool = False) -> tuple[Axis, ...]:
    return tuple(Axis(top, 0, side, side, bins) for top, side in zip(tops, size, strict=True))


def _square(top: float, size: Size, side: int, bins: bool = False, whole_pixels: bool = False) -> tuple[Axis, ...]:
    """Return axes that span a centered square, cut out or padded to, in whole pixels."""
    return tuple(Axis(top, int((whole - side) / 2), side, whole, bins, whole_pixels) for whole in size)


def _centre_fractions(size: Size) -> tuple[Axis, ...]:
    return tuple(Axis(1, (side - min(size)) / 2, min(size), side) for side in size)


def _padded_512(size: Size) -> tuple[Axis, ...]:
    # The longer side becomes 512 pixels; the other is rounded, halves up.
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
