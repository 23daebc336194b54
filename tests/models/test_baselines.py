from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import Squares

from xbench.models import CenterPrior, UniformRandom
from xbench.models.baselines import WHOLE_IMAGE, centre_box, prior_box, random_box
from xbench.predictions.answer import Box
from xbench.runs.finished import FinishedRun
from xbench.types import Batch


def toy_batch(model, positions) -> Batch:
    data = Squares(num_workers=0)
    data.setup("test")
    samples = data.samples(model.preprocessing)
    return Batch.collate([samples[position] for position in positions])


QUIET = ("--trainer.logger", "false", "--data.num_workers", "0")


@pytest.fixture
def toy(tmp_path):
    def write(name: str) -> str:
        config = tmp_path / f"{name}.yaml"
        config.write_text(f"model: {{class_path: xbench.models.{name}}}\ndata: {{class_path: toys.Squares}}\n")
        return str(config)

    return write


def check_ones(run) -> None:
    assert run.status == 0, run.errors
    assert set(run.results["grounding"]["macro"].values()) == {1.0}
    for row in run.rows:
        if row["label"] == 1 and row["has_region"]:
            assert (row["pointing_hit"], row["dice"], row["iou"]) == (1.0, 1.0, 1.0)


def test_the_oracle_on_the_native_grid(command, toy):
    options = ("--config", toy("Oracle"), "--data.grid", "native", *QUIET)
    check_ones(command("test", *options, "--data.batch_size", "1", "--data.widths", "[64, 48, 90]"))
    check_ones(command("test", *options, "--data.batch_size", "8"))
    run = command("test", *options, "--data.widths", "[64, 48, 90]")
    assert run.status == 1 and "--data.batch_size 1" in run.errors


def test_centre_prior(command, toy):
    run = command("test", "--config", toy("CenterPrior"), *QUIET)
    assert run.results["classification"]["macro"]["auroc"] == 0.5
    # The blob's maximum is the four pixels round the center of an even grid.
    data = Squares(num_workers=0)
    data.setup("test")
    samples = data.samples(CenterPrior().preprocessing)
    for finding in range(2):
        hits = [
            sample.truth.regions[finding][111:113, 111:113].double().mean().item()
            for sample in (samples[index] for index in range(20))
            if sample.truth.labels[finding] == 1
        ]
        scores = run.results["grounding"]["per_class"][data.findings[finding]]
        assert scores["pointing_game"] == pytest.approx(sum(hits) / len(hits), abs=1e-12)


def test_random_depends_on_seed_and_image_alone():
    model = UniformRandom()
    model.findings = Squares.findings
    together, alone = model.score(toy_batch(model, [3, 4])), model.score(toy_batch(model, [4]))
    assert torch.equal(together.shown.values[3:], alone.shown.values)
    assert torch.equal(together.probabilities[3:], alone.probabilities)
    assert not torch.equal(together.shown.values[0], together.shown.values[3])
    assert not torch.equal(together.shown.values[0], together.shown.values[1])
    other = UniformRandom(seed=1)
    other.findings = Squares.findings
    assert not torch.equal(other.score(toy_batch(other, [4])).shown.values, alone.shown.values)


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


OPTIONS = ("--data.limit", "16", *QUIET)


def test_floors_and_ceilings_of_answers_run(command):
    elsewhere = command("test", "--config", "oracle_phantom", "--data.seed", "7", *OPTIONS).folder
    found = {}
    for name in ("whole_image", "centre_box", "random_box", "prior_box", "outline_boxes"):
        options = () if name in ("whole_image", "outline_boxes") else ("--model.elsewhere", elsewhere)
        run = command("test", "--config", f"{name}_phantom", *OPTIONS, *options, status=0)
        found[name] = FinishedRun.open(run.folder)
        assert found[name].results.answers.overall["answered"] == 1
        assert run.results["classification"]["macro"]["auroc"] is None
    box_ious = {name: run.results.answers.macro["box_iou"] for name, run in found.items()}
    assert box_ious["outline_boxes"] == pytest.approx(1) and found["outline_boxes"].results.answers.outlined
    assert box_ious["prior_box"] > box_ious["centre_box"]
    for rows in found["whole_image"].answers.values():
        for row in rows:
            assert row.boxes == ((0, 0, 1, 1),)
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
    assert refused.status == 2 and "are scored here" in refused.errors
