"""The ceiling scores exactly 1 on everything, and the floors what arithmetic says."""

from __future__ import annotations

import pytest
import torch
from toys import Squares

from xbench.models import CentrePrior, UniformRandom
from xbench.types import Batch


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
