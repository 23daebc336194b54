"""Compare answered boxes with annotated ones, in continuous fractions of the radiograph, without a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xbench.predictions.answer import Answer
from xbench.scoring.numbers import ROUNDING, dice, iou

if TYPE_CHECKING:
    from xbench.types import TieRule

Boxes = NDArray[np.float64]


@dataclass(frozen=True)
class BoxPair:
    """Scores of the boxes answered for one pair: 0 without a box, None if only the annotated union is known."""

    box_iou: float  # IoU of the two unions
    centre_hit: float  # share of answered boxes whose center lies in an annotated box, including its border
    best_iou: float | None  # largest of an answered with an annotated box; flattering with several boxes
    matched_30: int | None  # pairs in the best one-to-one matching at IoU >= 0.3
    matched_50: int | None  # the same at 0.5


class GridScores(NamedTuple):
    """Scores of an answer on the evaluation grid; without a box or point all are 0."""

    pointing: float
    dice: float | None  # None for points, which have no area
    iou: float | None


def union_areas(one: ArrayLike, other: ArrayLike) -> tuple[float, float]:
    """Return the areas of intersection and union of two unions of boxes (N, 4) and (M, 4), exact except for rounding.

    The plane is cut at all edges and strips are summed, so the order of the boxes does not matter.

    Examples:
        >>> union_areas([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]], [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5]])
        (0.25, 0.75)
    """
    sides = [_boxes(one), _boxes(other)]
    both = np.concatenate(sides)
    xs, ys = np.unique(both[:, 0::2]), np.unique(both[:, 1::2])
    if not len(both):
        return 0.0, 0.0
    heights, covered = np.diff(ys), np.zeros((2, max(len(ys) - 1, 0)), np.int64)
    # Events at each x: the union, first and last row, and +1 for a begin or -1 for an end.
    side = np.repeat([0, 1], [len(sides[0]), len(sides[1])])
    low, high = np.searchsorted(ys, both[:, 1]), np.searchsorted(ys, both[:, 3])
    at = np.concatenate([np.searchsorted(xs, both[:, 0]), np.searchsorted(xs, both[:, 2])])
    order = np.argsort(at, kind="stable")
    edges = np.split(order, np.searchsorted(at[order], np.arange(1, len(xs))))
    shared, either = [], []
    for width, edge in zip(np.diff(xs), edges, strict=False):
        for one_edge in edge:
            box, change = (one_edge, 1) if one_edge < len(both) else (one_edge - len(both), -1)
            covered[side[box], low[box] : high[box]] += change
        inside = covered > 0
        shared.append(width * heights[inside[0] & inside[1]].sum())
        either.append(width * heights[inside[0] | inside[1]].sum())
    return math.fsum(shared), math.fsum(either)


def box_iou(predicted: ArrayLike, annotated: ArrayLike) -> float:
    """Return the IoU of the unions of answered (N, 4) and annotated (M, 4) boxes; 0 if either is empty."""
    shared, either = union_areas(predicted, annotated)
    return shared / either if either else 0.0


def pairwise_iou(predicted: ArrayLike, annotated: ArrayLike) -> NDArray[np.float64]:
    """Return the IoU of each answered (N, 4) with each annotated (M, 4) box, all with positive area: (N, M)."""
    one, other = _boxes(predicted)[:, None], _boxes(annotated)[None]
    low, high = np.maximum(one[..., :2], other[..., :2]), np.minimum(one[..., 2:], other[..., 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(boxes[..., 2:] - boxes[..., :2], axis=2) for boxes in (one, other)]
    return iou(areas[0], shared, areas[1])


def matched_boxes(iou: NDArray[np.float64], threshold: float) -> int:
    """Return the number of pairs with IoU (N, M) >= `threshold` in the best one-to-one matching, in any order."""
    from scipy.optimize import linear_sum_assignment

    if not iou.size:
        return 0
    good = iou >= threshold - ROUNDING
    weights = np.where(good, 1 + iou / (1 + min(iou.shape)), 0)
    rows, columns = linear_sum_assignment(weights, maximize=True)
    return int(good[rows, columns].sum())


def score_boxes(predicted: ArrayLike, annotated: ArrayLike, instances: bool = True) -> BoxPair:
    """Score the boxes answered for one pair of image and finding.

    Both are fractions of the radiograph, (N, 4), possibly empty, and (M, 4). Without `instances`, only the union of the
    annotated boxes is known. ValueError if M is 0 or a box has no area.

    Examples:
        >>> score_boxes([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5]], [[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]])
        ... # doctest: +NORMALIZE_WHITESPACE
        BoxPair(box_iou=0.3333333333333333, centre_hit=0.5, best_iou=1.0, matched_30=1, matched_50=1)
    """
    answered, true = _boxes(predicted), _boxes(annotated)
    if not len(true):
        raise ValueError("a scored pair needs at least one annotated box")
    centers = (answered[:, None, :2] + answered[:, None, 2:]) / 2
    inside = np.all((centers >= true[None, :, :2]) & (centers <= true[None, :, 2:]), axis=2)
    hits = np.any(inside, axis=1)
    each = pairwise_iou(answered, true) if instances else None
    return BoxPair(
        box_iou=box_iou(answered, true),
        centre_hit=int(hits.sum()) / len(hits) if len(hits) else 0.0,
        best_iou=None if each is None else float(each.max(initial=0)),
        matched_30=None if each is None else matched_boxes(each, 0.3),
        matched_50=None if each is None else matched_boxes(each, 0.5),
    )


def draw_boxes(boxes: ArrayLike, size: tuple[int, int], gamma: float = 0.5) -> NDArray[np.bool_]:
    """Draw the union of boxes on a grid of (H, W) pixels, like annotated regions.

    A pixel is included if the union covers at least the share `gamma` of it. A group of touching boxes that covers no
    whole pixel includes its most covered pixels, so the result is empty only without boxes.

    Examples:
        >>> draw_boxes([[0, 0, 0.5, 0.25], [0.9, 0.9, 0.95, 0.95]], (4, 4)).astype(int)
        array([[1, 1, 0, 0],
               [0, 0, 0, 0],
               [0, 0, 0, 0],
               [0, 0, 0, 1]])
    """
    corners = np.unique(_boxes(boxes), axis=0)
    height, width = size
    drawn = _coverage(corners, size, (0, 0, width, height)) >= gamma - ROUNDING
    for part in _parts(corners):
        window = np.concatenate([part[:, :2].min(axis=0), part[:, 2:].max(axis=0)]) * [width, height, width, height]
        left, top = np.clip(np.floor(window[:2]), 0, [width - 1, height - 1]).astype(int)
        right, bottom = np.clip(np.ceil(window[2:]), [left + 1, top + 1], [width, height]).astype(int)
        alone = _coverage(part, size, (left, top, right, bottom))
        if (most := alone.max()) < 1 - ROUNDING:
            drawn[top:bottom, left:right] |= alone >= most - ROUNDING
    return drawn


def score_on_grid(
    boxes: ArrayLike,
    region: NDArray[np.bool_],
    points: ArrayLike = (),
    gamma: float = 0.5,
    drawn: NDArray[np.bool_] | None = None,
    ties: TieRule = "share",
) -> GridScores:
    """Score an answer against a region on the grid (H, W), not empty.

    Dice and IoU use `draw_boxes`. The pointing game is the share of the boxes' pixels in the region; for points alone,
    the share of points in the region, or with `ties` whether any, or the first, is. An empty answer is a miss, not the
    chance hit of a map of zeros. Boxes (N, 4) and points (K, 2) are fractions of the radiograph, `gamma` is the share
    of a pixel that boxes must cover, and `drawn` the result of `draw_boxes` if available.

    Examples:
        >>> score_on_grid([[0, 0, 0.5, 1]], np.array([[True, True], [False, False]]))
        GridScores(pointing=0.5, dice=0.5, iou=0.3333333333333333)
    """
    drawn = draw_boxes(boxes, region.shape[:2], gamma) if drawn is None else drawn
    if size := int(drawn.sum()):
        pixels = np.array(size), np.array((drawn & region).sum()), np.array(region.sum())
        return GridScores(int(pixels[1]) / size, float(dice(*pixels)), float(iou(*pixels)))
    places = np.asarray(points, np.float64).reshape(-1, 2)
    if not len(places):
        return GridScores(0.0, 0.0, 0.0)
    last = np.array(region.shape[::-1]) - 1
    columns, rows = np.minimum(places * (last + 1), last).astype(np.int64).T
    hits = region[rows, columns]
    counted = {"share": int(hits.sum()) / len(hits), "any": float(hits.any()), "first": float(hits[0])}
    return GridScores(counted[ties], None, None)


def answer_columns(answer: Answer, annotated: ArrayLike | None, one_by_one: bool = True) -> dict[str, Any]:
    """Return an answer's columns without a grid; `annotated` boxes (M, 4) are None if the finding is absent."""
    columns: dict[str, Any] = {"answer_status": answer.status, "boxes": len(answer.boxes), "points": len(answer.points)}
    columns |= vars(answer.counts) | {"suspect_frame": answer.suspect_frame}
    if annotated is None:
        return columns | {"false_area": union_areas(answer.boxes, np.zeros((0, 4)))[1]}
    columns |= {"one_by_one": one_by_one, "annotated": len(_boxes(annotated))}
    return columns | vars(score_boxes(answer.boxes, annotated, one_by_one))


