from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import own
import pytest

KINDS = {
    "coco": ("coco", own.write_coco, {}),
    "csv": ("csv", own.write_csv, {}),
    "corners": ("csv", own.write_csv, {"corners": True, "fractions": True}),
    "phrases": ("csv", own.write_phrases, {}),
    "phrases in coco": ("coco", own.write_phrases, {"kind": "coco"}),
    "masks": ("masks", own.write_masks, {}),
    "masks by name": ("masks", own.write_masks, {"pattern": "{image}_{finding}"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_scores_1_by_the_file_that_init_writes(command, tmp_path, kind):
    name, write, how = KINDS[kind]
    write(own.write_images(tmp_path / "data"), **how)
    run = command("init", "data")
    assert run.status == 0 and f"Format: {name}" in run.output and "Missing" not in run.output, run
    assert "No prompts for nod" in run.output or name == "masks"
    run = command("test", "--config", f"oracle_{name}", "--config", "mine.yaml", "--trainer.logger", "false", status=0)
    assert run.results["grounding"]["macro"]["dice_best"] == 1 and run.results["counts"]["images"] == 12


def test_init_reads_other_names_and_says_what_is_missing(command, tmp_path):
    root = own.write_images(tmp_path / "data")
    rows = [["File_Name", "class", "xmin", "ymin", "xmax", "ymax"], ["p0/view0.png", "Pneumothorax", 1, 2, 30, 40]]
    own.write_table(root / "found.csv", rows)
    run = command("init", "data", "--out", "other.yaml")
    assert run.status == 0 and f"Missing: {root / 'labels.csv'}" in run.output
    written = (tmp_path / "other.yaml").read_text()
    assert "name: data\n" in written and "# Check name and root first" in written
    assert "image: File_Name" in written and "box: xyxy" in written and "units" not in written
    assert "Pneumothorax: Pneumothorax" in written and "no prompts" not in run.output


def test_init_refuses_what_it_cannot_do(command, tmp_path):
    assert "is not a folder" in command("init", "nowhere").errors
    (tmp_path / "data").mkdir()
    run = command("init", "data")
    assert run.status == 1 and "has no PNG, JPEG or DICOM files" in run.errors
    own.write_images(tmp_path / "data")
    (tmp_path / "data" / "odd.json").write_text('{"images": [], "annotations": [7], "categories": []}')
    (tmp_path / "data" / "odd.csv").write_text("image,x,y\na")
    assert "has no annotations that init knows" in command("init", "data").errors
    (tmp_path / "mine.yaml").touch()
    run = command("init", "data")
    assert run.status == 2 and "mine.yaml exists" in run.errors


def test_view_opens_the_report_or_says_where_it_is(command, tmp_path, monkeypatch):
    assert "Write one with xbench report runs" in command("view").errors
    page = tmp_path / "runs" / "report" / "index.html"
    page.parent.mkdir(parents=True)
    page.touch()
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert command("view").output == f"No browser here: copy this file to your computer and open it: {page}\n"
    monkeypatch.setenv("DISPLAY", ":0")
    for words in ((), ("runs",), ("runs/report",), (page,)):
        assert command("view", *words).output == f"Opened: {page}\n"
    assert opened == 4 * [page.as_uri()]


@pytest.fixture
def asked(monkeypatch) -> list[list[str]]:
    words: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda given: words.append(given) or SimpleNamespace(returncode=1))
    return words


@pytest.mark.parametrize("named", ["wrong_models.Coarse", "clip", "mine.yaml"])
def test_conform_hands_the_model_and_its_options_over(command, tmp_path, asked, named):
    (tmp_path / "mine.yaml").write_text("model: {class_path: my.Model, init_args: {width: 3, image_size: 224}}\n")
    run = command("conform", named, "--model.image_size", "448")
    assert run.status == 1 and f"{named} does not pass" in run.errors
    ((*_, model, _, options),) = asked
    assert model == {"clip": "xbench.models.maps.clip.CLIP", "mine.yaml": "my.Model"}.get(named, named)
    assert json.loads(options) == {"image_size": 448} | ({"width": 3} if named == "mine.yaml" else {})


def test_conform_runs_the_tests(command, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k prompts")
    assert command("conform", "demo").status == 0
    assert not list(Path.cwd().iterdir())
