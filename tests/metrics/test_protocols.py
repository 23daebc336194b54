"""Others' protocols give what their official scorers give."""

from __future__ import annotations

import hashlib
import math

import cv2
import numpy as np
import pytest
from reference import case, reference, undefined

from xbench.metrics.protocols import aep, chexlocalize, g2g, graded, medground
from xbench.metrics.protocols.common import first_maximum, stretched

NAMES = sorted(reference()["cases"])
SETS = reference()["datasets"]


def close(value, tolerance=1e-12, rel=1e-12):
    return pytest.approx(math.nan if undefined(value) else float(value), abs=tolerance, rel=rel, nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
def test_aep(name):
    made = case(name)
    for key, share in (("aep_margin", 7 / 8), ("aep_no_margin", 1.0)):
        theirs = made.expected[key]
        if theirs is None:
            continue
        crop = aep.central(made.map.shape, share)
        saliency, region = made.map[crop], made.region[crop]
        assert region.size == theirs["pixels_inside"] and region.sum() == theirs["region_pixels_inside"]
        mine = aep.score(saliency, region)
        for threshold, value in zip(aep.THRESHOLDS, theirs["iou_float32_threshold"], strict=True):
            assert mine[f"iou_{threshold}"] == close(value)
        assert mine["miou"] == close(theirs["miou_kaf"])
        assert mine["mdice"] == close(theirs["mdice_kaf"])
        assert mine["cnr"] == close(theirs["cnr_float64_input"], rel=1e-9 if made.kind == "far" else 1e-12)
        assert mine["hit"] == close(theirs["point"])
        sharp = aep.score(aep.sharpened(saliency), region)
        assert sharp["miou"] == close(theirs["dhs_miou"])
        assert sharp["cnr"] == close(theirs["dhs_cnr"], rel=1e-3 if made.kind == "far" else 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_biovil(name):
    made = case(name)
    smooth = aep.smoothed(made.raw)
    assert hashlib.sha256(smooth.tobytes()).hexdigest() == made.expected["biovil_smooth_sha256"]
    theirs = made.expected.get("biovil_480")
    if theirs is None:
        return
    import torch
    import torch.nn.functional as F

    # The model is shown the middle of the image, and its map lies there.
    crop = aep.central(made.map.shape, 480 / 512)
    region = made.region[crop]
    tensor = F.interpolate(torch.from_numpy(smooth)[None, None], region.shape, mode="bilinear", align_corners=False)
    saliency = tensor[0, 0].numpy()
    assert region.size == theirs["pixels_inside"]
    mine = aep.score_cosine(saliency, region)
    for threshold, value in zip(aep.THRESHOLDS, theirs["iou_raw_cosine"], strict=True):
        assert mine[f"iou_{threshold}"] == close(value)


@pytest.mark.parametrize("name", NAMES)
def test_chexlocalize(name):
    made = case(name)
    theirs = made.expected["chexlocalize"]
    scale = chexlocalize.scaled(made.map)
    mask = chexlocalize.otsu_mask(scale)
    assert mask.sum() == theirs["otsu_pixels"]
    assert hashlib.sha256(np.packbits(mask).tobytes()).hexdigest() == theirs["otsu_sha256"]
    mine = chexlocalize.count(made.map, made.region)
    assert [mine[f"mask_{rule}"] for rule in chexlocalize.RULES[1:]] == theirs["pixels_float32_threshold"]
    assert list(first_maximum(made.map)) == theirs["argmax"] and mine["hit"] == close(theirs["hit"])
    table = {key: np.array([value]) for key, value in mine.items()}
    for slice_ in ("true_positive", "full"):
        full = slice_ == "full"
        assert chexlocalize.ious(table, "otsu", full=full)[0] == close(theirs[f"otsu_iou_{slice_}"])


@pytest.mark.parametrize("name", NAMES)
def test_medground(name):
    made = case(name)
    theirs = made.expected["medground"]
    boxes = medground.boxes_of_map(made.map)
    assert boxes == theirs["boxes"]
    true = made.boxes_xyxy_half_open
    if true is None or "as_published" not in theirs:
        return
    inclusive = [[left, top, right + 1, bottom + 1] for left, top, right, bottom in boxes]
    for key, mine in (("as_published", boxes), ("pred_inclusive", inclusive)):
        for number, value in medground.score_union(mine, true).items():
            assert value == close(theirs[key][number])


@pytest.mark.parametrize("name", NAMES)
def test_g2g(name):
    made = case(name)
    theirs = made.expected["g2g"]
    if theirs is None:
        return
    # The official fit begins at random, so the threshold is tested by itself below.
    cells = g2g.cells_of_mask(made.raw, theirs["threshold"])
    assert cells.sum() == theirs["mask_cells"]
    if "all_zero_by_rule" in theirs:
        assert set(g2g.score(cells, made.raw, cells).values()) == {0.0}
        return
    side = made.map.shape[0]
    mask = np.rint(cv2.resize(cells.astype(np.float64), (side, side), interpolation=cv2.INTER_LINEAR)) > 0
    saliency = cv2.resize(stretched(made.raw), (side, side), interpolation=cv2.INTER_LINEAR)
    mine = g2g.score(mask, saliency, made.region)
    for number in ("iou", "miou", "bboxiou", "bboxmiou", "top1"):
        assert mine[number] == close(theirs[number]), number
    assert mine["cnr"] == close(theirs["cnr_float64_input"], rel=1e-4)
    assert mine["aucroc"] == close(theirs["aucroc"], 1e-6)
    if theirs.get("distance") is not None:
        assert mine["distance"] == close(theirs["distance"], 1e-9)


def test_the_mixture_of_g2g_is_that_of_scikit_learn_for_most_maps():
    found = [(case(name), case(name).expected["g2g"]) for name in NAMES if case(name).expected["g2g"]]
    misses = [abs(g2g.threshold(made.raw) - theirs["threshold"]) / (np.ptp(made.raw) or 1) for made, theirs in found]
    assert np.median(misses) < 1e-3 and np.quantile(misses, 0.75) < 1e-2


def test_chex_pools_pixels():
    chosen = [case(name) for name in SETS["chex"]["cases"]]
    for key, change in (("minmax_maps", stretched), ("sigmoid_maps", graded.sigmoid)):
        counts = [graded.count_above(change(made.map), made.region, graded.CHEX_THRESHOLDS) for made in chosen]
        mask, overlap = (np.stack(part) for part in zip(*counts, strict=True))
        ious = graded.pooled_iou(mask, overlap, np.array([made.region.sum() for made in chosen]))
        theirs = SETS["chex"][key]
        # Two of its 38 regions it draws a pixel narrower.
        assert ious == pytest.approx(theirs["iou_by_threshold"], abs=1e-3)
        assert mask.sum(0) + sum(made.region.sum() for made in chosen) - overlap.sum(0) == pytest.approx(
            [union for _, union in theirs["intersections_and_unions"]], rel=1e-3
        )


def test_radzero_chooses_on_positives():
    data = SETS["radzero"]
    chosen = [case(name) for name in data["cases"]]
    maps = [graded.sigmoid(made.map) for made in chosen]
    positive = [(saliency, made) for saliency, made in zip(maps, chosen, strict=True) if made.label]
    counts = [graded.count_above(saliency, made.region, graded.RADZERO_THRESHOLDS) for saliency, made in positive]
    mask, overlap = (np.stack(part) for part in zip(*counts, strict=True))
    value, place = graded.best_dice(mask, overlap, np.array([made.region.sum() for _, made in positive]))
    assert graded.RADZERO_THRESHOLDS[place] == close(data["result"]["best_threshold"])
    assert value == close(data["result"]["dice"], 1e-6)
    limit = np.float32(graded.RADZERO_THRESHOLDS[place])
    negative = [saliency.max() <= limit for saliency, made in zip(maps, chosen, strict=True) if not made.label]
    assert np.mean(negative) == data["result"]["specificity"]


@pytest.mark.parametrize("place", range(36))
def test_boxes(place):
    boxes = reference()["boxes"]
    item, theirs = boxes["items"][place], boxes["radvlm"]["per_item"][place]
    mine = medground.radvlm(item["pred"], item["true"])
    assert mine["map"] == close(theirs["mAP_0.5"])
    assert (mine["iou_sum"] / mine["iou_pairs"] if mine["iou_pairs"] else math.nan) == close(theirs.get("avg_iou"))
    for number, value in medground.score_union(item["pred"], item["true"]).items():
        if number in boxes["medground_union"]:
            assert value == close(boxes["medground_union"][number][place])
    for number, value in medground.radfact(item["pred"], item["true"]).items():
        assert value == close(boxes["radfact_224"][place][number])


def chexlocalize_tables(split):
    """Of each finding the counts of all maps of a half: a case's own, and for other findings it upside down."""
    data = SETS["chexlocalize"]
    tables = {}
    for finding in data["tuned_threshold"]:
        rows = []
        for name in data["split_of_cases"][split]:
            made = case(name)
            own = made.category == finding
            saliency = made.map if own else upside_down(made)
            region = made.region if own else np.zeros_like(made.region)
            probability = made.probability if own else round(1 - made.probability, 3)
            rows.append(chexlocalize.count(saliency, region) | {"probability": probability})
        tables[finding] = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    return tables


def upside_down(made):
    import torch
    import torch.nn.functional as F

    raw = np.ascontiguousarray(made.raw[::-1])
    if (raw == raw.flat[0]).all():
        return made.map
    tensor = F.interpolate(torch.from_numpy(raw)[None, None], made.map.shape, mode="bilinear", align_corners=False)
    return tensor[0, 0].numpy()


def test_chexlocalize_tunes_on_another_split():
    data = SETS["chexlocalize"]
    validation, test = chexlocalize_tables("valid"), chexlocalize_tables("test")
    for finding, table in validation.items():
        rule, cutoff = chexlocalize.tuned_threshold(table), chexlocalize.tuned_cutoff(table, finding)
        assert rule == str(data["tuned_threshold"][finding])
        assert cutoff == close(data["probability_cutoff"][finding]["chosen"])
        for key, mine, limit in (
            ("otsu", "otsu", None),
            ("tuned", rule, None),
            ("otsu_with_cutoff", "otsu", cutoff),
            ("tuned_with_cutoff", rule, cutoff),
        ):
            if key not in data:
                continue
            empty = None if limit is None else test[finding]["probability"] < limit
            for slice_ in ("true_positive", "full"):
                ious = chexlocalize.ious(test[finding], mine, empty, full=slice_ == "full")
                theirs = data[key][slice_][finding]["ious"]
                assert ious == pytest.approx(
                    [math.nan if one is None else one for one in theirs], abs=1e-12, nan_ok=True
                )
