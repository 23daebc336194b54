"""Stored maps, scored by others' protocols, get what the official scorers give the same maps."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference import case, reference, undefined

from xbench.findings.queries import Query
from xbench.geometry.grid import FULL_VIEW, saliency_on_grid
from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape
from xbench.runs.images import SavedImage
from xbench.runs.protocols import score_images
from xbench.scoring.protocols import PROTOCOLS, chexlocalize
from xbench.scoring.protocols.common import sigmoid


def close(value, tolerance=1e-12):
    return pytest.approx(math.nan if undefined(value) else float(value), abs=tolerance, rel=1e-9, nan_ok=True)


def rows(made, names, scale="cosine", cells=None):
    """The pairs of a stored run of one image, by protocol; its map is a case's raw one, or `cells`."""
    size, drawn = made.map.shape, bool(made.region.any())
    boxes = made.boxes_xyxy_half_open if drawn else None
    image = SavedImage(
        0,
        "i",
        None,
        "",
        FULL_VIEW,
        [Query("a", "a")],
        (made.raw if cells is None else cells)[None],
        {0: Coverage.of(made.region, size)} if drawn else {},
        (0,) if drawn else (),
        None,
        size,
        {0: tuple(Shape("box", size, np.array(box, float)) for box in boxes)} if boxes else {},
    )
    run = SimpleNamespace(
        results=SimpleNamespace(findings=["a"]),
        row_of={"i": 0},
        map_scale=scale,
        image_scores=SimpleNamespace(
            index=[0], image_ids=["i"], labels=np.array([[int(drawn)]]), probabilities=np.array([[made.probability]])
        ),
        rules=SimpleNamespace(grid=size, gamma=0.5, upsampling="bilinear"),
    )
    tables = score_images(run, names, [image])
    return {name: {key: column[0] for key, column in table.items()} for name, table in tables.items()}


@pytest.mark.parametrize("name", sorted(reference()["cases"]))
def test_pairs_are_scored_as_the_official_code_does(name):
    made = case(name)
    theirs = made.expected
    # The map is stored as the official scorers were given it, on the grid: how we enlarge maps is tested below.
    found = rows(made, ("chexlocalize",), cells=made.map) | rows(made, ("g2g",))
    mine, official = found["chexlocalize"], theirs["chexlocalize"]
    assert [mine[f"mask_{rule}"] for rule in chexlocalize.RULES] == [
        official["otsu_pixels"],
        *official["pixels_float32_threshold"],
    ]
    assert mine["hit"] == close(official["hit"])
    if "g2g" in found and theirs["g2g"] is not None:
        mine, official = found["g2g"], theirs["g2g"]
        if "all_zero_by_rule" in official:
            official = dict.fromkeys(("iou", "miou", "bboxiou", "bboxmiou", "top1", "aucroc", "cnr", "distance"), 0)
        official = official | {"cnr": official.get("cnr_float64_input", 0)}
        for number in ("iou", "miou", "bboxiou", "bboxmiou", "top1"):
            assert mine[number] == close(official[number]), number
        # Their maps are enlarged by OpenCV, which computes places in float32. Pixels between equal cells, which tie
        # here, can come apart there; then the AUROC counts them as ordered.
        assert mine["cnr"] == close(official["cnr"], 1e-6) and mine["aucroc"] == close(official["aucroc"], 1e-4)
        if official.get("distance") is not None:
            assert mine["distance"] == close(official["distance"])


@pytest.mark.parametrize("name", sorted(reference()["cases"]))
def test_radzero_points_into_boxes_with_their_edges(name):
    made = case(name)
    theirs = made.expected["radzero_pointing"]
    if theirs is None or "hit_inclusive" not in theirs or not made.region.any():
        return
    assert rows(made, ("radzero",), "logit")["radzero"]["hit"] == theirs["hit_inclusive"]


def test_no_number_depends_on_how_a_library_enlarges_maps(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a library enlarges maps")

    monkeypatch.setattr("torch.nn.functional.interpolate", refuse)
    monkeypatch.setattr("cv2.resize", refuse)
    made = case("014")
    maps = [name for name, protocol in PROTOCOLS.items() if "map" in protocol.takes]
    assert {*rows(made, maps, "logit")} == {*maps}


@pytest.mark.parametrize("name", sorted(reference()["cases"]))
def test_maps_are_enlarged_as_others_do_but_for_the_rounding_of_places(name):
    made = case(name)
    cells, size = made.raw.astype(np.float64), made.map.shape
    found = saliency_on_grid(torch.from_numpy(made.raw)[None], [FULL_VIEW], size)[0].numpy()
    # PyTorch rounds the scale, its product and the difference in float32, each by up to 2**-24 of a place below the
    # number of cells; along both axes that moves a value by that share of a step between neighbours. Weights that do
    # not add up to 1, and values, are rounded as well.
    steps = sum(float(np.abs(np.diff(cells, axis=axis)).max(initial=0)) for axis in (0, 1))
    tolerance = (3 * max(cells.shape) * steps + 6 * float(np.abs(cells).max())) * 2**-24
    np.testing.assert_allclose(found, made.map, rtol=0, atol=tolerance)
    usual = torch.nn.functional.interpolate(torch.from_numpy(made.raw)[None, None], size, mode="bilinear")[0, 0]
    np.testing.assert_allclose(found, usual.numpy(), rtol=0, atol=tolerance)


def test_sigmoids_are_rounded_once():
    logits = np.linspace(-110, 110, 20001, dtype=np.float32)
    exact = [1 / (1 + math.exp(-value)) for value in logits.tolist()]
    assert np.array_equal(sigmoid(logits), np.array(exact, np.float32))
    assert np.array_equal(sigmoid(logits[::-1])[::-1], sigmoid(logits))
    assert sigmoid(np.float32([-1e4, 1e4])).tolist() == [0, 1]
