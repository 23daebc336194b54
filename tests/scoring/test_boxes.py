from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from xbench.geometry.regions import Coverage
from xbench.metrics import BoxScores, PointingGame, ThresholdSweep, box_iou, draw_boxes, score_boxes, score_on_grid
from xbench.predictions.answer import Answer, Box, Counts, Status
from xbench.scoring.boxes import matched_boxes, pairwise_iou, union_areas

CELLS = 16

_sides = st.tuples(st.integers(0, CELLS - 1), st.integers(1, CELLS)).map(
    lambda side: (min(side), max(*side, side[0] + 1))
)
_box = st.tuples(_sides, _sides).map(lambda sides: tuple(sides[axis][end] / CELLS for end in (0, 1) for axis in (0, 1)))
_boxes = st.lists(_box, max_size=5)

TRUE = [[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]
ANSWERED = [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5]]


def _painted(boxes: Any) -> NDArray[np.bool_]:
    grid = np.zeros((CELLS, CELLS), np.bool_)
    for box in boxes:
        x0, y0, x1, y1 = (round(one * CELLS) for one in box)
        grid[y0:y1, x0:x1] = True
    return grid


@given(_boxes, _boxes)
@settings(max_examples=200)
def test_areas_of_unions_are_those_of_painted_grids(one: Any, other: Any) -> None:
    shared, either = (int(op(_painted(one), _painted(other)).sum()) for op in (np.logical_and, np.logical_or))
    assert union_areas(one, other) == (shared / CELLS**2, either / CELLS**2)  # sixteenths are exact
    assert box_iou(one, other) == (shared / either if either else 0)


@given(_boxes, st.lists(_box, min_size=1, max_size=5), st.randoms())
@settings(max_examples=100)
def test_no_order_of_boxes_changes_a_score(predicted: Any, true: Any, random: Any) -> None:
    scores = score_boxes(predicted, true)
    random.shuffle(predicted)
    random.shuffle(true)
    assert score_boxes(predicted, true) == scores


@given(st.lists(_box, min_size=1, max_size=4), st.lists(_box, min_size=1, max_size=4), st.sampled_from([0.3, 0.5]))
@settings(max_examples=100)
def test_the_matching_is_the_best_of_all(predicted: Any, true: Any, threshold: float) -> None:
    iou = pairwise_iou(predicted, true)
    few = iou.T if iou.shape[0] > iou.shape[1] else iou
    rows = range(len(few))
    many = max(
        sum(few[row, column] >= threshold for row, column in zip(rows, order, strict=True))
        for order in permutations(range(few.shape[1]), len(few))
    )
    assert matched_boxes(iou, threshold) == many


@given(
    st.lists(_box, max_size=5), st.sampled_from([(4, 4), (5, 7), (16, 16), (3, 16)]), st.sampled_from([0.25, 0.5, 1.0])
)
@settings(max_examples=200)
def test_boxes_are_drawn_by_the_rule_for_regions(boxes: Any, size: tuple[int, int], gamma: float) -> None:
    assert np.array_equal(draw_boxes(boxes, size, gamma), Coverage.of(_painted(boxes), size).at(gamma))


@given(st.lists(_box, min_size=1, max_size=3), st.lists(_box, min_size=1, max_size=3))
@settings(max_examples=30)
def test_drawn_boxes_score_as_a_map_of_two_values_does(boxes: Any, true: Any) -> None:
    drawn, region = draw_boxes(boxes, (8, 8)), draw_boxes(true, (8, 8))
    batch = (
        torch.tensor(drawn)[None, None].float(),
        torch.tensor(region)[None, None],
        torch.ones(1, 1, dtype=torch.bool),
    )
    game, sweep = PointingGame(1), ThresholdSweep(1, thresholds=3)
    game.update(*batch)
    sweep.update(*batch)
    scores = score_on_grid(boxes, region)
    assert scores.pointing == pytest.approx(game.compute()["pointing_game"].item(), abs=1e-7)
    if not drawn.all():  # normalized, a map of ones alone would be one of zeros
        curves = sweep.compute()
        expected = curves["dice"][0, 1].item(), curves["iou"][0, 1].item()
        assert (scores.dice, scores.iou) == pytest.approx(expected, abs=1e-7)


def test_points_hit_by_their_share_and_nothing_misses() -> None:
    region = np.zeros((2, 4), np.bool_)
    region[1, 3] = True
    assert score_on_grid([], region, [[1, 1], [0.75, 0.5], [0.74, 1], [0, 0]]) == (0.5, None, None)
    assert score_on_grid([], region) == (0, 0, 0)
    assert score_on_grid([[0.75, 0.5, 1, 1]], region, [[0, 0]]) == (1, 1, 1)


def _drawn_plainly(boxes: Any, size: tuple[int, int], gamma: float) -> Any:
    corners, scale = np.asarray(boxes).reshape(-1, 4), [size[1], size[0], size[1], size[0]]

    def coverage(some: Any) -> Any:
        scaled = some * scale
        xs = np.unique([*scaled[:, 0::2].ravel(), *range(size[1] + 1)])
        ys = np.unique([*scaled[:, 1::2].ravel(), *range(size[0] + 1)])
        inside = np.zeros((len(ys) - 1, len(xs) - 1))
        for x0, y0, x1, y1 in scaled:
            inside[np.ix_((ys[:-1] >= y0) & (ys[:-1] < y1), (xs[:-1] >= x0) & (xs[:-1] < x1))] = 1
        cells, found = inside * np.diff(ys)[:, None] * np.diff(xs), np.zeros(size)
        np.add.at(found, np.ix_(np.floor(ys[:-1]).astype(int), np.floor(xs[:-1]).astype(int)), cells)
        return found

    drawn = coverage(corners) >= gamma - 1e-12
    touching = (corners[:, None, :2] <= corners[None, :, 2:]).all(axis=2)
    count, part = connected_components(touching & touching.T) if len(corners) else (0, None)
    for number in range(count):
        alone = coverage(corners[part == number])
        if alone.max() < 1 - 1e-12:
            drawn |= alone >= alone.max() - 1e-12
    return drawn


