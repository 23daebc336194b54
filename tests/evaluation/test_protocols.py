"""Stored maps, scored by others' protocols, get what the official scorers give the same maps."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from reference import case, reference, undefined

from xbench.evaluation.protocols import score_images
from xbench.geometry.coverage import Coverage
from xbench.geometry.grid import FULL_VIEW
from xbench.geometry.instances import Instance
from xbench.metrics.protocols import chexlocalize
from xbench.runs.maps import SavedImage

NAMES = ("chexlocalize", "medground", "g2g")


def close(value):
    return pytest.approx(math.nan if undefined(value) else float(value), abs=1e-12, rel=1e-9, nan_ok=True)


def rows(made, names, scale="cosine"):
    """The pairs of a stored run of one image, by protocol."""
    size, drawn = made.map.shape, bool(made.region.any())
    boxes = made.boxes_xyxy_half_open if drawn else None
    image = SavedImage(
        0,
        "i",
        "",
        FULL_VIEW,
        made.raw[None],
        {0: Coverage.of(made.region, size)} if drawn else {},
        (0,) if drawn else (),
        None,
        size,
        {0: tuple(Instance("box", size, np.array(box, float)) for box in boxes)} if boxes else {},
    )
    run = SimpleNamespace(
        row_of={"i": 0},
        image_scores=SimpleNamespace(labels=np.array([[int(drawn)]]), probabilities=np.array([[made.probability]])),
        rules=SimpleNamespace(grid=size, gamma=0.5, upsampling="bilinear"),
    )
    tables = score_images(run, names, scale, [image])
    return {name: {key: column[0] for key, column in table.items()} for name, table in tables.items()}


@pytest.mark.parametrize("name", sorted(reference()["cases"]))
def test_pairs_are_scored_as_the_official_code_does(name):
    made = case(name)
    found, theirs = rows(made, NAMES), made.expected
    mine, official = found["chexlocalize"], theirs["chexlocalize"]
    assert [mine[f"mask_{rule}"] for rule in chexlocalize.RULES] == [
        official["otsu_pixels"],
        *official["pixels_float32_threshold"],
    ]
    assert mine["hit"] == close(official["hit"])
    if "medground" in found and "as_published" in theirs["medground"]:
        for number, value in theirs["medground"]["as_published"].items():
            assert found["medground"][number] == close(value)
        assert found["medground"]["iou_corrected"] == close(theirs["medground"]["pred_inclusive"]["iou"])
    if "g2g" in found and theirs["g2g"] is not None:
        mine, official = found["g2g"], theirs["g2g"]
        if "all_zero_by_rule" in official:
            official = dict.fromkeys(("iou", "miou", "bboxiou", "bboxmiou", "top1", "aucroc", "cnr", "distance"), 0)
        official = official | {"cnr": official.get("cnr_float64_input", 0)}
        for number in ("iou", "miou", "bboxiou", "bboxmiou", "top1", "aucroc", "cnr"):
            assert mine[number] == close(official[number]), number
        if official.get("distance") is not None:
            assert mine["distance"] == close(official["distance"])


@pytest.mark.parametrize("name", sorted(reference()["cases"]))
def test_radzero_points_into_boxes_with_their_edges(name):
    made = case(name)
    theirs = made.expected["radzero_pointing"]
    if theirs is None or "hit_inclusive" not in theirs or not made.region.any():
        return
    assert rows(made, ("radzero",), "logit")["radzero"]["hit"] == theirs["hit_inclusive"]
