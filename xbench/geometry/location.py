"""Where a region lies: the patient's sides and the zones of the lungs, from coordinates on the image alone.

In the standard view the patient's left is on the image's right. Shares of areas are exact fractions, so no bound
depends on how a number is rounded. docs/words.md has the definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations
from typing import NamedTuple, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.geometry.shapes import Shape
from xbench.runtime.errors import UserError

ZONES = ("upper", "middle", "lower")
"""From the top of the lungs to the bottom."""
ZONE_SETS = tuple(frozenset(zones) for count in (1, 2, 3) for zones in combinations(ZONES, count))
"""Every set of zones but the empty one."""
Places = frozenset[str]
"""Sides or zones."""

_MARGIN = Fraction(1, 20)
# Share of the largest item below which an item does not count.
_LEAST = Fraction(1, 50)


def _exact(number: float) -> Fraction:
    """Return the fraction that a float64 was made of: a decimal, or pixels of an image, of up to a million parts."""
    return Fraction(number).limit_denominator(1_000_000)


@dataclass(frozen=True)
class LungField:
    """Midline and vertical extent of the lungs as fractions of the radiograph; by default of the standard view.

    Raises:
        UserError: The numbers are not fractions, or the top does not lie above the bottom.
    """

    midline: float = 0.5
    top: float = 0.10
    bottom: float = 0.80

    def __post_init__(self) -> None:
        if not (0 <= self.midline <= 1 and 0 <= self.top < self.bottom <= 1):
            raise UserError(
                f"A lung field has the midline {self.midline}, the top {self.top} and the bottom {self.bottom}: give "
                "fractions of the radiograph from 0 to 1, with the top above the bottom."
            )

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> Self:
        """Measure the two largest connected parts of a mask (H, W) of both lungs.

        The midline is the median over rows of the middle between their inner edges; top and bottom are means of both.

        Raises:
            UserError: There are no two parts that lie side by side.
        """
        height, width = mask.shape
        _, labels, stats, _ = cv2.connectedComponentsWithStats(np.asarray(mask, np.uint8), connectivity=8)
        largest = 1 + np.argsort(-stats[1:, cv2.CC_STAT_AREA], kind="stable")[:2]
        parts = [labels == part for part in sorted(largest, key=lambda part: stats[part, cv2.CC_STAT_LEFT])]
        rows = np.flatnonzero(np.all([part.any(axis=1) for part in parts], axis=0) & (len(parts) == 2))
        if not len(rows):
            raise UserError("A lung mask does not show two separate lungs side by side: give each lung a part.")
        inner = [width - parts[0][rows, ::-1].argmax(axis=1), parts[1][rows].argmax(axis=1)]
        tops, heights = stats[largest, cv2.CC_STAT_TOP], stats[largest, cv2.CC_STAT_HEIGHT]
        middle = float(np.median(inner[0] + inner[1])) / (2 * width)
        return cls(middle, float(tops.sum()) / (2 * height), float((tops + heights).sum()) / (2 * height))

    @cached_property
    def band(self) -> tuple[Fraction, Fraction]:
        """Where the margin about the midline begins and ends."""
        return _exact(self.midline) - _MARGIN, _exact(self.midline) + _MARGIN

    @cached_property
    def borders(self) -> tuple[Fraction, Fraction]:
        """Where the middle zone begins and ends."""
        top, bottom = _exact(self.top), _exact(self.bottom)
        return (2 * top + bottom) / 3, (top + 2 * bottom) / 3


STANDARD = LungField()
"""The lung field of a radiograph without a lung mask."""


@dataclass(frozen=True)
class Location:
    """Where the items of a finding lie; all sets are empty if no item has an area."""

    sides: Places  # of `left` and `right`, the patient's; empty: unclear
    zones: Places  # those with at least a quarter of an item's area
    zones_allowed: Places  # the same with borders moved in a zone's favor
    enough: frozenset[Places]  # sets of zones with half of the area of half of the items, borders moved


class _Profile(NamedTuple):
    """Area of an item along an axis: `totals[k]` lies before start + k * step, and between these it grows evenly."""

    start: Fraction
    step: Fraction
    totals: Sequence[int]

    def before(self, border: Fraction) -> Fraction:
        """Return the share of the item's area that lies before a border."""
        last = len(self.totals) - 1
        place = min(max((border - self.start) / self.step, Fraction(0)), Fraction(last))
        cell = int(place)
        total, following = self.totals[cell], self.totals[min(cell + 1, last)]
        return (total + (place - cell) * (following - total)) / self.totals[last]


