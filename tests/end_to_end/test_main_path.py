"""A whole run against an evaluation written out naively: image by image, threshold by threshold, pixel by pixel."""

from __future__ import annotations

import shutil
from dataclasses import replace

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from on_grid import saliency_on_grid
from plain import auroc, average_precision, overlaps, pointing
from run_files import rules
from toys import Brightness, Squares

from xbench.geometry.regions import Coverage


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def run_of(command, toy_config, known, tmp_path_factory):
    def run(*options):
        if options not in known:
            run = command("test", "--config", toy_config, *options)
            kept = run.folder and shutil.copytree(run.folder, tmp_path_factory.mktemp("kept") / run.folder.name)
            known[options] = replace(run, folder=kept)
        return known[options]

    return run


def enlarged(maps):
    """The first axis of a map (h, w) brought to 224 pixels bilinearly, as docs/numbers.md says."""
    cells = len(maps)
    place = (((2 * np.arange(224) + 1) * cells / 448 - 0.5).clip(0, cells - 1) * 2**24).round() / 2**24
    cell = place.astype(int)
    step = maps[np.minimum(cell + 1, cells - 1)] - maps[cell]
    return maps[cell] + (place - cell).astype(np.float32)[:, None] * step


@pytest.fixture(scope="module")
def expected():
    data, model = Squares(num_workers=0), Brightness()
    findings = data.findings
    queries = model.encode_prompts([list(model.default_prompts(finding)) for finding in findings])
    pairs = {}
    for record in data.read_records(annotated=True):
        radiograph = data.load(record)
        pixels = cv2.resize(radiograph.image, (56, 56), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
        output = model(torch.from_numpy(pixels).expand(1, 3, -1, -1), queries)
        maps = [enlarged(enlarged(one.numpy().T).T) for one in output.saliency[0]]
        for c, finding in enumerate(findings):
            scores = {"logit": output.logits[0, c].item(), "probability": output.probabilities[0, c].item()}
            if record.labels.get(finding) == 1:
                region = Coverage.of(radiograph.regions[finding], (224, 224)).at(0.5)
                scores["pointing_hit"] = pointing(maps[c], region)
                dice, iou = overlaps(maps[c], region)
                scores |= {f"dice {k}": value for k, value in enumerate(dice)}
                scores |= {f"iou {k}": value for k, value in enumerate(iou)}
                scores["area"] = region.sum() / 224**2
            pairs[record.image_id, finding] = (record.labels.get(finding, -1), scores)
    return pairs


def test_results_equal_plain_loops(run_of, expected):
    run = run_of()
    assert run.status == 0
    results = run.results

    assert results["counts"]["images"] == 20
    assert len(run.rows) == len(expected) == 60
    for row in run.rows:
        label, scores = expected[row["image_id"], row["finding"]]
        assert (row["label"], row["has_region"], row["logit"]) == (label, label == 1, scores["logit"])
        # PyTorch's sigmoid rounds the end of a tensor differently from its middle.
        assert row["probability"] == pytest.approx(scores["probability"], rel=1e-6)
        if label == 1:
            # Fractions of whole numbers in float64: not a bit of difference.
            found = row["pointing_hit"], row["dice"], row["iou"], row["region_area"]
            assert found == (scores["pointing_hit"], scores["dice 50"], scores["iou 50"], scores["area"])
        else:
            assert row["pointing_hit"] is row["dice"] is row["iou"] is row["region_area"] is None

    for finding in ("Square", "Hole"):
        valid = [scores for (_, name), (label, scores) in expected.items() if name == finding and label == 1]
        grounding = results["grounding"]["per_class"][finding]
        assert grounding["count"] == len(valid)

        def mean(key, scores=valid):
            return sum(pair[key] for pair in scores) / len(scores)

        # Sums are kept in multiples of 2**-40, so means may differ by 5e-13.
        close = dict(rel=0, abs=1e-12)
        dice, iou = [mean(f"dice {k}") for k in range(101)], [mean(f"iou {k}") for k in range(101)]
        sums = {"pointing_game": mean("pointing_hit"), "dice_curve": dice, "iou_curve": iou, "dice_fixed": dice[50]}
        sums |= {"iou_fixed": iou[50], "dice_best": max(dice), "iou_best": max(iou)}
        for name, value in sums.items():
            assert grounding[name] == pytest.approx(value, **close), name
        assert dice[round(100 * grounding["dice_best_threshold"])] == pytest.approx(max(dice), **close)
        assert iou[round(100 * grounding["iou_best_threshold"])] == pytest.approx(max(iou), **close)

        labeled = [(label, s["probability"]) for (_, name), (label, s) in expected.items() if name == finding]
        labels, probabilities = zip(*labeled, strict=True)
        recognition = results["classification"]["per_class"][finding]
        assert recognition["auroc"] == pytest.approx(auroc(labels, probabilities), **close)
        assert recognition["average_precision"] == pytest.approx(average_precision(labels, probabilities), **close)
        right = sum((p >= 0.5) == bool(label) for label, p in labeled)
        assert recognition["accuracy"] == pytest.approx(right / len(labeled), **close)
        assert (recognition["positives"], recognition["negatives"]) == (labels.count(1), labels.count(0))

    square, hole, ghost = results["grounding"]["per_class"].values()
    assert ghost.pop("count") == 0 and {*ghost.values()} == {None}
    for name, value in results["grounding"]["macro"].items():
        assert value == pytest.approx((square[name] + hole[name]) / 2, abs=1e-15)


def test_text_is_encoded_once(command, toy_config, monkeypatch):
    models = []
    original = Brightness.__init__
    monkeypatch.setattr(Brightness, "__init__", lambda self, *a, **k: (models.append(self), original(self, *a, **k))[1])
    assert command("test", "--config", toy_config).status == 0
    assert [model.times_encoded for model in models] == [1]


def test_other_grid_and_thresholds(command, toy_config, tmp_path):
    overlay = rules(tmp_path / "eleven.yaml", 11, "any")
    run = command("test", "--config", toy_config, "--config", overlay, "--data.grid", "[80, 64]", status=0)
    results = run.results
    assert results["grounding"]["thresholds"] == [k / 10 for k in range(11)]
    areas = {row["region_area"] for row in run.rows if row["has_region"]}
    assert areas == {120 / (80 * 64)}


def test_skipped_images_are_counted_and_named(command, toy_config):
    options = ("--data.unreadable", "[1, 4, 5, 6, 7]", "--data.on_error", "skip")
    run = command("test", "--config", toy_config, *options, status=0)
    skipped = run.results["counts"]["skipped"]
    assert [entry["image_id"] for entry in skipped] == [f"square-00{i}" for i in (1, 4, 5, 6, 7)]
    assert "broken" in skipped[0]["reason"]
    assert "5 unreadable images" in run.output
    assert len(run.rows) == 3 * run.results["counts"]["images"] == 45


@pytest.mark.parametrize("grid", ["224", "native"])
def test_nothing_to_ground(grid, command, toy_config):
    options = ("--data.grid", grid, "--data.unreadable", "[0, 1]", "--data.limit", "3", "--data.on_error", "skip")
    run = command("test", "--config", toy_config, *options, status=0)
    assert set(run.results["grounding"]["macro"].values()) == {None}
    assert [row["region_area"] for row in run.rows] == [None] * 3


@pytest.mark.parametrize("grid", ["224", "native"])
def test_images_of_several_sizes_in_a_batch_are_scored_each_by_itself(grid, command, toy_config):
    """Every image has a view of its own, and its own pixels are the grid if that is native; in plain loops."""
    widths = [64, 90, 48]
    options = ("--data.widths", str(widths), "--data.batch_size", "7", "--data.grid", grid)
    options += ("--model.crop", "true")
    run = command("test", "--config", toy_config, *options, status=0)
    data, model = Squares(num_workers=0, widths=widths), Brightness(crop=True)
    data.setup("test")
    queries = model.encode_prompts([list(model.default_prompts(finding)) for finding in data.findings])
    rows = {(row["image_id"], row["finding"]): row for row in run.rows}
    scored, views = 0, set()
    for index, record in enumerate(data.records):
        radiograph = data.load(record)
        assert radiograph.image.shape == (80, widths[index % 3])
        size = radiograph.image.shape if grid == "native" else (224, 224)
        pixels, view = model.preprocessing(radiograph.image)
        views.add(view)
        saliency = model(pixels[None], queries).saliency[0]
        for c, finding in enumerate(data.findings):
            row = rows[record.image_id, finding]
            if record.labels.get(finding) != 1:
                assert row["dice"] is row["region_area"] is None
                continue
            scored += 1
            raw = saliency_on_grid(saliency[c : c + 1], [view], size)[0].numpy()
            region = radiograph.regions[finding]
            if grid == "native":
                assert region.sum() == 120
            else:
                region = Coverage.of(region, size).at(0.5)
            assert row["region_area"] == region.sum() / region.size, "what the model never saw still counts"
            assert row["pointing_hit"] == pointing(raw, region)
            dice, iou = overlaps(raw, region, 2)
            assert (row["dice"], row["iou"]) == (dice[1], iou[1])
            # A cross-check without our own geometry: where the model did not look, there is no mask.
            mask = (raw - raw.min()) / (raw.max() - raw.min()) >= 0.5
            left, top, right, bottom = view
            lines, columns = ((np.arange(side) + 0.5) / side for side in size)
            assert not mask[:, (columns < left) | (columns > right)].any()
            assert not mask[(lines < top) | (lines > bottom)].any()
    assert scored == 17 and len(views) == 3

    # The neighbors in the batch do not matter, as this model treats each image by itself.
    for batch_size in ("1", "20"):
        other = command("test", "--config", toy_config, *options, "--data.batch_size", batch_size)
        for one, two in zip(run.rows, other.rows, strict=True):
            assert one.pop("probability") == pytest.approx(two.pop("probability"), rel=1e-6)
            assert one == two


def test_notes_count_images_whatever_the_batches(command, toy_config, run_of):
    options = ("--data.odd", "[3, 9, 15, 1, 5, 4]", "--data.unreadable", "[5]", "--data.on_error", "skip")
    expected = [
        {"note": "a row without an image", "count": 2, "first": ["square-998", "square-999"]},
        # Images 3, 9 and 15 have two annotations each, 4 has none, and 5 cannot be read.
        {"note": "an annotation is odd", "count": 4, "first": ["square-001", "square-003", "square-009", "square-015"]},
    ]
    for batch_size in ("1", "7"):
        run = command("test", "--config", toy_config, *options, "--data.batch_size", batch_size, status=0)
        assert run.results["counts"]["notes"] == expected
        lines = " ".join(run.output.split())
        assert "2 images: a row without an image (first: square-998)." in lines
        assert "4 images: an annotation is odd (first: square-001)." in lines
    few = command("test", "--config", toy_config, *options, "--data.limit", "2")
    assert "1 image: an annotation is odd" in " ".join(few.output.split())
    many = command("test", "--config", toy_config, "--data.odd", str(list(range(20))))
    (note,) = [note for note in many.results["counts"]["notes"] if note["note"] == "an annotation is odd"]
    assert note["count"] == 14 and len(note["first"]) == 10
    assert run_of().results["counts"]["notes"] == []


def test_predict_needs_no_annotations(command, toy_config, expected):
    run = command("predict", "--config", toy_config, "--data.unreadable", "[3]", "--data.on_error", "skip", status=0)
    assert "square-003" in run.output
    rows = pq.read_table(run.folder / "predictions.parquet").to_pylist()
    assert len(rows) == 57
    for row in rows:
        assert row["logit"] == expected[row["image_id"], row["finding"]][1]["logit"]
        assert row["map_shape"] == [56, 56] and len(row["map"]) == 56 * 56
    images = pq.read_table(run.folder / "images.parquet").to_pylist()
    assert [image["image_id"] for image in images if image["failure"]] == ["square-003"]
    assert images[0]["crop"] == [0, 0, 1, 1] and len(images) == 20


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_the_precision_of_the_model_does_not_touch_the_metrics(precision, command, toy_config, run_of, tmp_path):
    oracle = tmp_path / "oracle_toy.yaml"
    oracle.write_text(toy_config.read_text().replace("toys.Brightness", "xbench.models.Oracle"))
    run = command("test", "--config", oracle, "--trainer.precision", precision, status=0)
    macro = run.results["grounding"]["macro"]
    assert set(macro.values()) == {1.0}
    assert run.results["provenance"]["precision"] == precision
    # A real forward pass in that precision moves the scores only a little.
    exact, rounded = (run_of("--trainer.precision", p).results for p in ("32-true", precision))
    for name, value in exact["grounding"]["macro"].items():
        assert rounded["grounding"]["macro"][name] == pytest.approx(value, abs=0.02)
