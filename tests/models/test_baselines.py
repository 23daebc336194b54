"""Ceilings score exactly 1, floors what arithmetic says, and each family's frame leads back to the radiograph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import Squares

from xbench.data.datasets.phantom import PhantomCXR
from xbench.metrics import box_iou
from xbench.models import AnswerOracle, CentrePrior, UniformRandom
from xbench.models.baselines import WHOLE_IMAGE, centre_box, prior_box, random_box
from xbench.predictions import FAMILIES
from xbench.predictions.answer import Box, Size
from xbench.predictions.asking import Reply
from xbench.runs.finished import FinishedRun
from xbench.types import Batch

ODD = ((150, 400), (333, 128), (256, 256))


def toy_batch(model, positions) -> Batch:
    data = Squares(num_workers=0)
    data.setup("test")
    samples = data.samples(model.preprocessing)
    return Batch.collate([samples[position] for position in positions])


@pytest.mark.parametrize("pair", ["oracle_phantom", "oracle_toy"])
def test_the_oracle_scores_exactly_one(pair, command, tmp_path):
    if pair == "oracle_toy":
        config = tmp_path / "oracle_toy.yaml"
        config.write_text("model: {class_path: xbench.models.Oracle}\ndata: {class_path: toys.Squares}\n")
        pair = str(config)
    run = command(
        "test", "--config", pair, "--trainer.logger", "false", "--data.limit", "60", "--data.num_workers", "0",
    )  # fmt: skip
    assert run.status == 0, run.errors
    results = run.results
    scored = [scores for scores in results["grounding"]["per_class"].values() if scores["count"]]
    assert scored
    for scores in scored:
        for name in ("pointing_game", "dice_fixed", "iou_fixed", "dice_best", "iou_best"):
            assert scores[name] == 1.0, name
        assert scores["dice_curve"][1:] == [1.0] * 100
        # At threshold 0 the mask is the whole image, whatever the map.
        assert 0 < scores["dice_curve"][0] < 1
    assert set(results["grounding"]["macro"].values()) == {1.0}
    assert results["grounding"]["sign_test"]["may_be_wrong"] == []
    assert set(results["classification"]["macro"].values()) == {1.0}
    for row in run.rows:
        if row["label"] == 1 and row["has_region"]:
            assert (row["pointing_hit"], row["dice"], row["iou"]) == (1.0, 1.0, 1.0)


def test_the_oracle_on_the_native_grid(command, tmp_path):
    config = tmp_path / "oracle_toy.yaml"
    config.write_text("model: {class_path: xbench.models.Oracle}\ndata: {class_path: toys.Squares}\n")
    options = ("--config", str(config), "--data.grid", "native", "--trainer.logger", "false", "--data.num_workers", "0")
    for sizes in (("--data.batch_size", "1", "--data.widths", "[64, 48, 90]"), ("--data.batch_size", "8")):
        run = command("test", *options, *sizes)
        assert run.status == 0, run.errors
        assert set(run.results["grounding"]["macro"].values()) == {1.0}
        for row in run.rows:
            if row["has_region"]:
                assert (row["pointing_hit"], row["dice"], row["iou"]) == (1.0, 1.0, 1.0)
    run = command("test", *options, "--data.widths", "[64, 48, 90]")
    assert run.status == 1
    assert "--data.batch_size 1" in run.errors
    assert "Traceback" not in run.errors


def test_centre_prior(command, tmp_path):
    config = tmp_path / "centre_toy.yaml"
    config.write_text("model: {class_path: xbench.models.CentrePrior}\ndata: {class_path: toys.Squares}\n")
    run = command("test", "--config", str(config), "--trainer.logger", "false", "--data.num_workers", "0")
    assert run.results["classification"]["macro"]["auroc"] == 0.5
    # The blob's maximum is the four pixels round the centre of an even grid.
    data = Squares(num_workers=0)
    data.setup("test")
    samples = data.samples(CentrePrior().preprocessing)
    for finding in range(2):
        hits = [
            sample.truth.regions[0][sample.truth.has_region[0, :finding].sum(), 111:113, 111:113].double().mean().item()
            for sample in (samples[index] for index in range(20))
            if sample.truth.labels[0, finding] == 1
        ]
        scores = run.results["grounding"]["per_class"][data.findings[finding]]
        assert scores["pointing_game"] == pytest.approx(sum(hits) / len(hits), abs=1e-12)


def test_random_depends_on_seed_and_image_alone():
    model = UniformRandom()
    model.findings = Squares.findings
    together, alone = model.score(toy_batch(model, [3, 4])), model.score(toy_batch(model, [4]))
    assert torch.equal(together.saliency[1], alone.saliency[0])
    assert torch.equal(together.probabilities[1], alone.probabilities[0])
    assert not torch.equal(together.saliency[0], together.saliency[1])
    assert not torch.equal(together.saliency[0, 0], together.saliency[0, 1])
    other = UniformRandom(seed=1)
    other.findings = Squares.findings
    assert not torch.equal(other.score(toy_batch(other, [4])).saliency, alone.saliency)


def test_floors() -> None:
    assert WHOLE_IMAGE == (0, 0, 1, 1) and centre_box() == pytest.approx((0.3, 0.3, 0.7, 0.7))
    elsewhere = [Box(0.1, 0.2, 0.4, 0.3), Box(0.5, 0.5, 0.6, 0.9)]
    drawn = [random_box(0, str(image), "nodule", elsewhere) for image in range(200)]
    assert random_box(0, "7", "nodule", elsewhere) == drawn[7] != random_box(1, "7", "nodule", elsewhere)
    assert all(0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1 for x0, y0, x1, y1 in drawn)
    sizes = {(round(x1 - x0, 9), round(y1 - y0, 9)) for x0, y0, x1, y1 in drawn}
    assert sizes == {(0.3, 0.1), (0.1, 0.4)}
    with pytest.raises(ValueError, match="no box covers"):
        prior_box((Box(0.5, 0.5, 0.5001, 0.5001),))


class Exchanged(AnswerOracle):
    """Takes x for y."""

    def ask(self, batch, queries):
        replies = []
        for query in queries:
            height, width = batch.radiographs[query.row].shape
            turned = [Box(y0, x0, y1, x1) for x0, y0, x1, y1 in batch.truth.boxes(query.row, query.column)[0]]
            replies.append(Reply(self.family.write(turned, query.finding, self.convention, (width, height)), "stop"))
        return replies


@pytest.fixture(scope="module")
def phantoms() -> list[Batch]:
    batches = []
    for size in ODD:
        data = PhantomCXR(images=6, size=size, num_workers=0)
        data.setup("test")
        samples = data.samples(AnswerOracle.preprocessing)
        batches.append(Batch.collate([samples[place] for place in range(6)]))
    return batches


def scores(model: AnswerOracle, batch: Batch) -> list[tuple[float, float]]:
    """IoU of each scored pair, and the most that the frame can express of it."""
    model.findings = PhantomCXR.findings
    model._texts = dict.fromkeys([("locate", finding) for finding in model.findings], "")
    output, found = model.score(batch), []
    for row, column, _ in batch.truth.scored.tolist():
        height, width = batch.radiographs[row].shape
        axes = model.convention.axes(Size(width, height))
        true = np.array(batch.truth.boxes(row, column)[0])
        # What the frame reaches of each side, and half of one of its numbers to either end.
        reach = [(axis.start / axis.side, (axis.start + axis.extent) / axis.side) for axis in axes]
        low, high = np.array(reach).T
        inside = np.concatenate([np.clip(true[:, :2], low, high), np.clip(true[:, 2:], low, high)], axis=1)
        inside = inside[(inside[:, :2] < inside[:, 2:]).all(1)]
        cell = np.array([axis.extent / axis.side / axis.top for axis in axes]) * max(model.convention.step, 1e-9)
        whole = np.array([1 / axis.side if axis.whole_pixels else 0 for axis in axes])
        worst = np.tile(cell + whole, 2) * [1, 1, -1, -1]
        smaller = inside + worst
        smaller = smaller[(smaller[:, :2] < smaller[:, 2:]).all(1)]
        answered = output.shown.answers[row][column].boxes
        found.append((box_iou(answered, true), box_iou(smaller, true) if len(smaller) == len(inside) else 0.0))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_truth_in_a_familys_words_scores_what_its_frame_allows(family, phantoms):
    for batch in phantoms:
        reached = scores(AnswerOracle(family), batch)
        assert reached
        for value, least in reached:
            assert value >= least - 1e-9
        coarse = FAMILIES[family].convention.axes(Size(256, 256))[0].top <= 100
        if batch.radiographs[0].shape == (256, 256):
            assert np.mean([value for value, _ in reached]) > (0.85 if coarse else 0.95)


@pytest.mark.parametrize("family", FAMILIES)
def test_x_taken_for_y_does_not(family, phantoms):
    for batch in phantoms:
        right, wrong = (
            np.mean([value for value, _ in scores(kind(family), batch)]) for kind in (AnswerOracle, Exchanged)
        )
        assert wrong < right / 2


OPTIONS = ("--data.limit", "16", "--data.num_workers", "0", "--trainer.logger", "false")


def test_floors_and_ceilings_of_answers_run(command):
    elsewhere = command("test", "--config", "oracle_phantom", "--data.seed", "7", *OPTIONS).folder
    found = {}
    for name in ("whole_image", "centre_box", "random_box", "prior_box", "outline_boxes"):
        options = () if name in ("whole_image", "outline_boxes") else ("--model.elsewhere", elsewhere)
        run = command("test", "--config", f"{name}_phantom", *OPTIONS, *options)
        assert run.status == 0, run.errors
        found[name] = FinishedRun.open(run.folder)
        assert found[name].results.answers.overall["answered"] == 1
        assert run.results["classification"]["macro"]["auroc"] is None
    box_ious = {name: run.results.answers.macro["box_iou"] for name, run in found.items()}
    assert box_ious["outline_boxes"] == pytest.approx(1) and found["outline_boxes"].results.answers.outlined
    assert box_ious["prior_box"] > box_ious["centre_box"]
    for rows in found["whole_image"].answers.values():
        for row in rows:
            assert row.boxes == ((0, 0, 1, 1),)
    # A box of the whole image is a mask of every pixel, not one of none.
    whole = found["whole_image"]
    assert whole.results.grounding.macro["dice_fixed"] > 0
    area = whole.image_scores.region_area[whole.image_scores.scored]
    np.testing.assert_allclose(whole.image_scores.iou[whole.image_scores.scored], area, atol=1e-12)
    items = FinishedRun.open(elsewhere).instances.items()
    lungs = [Box(*item.box()) for (_, finding), of in items for item in of if finding == "Mass"]
    answered = {row.boxes for rows in found["prior_box"].answers.values() for row in rows if row.finding == "Mass"}
    assert answered == {(prior_box(tuple(lungs)),)}


def test_who_must_know_boxes_elsewhere_is_told_none_of_these_images(command):
    refused = command("test", "--config", "prior_box_phantom", *OPTIONS)
    assert refused.status == 2 and "--model.elsewhere RUN" in refused.errors
    same = command("test", "--config", "oracle_phantom", *OPTIONS).folder
    refused = command("test", "--config", "centre_box_phantom", "--model.elsewhere", same, *OPTIONS)
    assert refused.status == 2 and "told the truth" in refused.errors
