from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.commands.words import words
from xbench.geometry.location import ZONE_SETS, ZONES, LungField, apart, locate, place_of
from xbench.geometry.shapes import FRACTIONS, Shape
from xbench.runtime.errors import UserError

# On this size every bound of the rule, also a moved one, is an edge of pixels.
SIZE = (60, 20)


def boxes(items):
    return [Shape("box", FRACTIONS, np.array(item)) for item in items]


def sets(location):
    return tuple(vars(location).values())


def slow(items):
    masks = [item.draw() for item in items]
    most = max((mask.sum() for mask in masks), default=0)
    masks = [mask for mask in masks if mask.any() and 50 * mask.sum() >= most]
    sides, zones, allowed, fits = set(), set(), set(), dict.fromkeys(ZONE_SETS, 0)
    for mask in masks:
        size, right, left = (int(part.sum()) for part in (mask, mask[:, :9], mask[:, 11:]))
        if 2 * (right + left) >= size:
            sides.add("right" if right >= 9 * left else "left" if left >= 9 * right else "crossing")
        for of in ZONE_SETS:
            upper, middle, lower = (zone in of for zone in ZONES)
            first, second = 20 + 3 * (upper - middle), 34 + 3 * (middle - lower)
            inside = upper * mask[:first].sum() + middle * mask[first:second].sum() + lower * mask[second:].sum()
            fits[of] += 2 * inside >= size
            allowed |= of if len(of) == 1 and 4 * inside >= size else set()
        parts = np.split(mask, [20, 34])
        zones |= {zone for zone, part in zip(ZONES, parts, strict=True) if 4 * part.sum() >= size}
    lateral = sides & {"left", "right"}
    lateral = set() if len(lateral) == 1 and "crossing" in sides else lateral
    return lateral, zones, allowed, {of for of, count in fits.items() if masks and 2 * count >= len(masks)}


@pytest.mark.parametrize("mirror", [False, True])
def test_given_regions_lie_where_they_should_also_on_a_mirrored_film(mirror):
    for line in Path(__file__).with_name("regions.jsonl").read_text(encoding="utf-8").splitlines():
        region = json.loads(line)
        items = [[1 - x1, y0, 1 - x0, y1] if mirror else [x0, y0, x1, y1] for x0, y0, x1, y1 in region["items"]]
        sides = {{"left": "right", "right": "left"}[side] if mirror else side for side in region["sides"] or ()}
        expected = sides, {*region["zones"]}, {*region["zones_allowed"]}
        assert sets(locate(boxes(items)))[:3] == expected, region["id"]


def test_the_command_writes_a_line_for_each_region(tmp_path):
    regions, out = Path(__file__).with_name("regions.jsonl"), tmp_path / "out.jsonl"
    words(Namespace(file=None, regions=regions, words=None, out=out))
    given, found = ([json.loads(line) for line in path.read_text().splitlines()] for path in (regions, out))
    assert found == [{key: region[key] for key in ("id", "sides", "zones", "zones_allowed")} for region in given]
    out.write_text('{"id": "a", "items": []}\n{"id": "b", "items": [[0, 0, 1]]}\n')
    again = tmp_path / "again.jsonl"
    for wrong, named in ((out, "line 2 has no `items`"), (None, "not both"), (again, "is the file that is")):
        with pytest.raises(UserError, match=named):
            words(Namespace(file=None, regions=wrong, words=None, out=again))


@st.composite
def shapes(draw):
    across, down = (sorted(draw(st.tuples(*[st.integers(0, most)] * 2))) for most in SIZE[::-1])
    kind = draw(st.sampled_from(["box", "polygon", "mask"]))
    if kind == "polygon":
        corners = draw(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 59)), min_size=3, max_size=6))
        return Shape.from_points(corners, draw(st.booleans())).on(*SIZE)
    box = Shape("box", SIZE, np.array([across[0], down[0], across[1], down[1]], np.float64))
    return box if kind == "box" else Shape.from_mask(box.draw())


@given(st.lists(shapes(), max_size=5))
def test_counting_pixels_gives_the_same(items):
    found = locate(items)
    assert sets(found) == slow(items)
    # The same boxes in fractions, which float64 rounds.
    if all(item.kind == "box" for item in items):
        assert locate(boxes(item.coordinates / [20, 60, 20, 60] for item in items)) == found


