"""Regions lie on the side and in the zones that docs/words.md defines: exactly, and as counting pixels gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.geometry.location import ZONE_SETS, ZONES, LungField, locate, place_of
from xbench.geometry.shapes import FRACTIONS, Shape
from xbench.runtime.errors import UserError

REGIONS = [json.loads(line) for line in Path(__file__).with_name("regions.jsonl").read_text().splitlines()]
# On this size every bound of the rule, also a moved one, is an edge of pixels.
SIZE = (60, 20)
MIRRORED = {"left": "right", "right": "left"}


def boxes(items):
    return [Shape("box", FRACTIONS, np.array(item)) for item in items]


def drawn(*pixels):
    """An item of so many pixels from each place (row, column) downwards, or of one."""
    mask = np.zeros(SIZE, np.bool_)
    for row, column, *count in pixels:
        mask[row : row + (count[0] if count else 1), column] = True
    return Shape.from_mask(mask)


def slow(items):
    """Sides, zones, allowed zones and sets of zones that are enough, by counting pixels of masks."""
    masks = [item.draw() for item in items]
    most = max((mask.sum() for mask in masks), default=0)
    masks = [mask for mask in masks if mask.any() and 50 * mask.sum() >= most]
    sides, zones, allowed, fits = set(), set(), set(), {of: 0 for of in ZONE_SETS}
    for mask in masks:
        size, right, left = (int(part.sum()) for part in (mask, mask[:, :9], mask[:, 11:]))
        if 2 * (right + left) >= size:
            sides.add("right" if right >= 9 * left else "left" if left >= 9 * right else "crossing")
        for of in ZONE_SETS:
            upper, middle, lower = (zone in of for zone in ZONES)
            first, second = 20 + 3 * (upper - middle), 34 + 3 * (middle - lower)
            inside = upper * mask[:first].sum() + middle * mask[first:second].sum() + lower * mask[second:].sum()
            fits[of] += 2 * inside >= size
            if len(of) == 1:
                allowed |= of if 4 * inside >= size else set()
        for zone, part in zip(ZONES, np.split(mask, [20, 34]), strict=True):
            zones |= {zone} if 4 * part.sum() >= size else set()
    lateral = sides & {"left", "right"}
    lateral = set() if len(lateral) == 1 and "crossing" in sides else lateral
    return lateral, zones, allowed, {of for of, count in fits.items() if masks and 2 * count >= len(masks)}


@pytest.mark.parametrize("mirror", [False, True])
def test_given_regions_lie_where_they_should_also_on_a_mirrored_film(mirror):
    for region in REGIONS:
        items = [[1 - x1, y0, 1 - x0, y1] if mirror else [x0, y0, x1, y1] for x0, y0, x1, y1 in region["items"]]
        found = locate(boxes(items))
        sides = {MIRRORED[side] if mirror else side for side in region["sides"] or ()}
        assert (found.sides, found.zones, found.zones_allowed) == (
            sides,
            {*region["zones"]},
            {*region["zones_allowed"]},
        ), region["id"]


@st.composite
def shapes(draw):
    across, down = (sorted(draw(st.tuples(*[st.integers(0, most)] * 2))) for most in SIZE[::-1])
    box = np.array([across[0], down[0], across[1], down[1]], np.float64)
    kind = draw(st.sampled_from(["box", "polygon", "mask"]))
    if kind == "polygon":
        corners = draw(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 59)), min_size=3, max_size=6))
        return Shape.from_points(corners, draw(st.booleans())).on(*SIZE)
    return Shape("box", SIZE, box) if kind == "box" else Shape.from_mask(Shape("box", SIZE, box).draw())


@given(st.lists(shapes(), max_size=5))
def test_counting_pixels_gives_the_same(items):
    found = locate(items)
    assert (found.sides, found.zones, found.zones_allowed, found.enough) == slow(items)
    # The same boxes in fractions, which float64 rounds.
    if all(item.kind == "box" for item in items):
        assert locate(boxes(item.coordinates / [20, 60, 20, 60] for item in items)) == found


@pytest.mark.parametrize(
    ("items", "sides"),
    [
        ([drawn((0, 0, 5), (0, 9, 5))], {"right"}),  # half outside of the band is enough
        ([drawn((0, 0, 5), (0, 9, 6))], set()),
        ([drawn((0, 8, 9), (0, 11, 1))], {"right"}),  # nine tenths
        ([drawn((0, 8, 17), (0, 11, 2))], set()),
        ([drawn((0, 8, 1), (0, 11, 9))], {"left"}),
        ([drawn((0, 8, 2), (0, 11, 17))], set()),
        ([drawn((0, 9, 10)), drawn((0, 12, 9))], {"left"}),  # an item on the midline has no side
        ([drawn((0, 8, 9), (0, 11, 9)), drawn((0, 12, 9))], set()),  # one that crosses makes another's unclear
        ([drawn((0, 8, 9), (0, 11, 9)), drawn((0, 12, 9)), drawn((0, 2, 9))], {"left", "right"}),
        ([drawn((0, 8, 50)), drawn((0, 12, 1))], {"left", "right"}),  # 2 % of the largest
        ([drawn((0, 8, 51)), drawn((0, 12, 1))], {"right"}),
    ],
)
def test_bounds_of_sides(items, sides):
    assert locate(items).sides == sides == slow(items)[0]


@pytest.mark.parametrize(
    ("items", "zones", "allowed", "enough"),
    [
        ([drawn((0, 0), (37, 0, 3))], {"upper", "lower"}, {"upper", "lower"}, {"lower"}),  # a quarter
        ([drawn((0, 0), (37, 0, 4))], {"lower"}, {"lower"}, {"lower"}),
        ([drawn((22, 0))], {"middle"}, {"upper", "middle"}, {"upper", "middle"}),  # 0.05 in a zone's favor
        ([drawn((23, 0))], {"middle"}, {"middle"}, {"middle"}),
        ([drawn((31, 0))], {"middle"}, {"middle", "lower"}, {"middle", "lower"}),
        ([drawn((36, 0))], {"lower"}, {"middle", "lower"}, {"middle", "lower"}),
        ([drawn((37, 0))], {"lower"}, {"lower"}, {"lower"}),
        ([drawn((0, 0), (50, 0))], {"upper", "lower"}, {"upper", "lower"}, {"upper", "lower"}),  # half of an area
        ([drawn((0, 0), (50, 0, 2))], {"upper", "lower"}, {"upper", "lower"}, {"lower"}),
        ([drawn((0, 0)), drawn((50, 0))], {"upper", "lower"}, {"upper", "lower"}, {"upper", "lower"}),  # of items
        ([drawn((0, 0)), drawn((50, 0)), drawn((50, 1))], {"upper", "lower"}, {"upper", "lower"}, {"lower"}),
    ],
)
def test_bounds_of_zones(items, zones, allowed, enough):
    found = locate(items)
    assert (found.zones, found.zones_allowed) == (zones, allowed) == slow(items)[1:3]
    assert {zone for zone in ZONES if frozenset({zone}) in found.enough} == enough


def test_places_of_points():
    inside = [(0.45, 0.3), (0.55, 0.3), (0.5, 0.3)]
    assert [place_of([point])[0] for point in inside] == [{"midline"}] * 3
    assert place_of([*inside, (0.449999, 1)]) == ({"right"}, {"upper", "lower"})
    assert place_of([(0.550001, 0), (0.1, 0.5)]) == ({"left", "right"}, {"upper", "middle"})
    # The middle of row 8 of 15, which float64 rounds, is the border itself.
    assert [place_of([(0, y)])[1] for y in (0.333333, 1 / 3, 0.566666, 8.5 / 15)] == [
        {"upper"},
        {"middle"},
        {"middle"},
        {"lower"},
    ]
    assert place_of([]) == (frozenset(), frozenset())


def test_nothing_lies_nowhere_and_many_items_are_as_few():
    nowhere = (frozenset(),) * 4
    for items in ([], boxes([[0.2, 0.2, 0.2, 0.6]]), boxes([[1.0, 0.0, 1.5, 1.0]]), [drawn()]):
        found = locate(items)
        assert (found.sides, found.zones, found.zones_allowed, found.enough) == nowhere
    assert locate(boxes([[0.1, 0.1, 0.2, 0.2]] * 200)) == locate(boxes([[0.1, 0.1, 0.2, 0.2]]))


def test_a_lung_mask_moves_midline_and_zones():
    mask = np.zeros((120, 100), np.bool_)
    mask[20:90, 10:45] = mask[30:100, 52:80] = mask[5, 5] = True
    mask[60:70, 45] = True  # in ten of sixty rows the edge lies elsewhere, which the median ignores
    field = LungField.of_mask(mask)
    assert (field.midline, field.top, field.bottom) == (0.485, 25 / 120, 95 / 120)
    assert place_of([(0.43, 0.4), (0.536, 0.41)], field) == ({"right", "left"}, {"upper", "middle"})
    assert place_of([(0.435, 0.59), (0.535, 0.6)], field) == ({"midline"}, {"middle", "lower"})
    narrow = [Shape("box", (120, 100), np.array([44.0, 40.0, 48.0, 60.0]))]
    assert (locate(narrow).sides, locate(narrow, LungField(midline=0.53)).sides) == (set(), {"right"})
    for wrong in (np.zeros((9, 9), np.bool_), mask[:, :50], np.vstack([mask[:101, :50], mask[:, :50]])):
        with pytest.raises(UserError, match="two separate lungs"):
            LungField.of_mask(wrong)
