"""Steps that all families share: plain text, numbers, boxes and the status of an answer."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from xbench.predictions.answer import Answer, Box, Counts, Finish, Point, Size, Status
from xbench.predictions.conventions import Convention

NUMBER = r"[+-]?+(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+"
"""A number in plain text; `number` rejects those over 64 characters or not finite."""

# Punctuation of other scripts and its ASCII equivalent.
_PLAIN = str.maketrans(
    {chr(ord(mark) + 0xFEE0): mark for mark in '[](){},.:"-<>|/%'}
    | {"、": ",", "\N{MINUS SIGN}": "-"}
    | dict.fromkeys("\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}", '"')
    | dict.fromkeys("\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}", "'")
)
_NUMBER = re.compile(NUMBER)
_LONGEST = 1_000_000  # characters that are read
_SUSPECT = 0.25  # share of the range by which a number must exceed it to be suspect


def plain(raw: str) -> str:
    """Return the text with decimal digits and punctuation as ASCII, cut at a limit; superscripts stay."""
    text = raw[:_LONGEST]
    if text.isascii():
        return text
    digits = {ord(mark): str(unicodedata.decimal(mark)) for mark in set(text) if mark.isdecimal()}
    return text.translate(digits).translate(_PLAIN)


def number(text: str) -> float | None:
    """Return the finite number in a plain text; None otherwise."""
    text = text.strip()
    if len(text) > 64 or not _NUMBER.fullmatch(text) or not math.isfinite(value := float(text)):
        return None
    return value


def numbers(text: str) -> list[float] | None:
    """Return the numbers of a list without brackets; None if an item is not a number. A comma may come last."""
    values = [number(part) for part in text.strip().removesuffix(",").split(",")] if text.strip() else []
    return None if None in values else [value for value in values if value is not None]


def ends_in_tag(text: str) -> bool:
    """Return whether a text breaks off inside `<...`."""
    return re.search(r"<[^<>\s]*+\Z", text[max(0, text.rfind("<")) :]) is not None


class Reading:
    """Boxes and points of one answer, collected by the grammar of a family."""

    def __init__(self, convention: Convention, size: Size) -> None:
        self.cut = False  # whether the text ends inside the grammar; the family sets this and the next two
        self.none = False  # whether the grammar states that there is nothing
        self.dropped = 0  # malformed boxes
        self._convention, self._axes = convention, convention.axes(size)
        self._boxes: dict[Box, float | None] = {}
        self._points: dict[Point, None] = {}
        self._clipped = self._reordered = self._duplicates = 0
        self._beyond = False
        self._largest: float | None = None

    @property
    def found(self) -> bool:
        """Whether there is a complete box or point."""
        return bool(self._boxes or self._points)

    def add_box(
        self,
        values: Sequence[float],
        confidence: float | None = None,
        zeros_are_none: bool = True,
        x_first: bool = False,
    ) -> None:
        """Add two corners in the order of the convention, or x first if `x_first`."""
        if zeros_are_none and not any(values):
            self.none = True
            return
        (x0, y0), (x1, y1) = (self._fractions(values[at], values[at + 1], x_first) for at in (0, 2))
        self._reordered += x0 > x1 or y0 > y1
        box = Box(*self._inside(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)))
        if not (box.x0 < box.x1 and box.y0 < box.y1):
            self.dropped += 1
        elif box in self._boxes:
            self._duplicates += 1
        else:
            self._boxes[box] = confidence

    def add_list(self, content: str) -> None:
        """Add the content of a list as a box; an empty list means no box."""
        values = numbers(content)
        if values and len(values) == 4:
            self.add_box(values)
        elif values == []:
            self.none = True
        else:
            self.dropped += 1

    def add_point(self, values: Sequence[float]) -> None:
        """Add a point in the order of the convention."""
        point = Point(*self._inside(*self._fractions(values[0], values[1])))
        self._duplicates += point in self._points
        self._points[point] = None

    def answer(self, raw: str, finish: Finish | None, text: str) -> Answer:
        """Return the answer with its status; words in `text`, the plain part of `raw`, may deny the finding."""
        # Fractions where thousands were declared: no number exceeds 1.
        top = max(axis.top for axis in self._axes)
        small = self._largest is not None and self._largest <= 1 and top > 1 and not self._axes[0].bins
        return Answer(
            status=self._status(finish, text),
            raw=raw,
            boxes=tuple(self._boxes),
            points=tuple(self._points),
            confidence=tuple(self._boxes.values()),
            finish=finish,
            counts=Counts(self._clipped, self._reordered, self.dropped, self._duplicates),
            suspect_frame=self._beyond or small,
        )

    def _status(self, finish: Finish | None, text: str) -> Status:
        if finish == "length" or (finish is None and self.cut):
            return "truncated"
        if self.found:
            return "answered"
        none = self.none or _none_words().search(text) is not None
        return "abstained" if none and not self.dropped else "unparsable"

    def _fractions(self, first: float, second: float, x_first: bool = False) -> tuple[float, float]:
        pair = (second, first) if self._convention.y_first and not x_first else (first, second)
        for value, axis in zip(pair, self._axes, strict=True):
            self._beyond |= not -_SUSPECT <= value / axis.top <= 1 + _SUSPECT
            self._largest = value if self._largest is None else max(value, self._largest)
        x, y = (axis.to_fraction(value) for value, axis in zip(pair, self._axes, strict=True))
        return x, y

    def _inside(self, *fractions: float) -> list[float]:
        """Clip fractions to [0, 1], and count it if one was outside by more than rounding."""
        self._clipped += any(not -1e-9 <= fraction <= 1 + 1e-9 for fraction in fractions)
        return [min(max(fraction, 0.0), 1.0) for fraction in fractions]


@cache
def _none_words() -> re.Pattern[str]:
    lines = files("xbench.predictions").joinpath("none_words.txt").read_text(encoding="utf-8").splitlines()
    words = "|".join(re.escape(line) for line in lines if not line.startswith("#"))
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)|n't(?!\w)", re.IGNORECASE)