@pytest.mark.parametrize(("many", "longest"), [(4, 1.0), (12, 0.1), (40, 0.02), (300, 0.01)])
@pytest.mark.parametrize(("size", "gamma"), [((5, 7), 0.5), ((64, 48), 1.0), ((1, 1), 0.25), ((224, 224), 0.5)])
def test_boxes_are_drawn_as_one_by_one(many: int, longest: float, size: tuple[int, int], gamma: float) -> None:
    """To the pixel, with edges anywhere, overlapping, touching and apart."""
    draw = np.random.default_rng(many)
    for _ in range(3):
        starts, ends = np.sort([draw.random((many, 2)), draw.random((many, 2))], axis=0)
        boxes = np.concatenate([starts, starts + np.clip(ends - starts, 1e-3, longest)], axis=1).clip(max=1)
        boxes[: many // 2] = np.round(boxes[: many // 2] * 64) / 64
        boxes = boxes[(boxes[:, :2] < boxes[:, 2:]).all(axis=1)]
        assert np.array_equal(draw_boxes(boxes, size, gamma), _drawn_plainly(boxes, size, gamma))


def test_the_example_by_hand() -> None:
    scores = score_boxes(ANSWERED, TRUE)
    assert scores.box_iou == 1 / 3
    assert (scores.centre_hit, scores.best_iou, scores.matched_50) == (0.5, 1, 1)
    answered, true = draw_boxes(ANSWERED, (4, 4)), draw_boxes(TRUE, (4, 4))
    both = (answered & true).sum()
    assert (2 * both / (answered.sum() + true.sum()), both / (answered | true).sum()) == (0.5, 1 / 3)


@pytest.mark.parametrize("half", [[0, 0, 0.1, 0.3], [0.1, 0.1, 0.3, 0.2], [0.7, 0.1, 0.8, 0.4]])
def test_an_iou_of_one_half_is_not_above_one_half(half: list[float]) -> None:
    x0, y0, x1, y1 = half
    twice = [x0, y0, x0 + 2 * (x1 - x0), y1]
    scores = score_boxes([half], [twice])
    assert scores.matched_50 == 1


def test_no_box_is_a_miss_and_a_union_has_no_instances() -> None:
    none = score_boxes([], TRUE)
    assert (none.box_iou, none.centre_hit, none.best_iou, none.matched_50) == (0, 0, 0, 0)
    union = score_boxes(ANSWERED, TRUE, instances=False)
    assert (union.best_iou, union.matched_30) == (None, None) and union.box_iou == 1 / 3
    with pytest.raises(ValueError, match="x0 < x1"):
        score_boxes([[0.5, 0, 0.5, 1]], TRUE)


def _answer(status: Status, boxes: Any = (), **counts: int) -> Answer:
    boxes = tuple(Box(*box) for box in boxes)
    return Answer(status, "", boxes, confidence=(None,) * len(boxes), counts=Counts(**counts))


def _pairs() -> list[tuple[Answer, int, Any]]:
    return [
        (_answer("answered", ANSWERED, clipped=2), 0, TRUE),
        (_answer("answered", TRUE), 0, TRUE),
        (_answer("abstained"), 0, TRUE),
        (_answer("truncated", ANSWERED[:1]), 0, TRUE[:1]),
        (_answer("unparsable", dropped=1), 1, TRUE),
        (_answer("answered", [[0, 0, 0.5, 0.5]]), 1, None),
        (_answer("abstained"), 1, None),
    ]


def test_scores_per_finding_and_rates() -> None:
    metric = BoxScores(3)
    metric.update([], [], [])
    metric.update(*zip(*_pairs(), strict=True))
    first, second, third = metric.compute()
    assert first["box_iou"] == pytest.approx((1 / 3 + 1 + 0 + 1) / 4, abs=1e-12)
    assert (first["acc_30"], first["acc_50"], first["centre_hit"]) == (0.75, 0.5, 0.625)
    # Of five boxes answered and seven annotated, four match.
    assert (first["precision_50"], first["recall_50"], first["f1_50"]) == (4 / 5, 4 / 7, 8 / 12)
    assert [first[status] for status in ("answered", "abstained", "unparsable", "truncated")] == [0.5, 0.25, 0, 0.25]
    assert (first["boxes"], first["clipped"], first["count_error"], first["false_alarm"]) == (5 / 4, 0.25, -0.5, None)
    assert (second["pairs"], second["negatives"], second["false_alarm"], second["false_area"]) == (1, 2, 0.5, 0.125)
    assert (second["unparsable"], second["dropped"], second["precision_50"], second["recall_50"]) == (1, 1, None, 0)
    assert third["pairs"] == 0 and {value for name, value in third.items() if name not in ("pairs", "negatives")} == {
        None
    }


def test_states_are_the_same_in_any_order_and_any_parts() -> None:
    whole, parts = BoxScores(2), [BoxScores(2), BoxScores(2)]
    whole.update(*zip(*_pairs(), strict=True))
    for number, pair in enumerate(reversed(_pairs())):
        parts[number % 2].update(*zip(pair, strict=True))
    for name in ("counts", "score_sum"):
        assert torch.equal(getattr(whole, name), getattr(parts[0], name) + getattr(parts[1], name))
        assert getattr(whole.half(), name).dtype == torch.int64
