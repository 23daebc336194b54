"""Lesions found: equal to COCO's own tools, to the reference curves, and to a count by hand."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from xbench.metrics import LesionDetections
from xbench.scoring.boxes import pairwise_iou
from xbench.scoring.protocols.common import components, mask_overlaps
from xbench.scoring.protocols.detections import Froc, average_precision, froc, match

BOXES = json.loads((Path(__file__).parent / "reference" / "lesions.json").read_text())
ITEMS = [
    tuple(
        np.reshape(np.array(item[key], float), shape)
        for key, shape in (("true", (-1, 4)), ("pred", (-1, 4)), ("scores", -1))
    )
    for item in BOXES["items"]
]


def detected(ious, items=ITEMS) -> LesionDetections:
    metric = LesionDetections(1, ious)
    for index, (true, boxes, scores) in enumerate(items):
        metric.update(index, 0, scores, pairwise_iou(boxes, true))
    return metric


def test_average_precision_of_the_reference_boxes():
    theirs = BOXES["pycocotools"]
    (mine,) = detected(theirs["iou_thresholds"]).compute()
    assert [*mine["ap"].values()] == pytest.approx(theirs["ap"], abs=1e-12)
    assert mine["map"] == pytest.approx(np.mean(theirs["ap"]), abs=1e-12)
    assert [max(s for _, s in curve.points) for curve in mine["froc"].values()] == theirs["max_recall"]


@pytest.mark.parametrize(("iou", "name"), [(0.5, "froc_ours"), (0.3, "froc_ours_iou_03")])
def test_free_response_curve_of_the_reference_boxes(iou, name):
    theirs = BOXES[name]
    (mine,) = detected([iou]).compute()
    np.testing.assert_allclose(mine["froc"][iou].points, theirs["points"], rtol=0, atol=1e-12)
    at = {float(rate): value for rate, value in theirs["sensitivity_at"].items()}
    assert mine["froc"][iou].sensitivity_at == pytest.approx(at, abs=1e-12)
    assert mine["froc"][iou].score == pytest.approx(theirs["score"], abs=1e-12)


CORNERS = st.tuples(*[st.integers(0, 6)] * 2, *[st.integers(7, 12)] * 2)
IMAGES = st.lists(
    st.tuples(st.lists(CORNERS, max_size=3), st.lists(st.tuples(CORNERS, st.integers(0, 4)), max_size=4)),
    min_size=1,
    max_size=4,
)


@given(IMAGES)
@settings(max_examples=60)
def test_average_precision_is_that_of_pycocotools(images):
    """On boxes with ties everywhere: of scores, of overlaps, of whole boxes."""
    ious = (0.3, 0.5, 0.75)
    items = [
        (
            np.reshape(np.array(true, float), (-1, 4)),
            np.reshape([c for c, _ in found], (-1, 4)) * 1.0,
            np.array([s for _, s in found], float),
        )
        for true, found in images
    ]
    (mine,) = detected(ious, items).compute()
    truth, results = [], []
    for image, (true, boxes, scores) in enumerate(items):
        for x0, y0, x1, y1 in true.tolist():
            box = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0), "iscrowd": 0}
            truth.append({"id": len(truth) + 1, "image_id": image, "category_id": 1} | box)
        for (x0, y0, x1, y1), score in zip(boxes.tolist(), scores.tolist(), strict=True):
            results.append({"image_id": image, "category_id": 1, "bbox": [x0, y0, x1 - x0, y1 - y0], "score": score})
    if not truth or not results:
        assert mine["map"] == (0 if truth else None)
        return
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": i} for i in range(len(images))],
            "categories": [{"id": 1}],
            "annotations": truth,
        }
        coco.createIndex()
        scorer = COCOeval(coco, coco.loadRes(results), "bbox")
        scorer.params.iouThrs = np.array(ious)
        scorer.evaluate()
        scorer.accumulate()
    theirs = scorer.eval["precision"][:, :, 0, 0, -1].mean(axis=1)
    assert [*mine["ap"].values()] == pytest.approx(theirs.tolist(), abs=1e-12)


@given(st.permutations(range(len(ITEMS))), st.integers(1, 3))
@settings(max_examples=10)
def test_neither_order_nor_processes_change_a_bit(order, processes):
    whole = detected([0.3, 0.5]).compute()
    parts = [LesionDetections(1, [0.3, 0.5]) for _ in range(processes)]
    for place, index in enumerate(order):
        true, boxes, scores = ITEMS[index]
        parts[place % processes].update(index, 0, scores, pairwise_iou(boxes, true))
    together = LesionDetections(1, [0.3, 0.5])
    together.detections = [torch.cat([row for part in parts for row in part.detections])]
    together.images, together.lesions = (sum(getattr(p, name) for p in parts) for name in ("images", "lesions"))
    together._update_count = 1
    assert together.compute() == whole


def test_overlaps_of_masks():
    one = np.array([[1, 1, 0, 0], [0, 0, 0, 1]], bool)
    iou, covered = mask_overlaps(components(one), [np.array([[0, 1, 1, 0], [0, 1, 1, 0]], bool)])
    assert iou.tolist() == [[1 / 5], [0]] and covered.tolist() == [[0.25], [0]]


def test_without_lesions_or_images_nothing_is_defined():
    none, hits = np.zeros(0), np.zeros(0, bool)
    assert froc(none, hits, 0, 0) is None and froc(none, hits, 0, 3) == Froc([], {}, None)
    assert froc(none, hits, 2, 3).score == 0 and average_precision(none, hits, 2) == 0
    assert average_precision(none, hits, 0) is None
    assert LesionDetections(1, [0.5]).compute()[0]["map"] is None
    assert match(np.zeros((2, 0)), np.array([1.0, 2.0]), 0.5).tolist() == [-1, -1]
