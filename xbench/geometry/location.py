"""Locate regions by the patient's side and the zone of the lungs; docs/words.md has the definitions.

In the standard view the patient's left is on the image's right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.geometry.shapes import Shape, connected_parts

ZONES = ("upper", "middle", "lower")
"""From the top of the lungs to the bottom."""
ZONE_SETS = tuple(frozenset(zones) for count in (1, 2, 3) for zones in combinations(ZONES, count))
"""All nonempty sets of zones."""
Places = frozenset[str]
"""Sides or zones."""
# Positions along an axis, and the share of an item's area before each, linear in between.
_Profile = tuple[NDArray[np.float64], NDArray[np.float64]]

_MARGIN = 0.05
# Digits of shares and distances, so that float64 rounding does not move a pixel across a bound.
_DIGITS = 9


@dataclass(frozen=True)
class LungField:
    """Midline and vertical extent of the lungs as fractions of the radiograph; ValueError if they are impossible."""

    midline: float = 0.5
    top: float = 0.10
    bottom: float = 0.80

    def __post_init__(self) -> None:
        if not (0 <= self.midline <= 1 and 0 <= self.top < self.bottom <= 1):
            raise ValueError(f"{self} is not within an image, with the top above the bottom")

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> Self:
        """Measure the two largest connected parts of a mask (H, W) of both lungs.

        The midline is the median over rows of the middle between their inner edges; top and bottom are means of both
        lungs. Raises a ValueError if there are no two parts side by side.
        """
        height, width = mask.shape
        _, labels, stats, _ = cv2.connectedComponentsWithStats(np.asarray(mask, np.uint8), connectivity=8)
        largest = 1 + np.argsort(-stats[1:, cv2.CC_STAT_AREA], kind="stable")[:2]
        parts = [labels == part for part in sorted(largest, key=lambda part: stats[part, cv2.CC_STAT_LEFT])]
        rows = np.flatnonzero(np.all([part.any(axis=1) for part in parts], axis=0) & (len(parts) == 2))
        if not len(rows):
            raise ValueError("it does not show two separate lungs side by side; give each lung a part")
        inner = width - parts[0][rows, ::-1].argmax(axis=1) + parts[1][rows].argmax(axis=1)
        tops, heights = stats[largest, cv2.CC_STAT_TOP], stats[largest, cv2.CC_STAT_HEIGHT]
        extent = (float(edges.sum()) / (2 * height) for edges in (tops, tops + heights))
        return cls(float(np.median(inner)) / (2 * width), *extent)

    @property
    def borders(self) -> NDArray[np.float64]:
        """Upper and lower border of the middle zone (2,)."""
        return np.array([2 * self.top + self.bottom, self.top + 2 * self.bottom]) / 3


STANDARD = LungField()
"""The lung field of a radiograph without a lung mask."""


@dataclass(frozen=True)
class Location:
    """Where the items of a finding lie; all sets are empty if no item has an area."""

    sides: Places  # of `left` and `right`, the patient's; empty if unclear
    zones: Places  # zones with at least a quarter of an item's area
    zones_allowed: Places  # the same with borders moved in a zone's favor
    enough: frozenset[Places]  # sets of zones with half of the area of half of the items, borders moved


def apart(items: Sequence[Shape]) -> Sequence[Shape]:
    """Return the items, or the connected parts of a single mask, because it may be a union."""
    return connected_parts(items[0].draw()) if [item.kind for item in items] == ["mask"] else items


def locate(items: Sequence[Shape], field: LungField = STANDARD) -> Location:
    """Locate the annotated items of a finding on an image; pass them through `apart` if they may be one union.

    Boxes are measured by their edges, polygons and masks by their pixels. Items below 2% of the largest do not count.
    """
    measured = [_measured(item) for item in items]
    largest = max((area for area, _, _ in measured), default=0.0)
    kept = [profiles for area, *profiles in measured if area > 0 and round(area / largest, _DIGITS) >= 0.02]
    found = {_side(across, field) for across, _ in kept}
    sides = found & {"left", "right"}
    fixed, moved = ([_zone_shares(down, field, margin) for _, down in kept] for margin in (0, _MARGIN))
    zones, allowed = (
        frozenset(zone for zone in ZONES if any(item[frozenset({zone})] >= 0.25 for item in shares))
        for shares in (fixed, moved)
    )
    enough = (of for of in ZONE_SETS if kept and 2 * sum(item[of] >= 0.5 for item in moved) >= len(kept))
    clear = len(sides) == 2 or "crossing" not in found
    return Location(frozenset(sides if clear else ()), zones, allowed, frozenset(enough))


def place_of(points: Sequence[tuple[float, float]], field: LungField = STANDARD) -> tuple[Places, Places]:
    """Return the sides and zones of points (x, y) in fractions of the radiograph: peaks, or centers of boxes.

    Points within the margin around the midline have no side; if all lie there, the side is `midline`.
    """
    away = [round(x - field.midline, _DIGITS) for x, _ in points]
    sides = {"left" if x > 0 else "right" for x in away if abs(x) > _MARGIN}
    zones = {ZONES[sum(round(y - border, _DIGITS) >= 0 for border in field.borders)] for _, y in points}
    return frozenset(sides or {"midline" for _ in away}), frozenset(zones)


def _measured(item: Shape) -> tuple[float, _Profile, _Profile]:
    if item.kind == "box":
        edges = np.clip(item.coordinates.reshape(2, 2) / item.size[::-1], 0, 1)
        whole = np.array([0.0, 1.0])
        return float(np.prod(np.clip(edges[1] - edges[0], 0, None))), (edges[:, 0], whole), (edges[:, 1], whole)
    drawn = item.draw()
    shares = (np.cumsum([0, *drawn.sum(axis=axis)]) / max(int(drawn.sum()), 1) for axis in (0, 1))
    across, down = ((np.linspace(0, 1, len(before)), before) for before in shares)
    return float(drawn.mean()), across, down


def _side(across: _Profile, field: LungField) -> str:
    right, other = np.interp([field.midline - _MARGIN, field.midline + _MARGIN], *across)
    lateral = right + 1 - other
    if round(lateral, _DIGITS) < 0.5:
        return "central"
    share = round(right / lateral, _DIGITS)
    return "right" if share >= 0.9 else "left" if share <= 0.1 else "crossing"


def _zone_shares(down: _Profile, field: LungField, margin: float) -> dict[Places, float]:
    """Return the share of an item in each set of zones, with the set's outer borders moved by a margin."""
    shares = {}
    for zones in ZONE_SETS:
        upper, middle, lower = (zone in zones for zone in ZONES)
        moves = np.array([upper - middle, middle - lower])
        first, second = np.interp(field.borders + margin * moves, *down)
        shares[zones] = round(upper * first + middle * (second - first) + lower * (1 - second), _DIGITS)
    return shares