def _parts(corners: Boxes) -> Iterator[Boxes]:
    left = np.arange(len(corners))
    while len(left):
        part = [found := left[:1]]
        left = left[1:]
        while len(found) and len(left):
            here, others = corners[found, None], corners[None, left]
            touching = (here[..., :2] <= others[..., 2:]) & (others[..., :2] <= here[..., 2:])
            reached = touching.all(axis=2).any(axis=0)
            part.append(found := left[reached])
            left = left[~reached]
        yield corners[np.concatenate(part)]


def _coverage(corners: Boxes, size: tuple[int, int], window: tuple[int, int, int, int]) -> NDArray[np.float64]:
    """Return the share of each pixel of a window x0, y0, x1, y1 of the grid (H, W) that the union of boxes covers."""
    left, top, right, bottom = window
    scaled = corners * [size[1], size[0], size[1], size[0]]
    # In bands, to limit memory.
    bounds = np.linspace(top, bottom, 1 + min(bottom - top, 1 + len(corners) // 100)).astype(int)
    return np.concatenate([_band(scaled, left, int(low), right, int(high)) for low, high in pairwise(bounds)])


def _band(scaled: Boxes, left: int, low: int, right: int, high: int) -> NDArray[np.float64]:
    scaled = scaled[(scaled[:, 1] < high) & (scaled[:, 3] > low) & (scaled[:, 0] < right) & (scaled[:, 2] > left)]
    scaled = np.clip(scaled, [left, low, left, low], [right, high, right, high])
    xs, ys = (
        np.unique(np.concatenate([scaled[:, axis::2].ravel(), np.arange(*lines)]))
        for axis, lines in enumerate(((left, right + 1), (low, high + 1)))
    )
    # +1 where a box begins and -1 where it ends, on both axes: cumulative sums count the boxes.
    x0, y0, x1, y1 = (np.searchsorted(edges, one) for edges, one in zip((xs, ys, xs, ys), scaled.T, strict=True))
    begun = np.bincount(np.concatenate([y0 * len(xs) + x0, y1 * len(xs) + x1]), minlength=len(xs) * len(ys))
    ended = np.bincount(np.concatenate([y0 * len(xs) + x1, y1 * len(xs) + x0]), minlength=len(xs) * len(ys))
    inside = (begun - ended).reshape(len(ys), len(xs)).cumsum(axis=0).cumsum(axis=1)[:-1, :-1] > 0
    cells = inside * np.diff(ys)[:, None] * np.diff(xs)
    spans = ((ys, (low, high)), (xs, (left, right)))
    rows, columns = (np.searchsorted(edges, np.arange(*span)) for edges, span in spans)
    return np.asarray(np.add.reduceat(np.add.reduceat(cells, rows, axis=0), columns, axis=1))


def _boxes(boxes: ArrayLike) -> Boxes:
    corners = np.asarray(boxes, np.float64).reshape(-1, 4)
    if not (corners[:, :2] < corners[:, 2:]).all():
        raise ValueError("each box has corners x0, y0, x1, y1 with x0 < x1 and y0 < y1")
    return corners
