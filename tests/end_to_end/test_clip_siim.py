"""The first real pair: `clip_siim` on the official layout, and on the real radiograph where it is at hand."""

from __future__ import annotations

import json
import shutil

import numpy as np
import open_clip
import pytest
import torch
from official.base import Official
from official.siim import write_siim
from places import SHARED
from safetensors.torch import save_file

from xbench.geometry.coverage import Coverage

REAL = SHARED / "data" / "siim_acr"
TINY_CLIP = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 48, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def architecture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A CLIP of the real structure and a tiny size, as a folder with its weights."""
    folder = tmp_path_factory.mktemp("tiny_clip")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CLIP, "preprocess_cfg": {}}))
    torch.manual_seed(0)
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    save_file(dict(model.state_dict()), folder / "open_clip_model.safetensors")
    return f"local-dir:{folder}"


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Official:
    return write_siim(tmp_path_factory.mktemp("siim") / "download", positives=5, negatives=4)


OPTIONS = ("--trainer.logger", "false", "--data.num_workers", "0", "--trainer.accelerator", "cpu")


def test_clip_on_the_official_layout(command, official, architecture):
    options = ("--data.root", official.root, "--model.architecture", architecture)
    run = command("test", "--config", "clip_siim.yaml", *options, *OPTIONS)
    assert run.status == 0, run.errors
    results = run.results
    assert (results["model"], results["dataset"], results["findings"]) == ("clip", "siim", ["Pneumothorax"])
    assert results["counts"]["images"] == 9
    assert results["counts"]["per_finding"]["Pneumothorax"] == {"positives": 5, "negatives": 4, "with_region": 5}
    for row in run.rows:
        mask = official.masks[row["image_id"]].get("Pneumothorax")
        assert row["label"] == int(mask is not None)
        if mask is not None:
            assert row["region_area"] == Coverage.of(mask, (224, 224)).at(0.5).mean()
    scores = results["classification"]["per_class"]["Pneumothorax"]
    assert 0 <= scores["auroc"] <= 1
    provenance = results["provenance"]
    assert set(provenance["annotation_sha256"]) == {"train-rle.csv"}
    assert len(provenance["checkpoint_sha256"]) == 64
    assert provenance["prompts"]["Pneumothorax"][1] == "a chest x-ray without pneumothorax"
    assert provenance["model"]["saliency"] == "patch"


def test_the_oracle_on_the_official_layout(command, official):
    results = command("test", "--config", "oracle_siim", "--data.root", official.root, *OPTIONS).results
    assert set(results["grounding"]["macro"].values()) == {1.0}
    assert set(results["classification"]["macro"].values()) == {1.0}


def test_an_unreadable_file_is_named(command, official, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(official.root, root)
    broken = sorted(root.rglob("*.dcm"))[0]
    broken.write_bytes(broken.read_bytes()[:400])
    run = command("test", "--config", "centre_siim", "--data.root", root, *OPTIONS)
    assert run.status == 1
    assert broken.stem in run.errors
    skipping = command("test", "--config", "centre_siim", "--data.root", root, "--data.on_error", "skip", *OPTIONS)
    assert skipping.status == 0, skipping.errors
    assert [entry["image_id"] for entry in skipping.results["counts"]["skipped"]] == [broken.stem]


def test_missing_images_are_counted_before_anything_runs(command, official, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(official.root, root)
    gone = sorted(root.rglob("*.dcm"))[:2]
    for path in gone:
        path.unlink()
    run = command("test", "--config", "centre_siim", "--data.root", root, *OPTIONS)
    assert run.status == 1
    assert "2 of 9" in run.errors
    assert min(path.stem for path in gone) in run.errors
    skipping = command("test", "--config", "centre_siim", "--data.root", root, "--data.on_error", "skip", *OPTIONS)
    assert {entry["image_id"] for entry in skipping.results["counts"]["skipped"]} == {path.stem for path in gone}


def test_a_missing_folder_says_what_was_expected(command):
    run = command("test", "--config", "clip_siim", "--data.root", "/no/such/folder")
    assert run.status != 0
    for fragment in ("/no/such/folder", "--data.root", "train-rle.csv", "dicom-images-train"):
        assert fragment in run.errors


@pytest.mark.skipif(not REAL.is_dir(), reason="the real radiograph is not at hand")
@pytest.mark.parametrize("table", ["train-rle_excerpt.csv"])
def test_the_real_radiograph(command, architecture, tmp_path, table):
    (dicom,) = REAL.glob("*.dcm")
    folder = tmp_path / "siim" / "dicom-images-train" / "study" / "series"
    folder.mkdir(parents=True)
    (folder / dicom.name).symlink_to(dicom)
    (tmp_path / "siim" / "train-rle.csv").write_text((REAL / table).read_text())
    run = command(
        "test", "--config", "clip_siim.yaml", "--data.root", tmp_path / "siim", "--model.architecture", architecture,
        "--data.on_error", "skip", *OPTIONS,
    )  # fmt: skip
    assert run.status == 0, run.errors
    assert run.results["counts"]["images"] == 1
    assert len(run.results["counts"]["skipped"]) == 14
    (row,) = run.rows
    assert row["image_id"] == dicom.stem
    assert row["label"] == 0
    assert np.isfinite(row["logit"])
    assert 0 < row["probability"] < 1