def locate(items: Sequence[Shape], field: LungField = STANDARD) -> Location:
    """Locate the annotated items of a finding on an image.

    Boxes are measured exactly, polygons and masks by their pixels. Items smaller than 2 % of the largest do not count.
    Of a union that is known on a grid alone, give `connected_parts`.

    Examples:
        >>> found = locate([Shape("box", (100, 100), np.array([10.0, 40.0, 30.0, 70.0]))])
        >>> sorted(found.sides), sorted(found.zones), sorted(found.zones_allowed)
        (['right'], ['lower', 'middle'], ['lower', 'middle'])
    """
    measured = [_measured(item) for item in items]
    largest = max((area for area, _, _ in measured), default=Fraction(0))
    kept = [profiles for area, *profiles in measured if area and area >= _LEAST * largest]
    found = {_side(across, field) for across, _ in kept}
    sides = found & {"left", "right"}
    zones = [_zone_shares(down, field, Fraction(0)) for _, down in kept]
    moved = [_zone_shares(down, field, _MARGIN) for _, down in kept]
    return Location(
        frozenset(() if len(sides) == 1 and "crossing" in found else sides),
        _with_a_quarter(zones),
        _with_a_quarter(moved),
        frozenset(of for of in ZONE_SETS if kept and 2 * sum(2 * item[of] >= 1 for item in moved) >= len(kept)),
    )


def place_of(points: Sequence[tuple[float, float]], field: LungField = STANDARD) -> tuple[Places, Places]:
    """Return the sides and zones of points (x, y) in fractions of the radiograph: peaks, or centers of boxes.

    Points within the margin about the midline have no side; if all lie there, the side is `midline`.

    Examples:
        >>> place_of([(0.2, 0.1)])
        (frozenset({'right'}), frozenset({'upper'}))
    """
    exact = [(_exact(x), _exact(y)) for x, y in points]
    (right, left), (middle, lower) = field.band, field.borders
    sides = {"right" if x < right else "left" for x, _ in exact if not right <= x <= left}
    zones = {ZONES[(y >= middle) + (y >= lower)] for _, y in exact}
    return frozenset(sides or {"midline" for _ in exact[:1]}), frozenset(zones)


def _measured(item: Shape) -> tuple[Fraction, _Profile, _Profile]:
    """Return the area as a share of the image, and the profiles along x and y; those of no area are not to be read."""
    height, width = item.size
    if item.kind == "box":
        sizes = (width, height, width, height)
        edges = (_exact(edge) / size for edge, size in zip(item.coordinates.tolist(), sizes, strict=True))
        left, top, right, bottom = (min(max(edge, Fraction(0)), Fraction(1)) for edge in edges)
        across, down = max(right - left, Fraction(0)), max(bottom - top, Fraction(0))
        return across * down, _Profile(left, across, (0, 1)), _Profile(top, down, (0, 1))
    drawn = item.draw()
    columns, rows = ([0, *np.cumsum(drawn.sum(axis=axis)).tolist()] for axis in (0, 1))
    profiles = _Profile(Fraction(0), Fraction(1, width), columns), _Profile(Fraction(0), Fraction(1, height), rows)
    return Fraction(columns[-1], drawn.size), *profiles


def _side(across: _Profile, field: LungField) -> str:
    right, left = across.before(field.band[0]), 1 - across.before(field.band[1])
    if 2 * (right + left) < 1:
        return "central"
    share = right / (right + left)
    return "right" if 10 * share >= 9 else "left" if 10 * share <= 1 else "crossing"


def _zone_shares(down: _Profile, field: LungField, margin: Fraction) -> dict[Places, Fraction]:
    """Return the share of an item in each set of zones, whose borders with other zones move by a margin."""
    before, shares = cache(down.before), {}
    for zones in ZONE_SETS:
        inside = [zone in zones for zone in ZONES]
        first, second = (
            border + (above - below) * margin
            for border, above, below in zip(field.borders, inside, inside[1:], strict=False)
        )
        parts = (before(first), before(second) - before(first), 1 - before(second))
        shares[zones] = sum((part for part, of in zip(parts, inside, strict=True) if of), Fraction(0))
    return shares


def _with_a_quarter(shares: Sequence[dict[Places, Fraction]]) -> Places:
    return frozenset(zone for zone in ZONES if any(4 * item[frozenset({zone})] >= 1 for item in shares))
