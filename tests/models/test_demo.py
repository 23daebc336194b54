"""The demo means something: on phantoms of an unseen set it recognises and points, far above the floor."""

from __future__ import annotations


def test_the_demo_recognises_and_points(command):
    options = ("--data.seed", "5", "--data.images", "120", "--data.num_workers", "0", "--trainer.logger", "false")
    demo = command("test", "--config", "demo", *options).results
    centre = command("test", "--config", "centre_phantom", *options).results
    assert demo["classification"]["macro"]["auroc"] > 0.9
    for finding in ("Nodule", "Fracture"):
        found = demo["grounding"]["per_class"][finding]
        assert found["count"] > 5
        # The centre of a film is the spine, where the prior finds nothing; an absolute bound keeps the ratio honest.
        assert found["pointing_game"] > max(0.3, 3 * centre["grounding"]["per_class"][finding]["pointing_game"])
        assert found["dice_best"] > 3 * centre["grounding"]["per_class"][finding]["dice_best"]
    for right in (demo, centre):
        assert right["grounding"]["sign_test"]["may_be_wrong"] == []
    assert demo["provenance"]["checkpoint_sha256"]
    assert demo["provenance"]["prompts"]["Pleural Effusion"] == ["There is pleural effusion."]


def test_other_words_and_other_sizes(command):
    few = ("--data.limit", "4", "--data.num_workers", "0", "--trainer.logger", "false")
    run = command("test", "--config", "demo", *few, "--model.prompts", "name", "--model.image_size", "64")
    assert run.status == 0, run.errors
    assert run.results["provenance"]["prompts"]["Pleural Effusion"] == ["Pleural Effusion"]
    assert run.results["provenance"]["model"]["image_size"] == 64
    wrong = command("test", "--config", "demo", *few, "--model.prompts", "aspects")
    assert wrong.status == 2 and "one prompt per finding" in wrong.errors
    wrong = command("test", "--config", "demo", *few, "--model.image_size", "100")
    assert wrong.status == 2 and "multiple of 8" in wrong.errors