@pytest.mark.parametrize(
    ("items", "sides", "zones", "allowed", "enough"),
    [
        # Each item is a list of row, column and number of pixels downwards.
        ([[(0, 0, 5), (0, 9, 5)]], "right", "upper", "upper", "upper"),  # half outside of the band is enough
        ([[(0, 0, 5), (0, 9, 6)]], "", "upper", "upper", "upper"),
        ([[(0, 8, 9), (0, 11, 1)]], "right", "upper", "upper", "upper"),  # nine tenths
        ([[(0, 8, 17), (0, 11, 2)]], "", "upper", "upper", "upper"),
        ([[(0, 8, 1), (0, 11, 9)]], "left", "upper", "upper", "upper"),
        ([[(0, 8, 2), (0, 11, 17)]], "", "upper", "upper", "upper"),
        ([[(0, 9, 9)], [(0, 12, 9)]], "left", "upper", "upper", "upper"),  # an item on the midline has no side
        ([[(0, 8, 9), (0, 11, 9)], [(0, 12, 9)]], "", "upper", "upper", "upper"),  # another that crosses: unclear
        ([[(0, 8, 9), (0, 11, 9)], [(0, 12, 9)], [(0, 2, 9)]], "left right", "upper", "upper", "upper"),
        ([[(0, 8, 50)], [(0, 12, 1)]], "left right", *["upper middle lower"] * 2, "upper"),  # 2 % of the largest
        ([[(0, 8, 51)], [(0, 12, 1)]], "right", *["upper middle lower"] * 2, ""),
        ([[(0, 0, 1), (37, 0, 3)]], "right", "upper lower", "upper lower", "lower"),  # a quarter of the area
        ([[(0, 0, 1), (37, 0, 4)]], "right", "lower", "lower", "lower"),
        ([[(22, 0, 1)]], "right", "middle", "upper middle", "upper middle"),  # a border moves by 0.05
        ([[(23, 0, 1)]], "right", "middle", "middle", "middle"),
        ([[(30, 0, 1)]], "right", "middle", "middle", "middle"),
        ([[(31, 0, 1)]], "right", "middle", "middle lower", "middle lower"),
        ([[(36, 0, 1)]], "right", "lower", "middle lower", "middle lower"),
        ([[(37, 0, 1)]], "right", "lower", "lower", "lower"),
        ([[(0, 0, 1), (50, 0, 1)]], "right", "upper lower", "upper lower", "upper lower"),  # half of the area
        ([[(0, 0, 1), (50, 0, 2)]], "right", "upper lower", "upper lower", "lower"),
        ([[(0, 0, 1)], [(50, 0, 1)]], "right", "upper lower", "upper lower", "upper lower"),  # half of the items
        ([[(0, 0, 1)], [(50, 0, 1)], [(50, 1, 1)]], "right", "upper lower", "upper lower", "lower"),
    ],
)
def test_each_bound(items, sides, zones, allowed, enough):
    masks = np.zeros((len(items), *SIZE), np.bool_)
    for mask, pixels in zip(masks, items, strict=True):
        for row, column, count in pixels:
            mask[row : row + count, column] = True
    shapes = [Shape.from_mask(mask) for mask in masks]
    found = sets(locate(shapes))
    assert found == slow(shapes) and found[:3] == ({*sides.split()}, {*zones.split()}, {*allowed.split()})
    assert {zone for zone in ZONES if frozenset({zone}) in found[3]} == {*enough.split()}


def test_places_of_points():
    inside = [(0.45, 0.3), (0.55, 0.3), (0.5, 0.3)]
    assert [place_of([point])[0] for point in inside] == [{"midline"}] * 3
    assert place_of([*inside, (0.449999, 1)]) == ({"right"}, {"upper", "lower"})
    assert place_of([(0.550001, 0), (0.1, 0.5)]) == ({"left", "right"}, {"upper", "middle"})
    # The middle of row 8 of 15 is the border itself, whatever float64 makes of it.
    zones = [place_of([(0, y)])[1] for y in (0.333333, 1 / 3, 0.566666, 8.5 / 15)]
    assert zones == [{"upper"}, {"middle"}, {"middle"}, {"lower"}] and place_of([]) == (set(), set())


def test_nothing_lies_nowhere_and_many_items_are_as_few():
    empty = Shape.from_mask(np.zeros(SIZE, np.bool_))
    for items in ([], boxes([[0.2, 0.2, 0.2, 0.6]]), boxes([[1.0, 0.0, 1.5, 1.0]]), [empty]):
        assert sets(locate(items)) == (set(),) * 4
    assert locate(boxes([[0.1, 0.1, 0.2, 0.2]] * 200)) == locate(boxes([[0.1, 0.1, 0.2, 0.2]]))


def test_a_single_mask_is_a_union_and_several_are_items():
    drawn = np.zeros((2, *SIZE), np.bool_)
    drawn[0, :9, :2] = drawn[1, -9:, -2:] = True
    union, items = Shape.from_mask(drawn[0] | drawn[1]), [Shape.from_mask(mask) for mask in drawn]
    assert locate(apart([union])) == locate(items) and locate(items).sides == {"left", "right"}
    assert locate(apart([union, union])).sides == set()


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
        with pytest.raises(ValueError, match="two separate lungs"):
            LungField.of_mask(wrong)
    for numbers in ((0.5, 0.8, 0.8), (1.01, 0.1, 0.8), (0.5, -0.1, 0.8), (0.5, 0.1, 1.1)):
        with pytest.raises(ValueError, match="the top above the bottom"):
            LungField(*numbers)
