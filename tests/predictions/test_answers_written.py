from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.metrics import box_iou
from xbench.predictions.answer import Answer, Box, Size, outline_boxes
from xbench.predictions.conventions import Convention
from xbench.predictions.families import FAMILIES, Family

SIZES = [(1024, 1024), (512, 1537), (3056, 2544), (641, 480), (301, 4999)]
CONVENTIONS = {name: [family.convention] for name, family in FAMILIES.items()}
CONVENTIONS["medgemma"].append(Convention.named("thousand_whole_yx"))
CONVENTIONS["endpoint"] += [
    Convention.named(name) for name in ("pixels_sent", "pixels_sent@768x640", "pixels_resized_yx", "thousand_padded")
]
CASES = [
    (name, convention, size)
    for name, conventions in CONVENTIONS.items()
    for convention, size in product(conventions, SIZES)
]


def oracle_answer(
    family: Family, boxes: list[Box], finding: str, convention: Convention, size: tuple[int, int]
) -> Answer:
    return family.read(family.write(boxes, finding, convention, size), "stop", convention, size)


def _boxes_in_reach(convention: Convention, size: tuple[int, int], count: int) -> list[Box]:
    """Boxes of a twentieth or more of what is in reach, far from the diagonal that exchanged axes would keep."""
    random, reach = np.random.default_rng(3), []
    for axis in convention.axes(Size(*size)):
        reach.append((max(axis.start / axis.side, 0), min((axis.start + axis.extent) / axis.side, 1)))
    boxes = []
    for _ in range(count):
        x0, y0 = random.uniform(0, 0.3), random.uniform(0.5, 0.7)
        unit = ((x0, x0 + random.uniform(0.05, 0.2)), (y0, y0 + random.uniform(0.05, 0.3)))
        (left, right), (top, bottom) = (
            [low + end * (high - low) for end in ends] for ends, (low, high) in zip(unit, reach, strict=True)
        )
        boxes.append(Box(left, top, right, bottom))
    return boxes


@pytest.mark.parametrize(("name", "convention", "size"), CASES, ids=lambda case: getattr(case, "name", str(case)))
def test_the_truth_comes_back_to_within_a_cell_and_not_with_exchanged_axes(
    name: str, convention: Convention, size: tuple[int, int]
) -> None:
    family, overlaps = FAMILIES[name], []
    for box in _boxes_in_reach(convention, size, 20):
        answer = oracle_answer(family, [box], "lung nodule", convention, size)
        assert answer.status == "answered" and answer.counts.dropped == 0 and not answer.suspect_frame
        for axis, *ends in zip(convention.axes(Size(*size)), (0, 1), (2, 3), strict=True):
            cell = (convention.step / 2 / axis.top * axis.extent + axis.whole_pixels) / axis.side
            assert all(abs(answer.boxes[0][end] - box[end]) <= cell + 1e-9 for end in ends)
        exchanged = replace(convention, y_first=not convention.y_first)
        wrong = family.read(family.write([box], "lung nodule", exchanged, size), "stop", convention, size)
        overlaps.append((box_iou(answer.boxes, [box]), box_iou(wrong.boxes, [box])))
    right, exchanged_axes = np.mean(overlaps, axis=0)
    assert right > 0.8 and exchanged_axes < 0.1


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_written_as_nothing_and_small_boxes_survive(name: str, size: tuple[int, int]) -> None:
    family = FAMILIES[name]
    assert oracle_answer(family, [], "lung nodule", family.convention, size).status == "abstained"
    for place in (0.4, 0.5, 0.501, 0.6):
        tiny = Box(0.5, place, 0.5 + 1e-6, place + 1e-6)
        answer = oracle_answer(family, [tiny], "lung nodule", family.convention, size)
        if size != (301, 4999) or 0.47 < place < 0.53:  # beyond, a centre square of this shape sees nothing
            assert answer.status == "answered" and len(answer.boxes) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_prose_around_an_answer_changes_nothing(name: str) -> None:
    family = FAMILIES[name]
    boxes = [Box(0.2, 0.3, 0.4, 0.5), Box(0.55, 0.31, 0.7, 0.6)]
    raw = family.write(boxes, "lung nodule", family.convention, (1024, 1024))
    bare, wrapped = (
        family.read(text, "stop", family.convention, (1024, 1024)) for text in (raw, f"See here: {raw} Thank you.")
    )
    assert len(bare.boxes) == 2
    if name != "chex":  # a tensor, around which there is nothing
        assert wrapped.boxes == bare.boxes and wrapped.counts == bare.counts


@given(
    st.sampled_from([convention for conventions in CONVENTIONS.values() for convention in conventions]),
    st.tuples(st.integers(28, 4000), st.integers(28, 4000)),
    st.floats(0, 1),
)
@settings(max_examples=300)
def test_frames_lead_back_to_where_they_came_from(convention: Convention, size: tuple[int, int], place: float) -> None:
    for axis in convention.axes(Size(*size)):
        low, high = (pixels / axis.side for pixels in (axis.start, axis.start + axis.extent))
        back = axis.to_fraction(axis.from_fraction(place))
        off = (axis.extent / axis.top / 2 * axis.bins + axis.whole_pixels) / axis.side + 1e-9
        assert abs(back - min(max(place, low), high)) <= off


def test_frames_travel_between_processes() -> None:
    convention = Convention.named("pixels_resized").shown(2548, 3052)
    again: Any = pickle.loads(pickle.dumps(convention))
    assert again == convention and again.name == "pixels_resized@2548x3052"
    assert [axis.top for axis in again.axes(Size(10, 10))] == [2548, 3052]


def test_the_outline_has_a_box_for_each_part() -> None:
    region = np.zeros((4, 8), np.bool_)
    region[0, 0] = region[1, 1] = region[3, 4:] = True
    assert outline_boxes(region) == [(0, 0, 0.25, 0.5), (0.5, 0.75, 1, 1)]
