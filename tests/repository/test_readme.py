"""The README's own code: a model and a dataset outside the package, and the use from Python."""

from __future__ import annotations

import csv
import importlib
import re
import sys

import cv2
import pytest
from places import ROOT

from xbench.phantom import draw_phantom

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(?:python|yaml)\n(.*?)```", README, flags=re.DOTALL)
FILES = {match[1]: block for block in BLOCKS if (match := re.match(r"# (\S+\.(?:py|yaml))\n", block))}


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A working directory with the README's files and data that fit them."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    folder = tmp_path / "my_data" / "images"
    folder.mkdir(parents=True)
    with (tmp_path / "my_data" / "boxes.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "x0", "y0", "x1", "y1"])
        for index in range(12):
            phantom = draw_phantom(7, index)
            cv2.imwrite(str(folder / f"{index:02d}.png"), phantom.image)
            box = ["", "", "", ""]
            if "Nodule" in phantom.masks or index == 0:
                rows, columns = phantom.masks.get("Nodule", phantom.image > 200).nonzero()
                box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            table.writerow([f"{index:02d}.png", *box])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_model_and_dataset_outside_the_package(workplace, command):
    assert set(FILES) == {"my_model.py", "my_data.py", "my_pair.yaml"}
    run = command("test", "--config", "my_pair.yaml", "--trainer.logger", "false", "--data.num_workers", "0")
    assert run.status == 0, run.errors
    results = run.results
    assert (results["model"], results["dataset"]) == ("myvlm", "mydata")
    assert results["counts"]["images"] == 12
    positives = results["counts"]["per_finding"]["Nodule"]["positives"]
    assert results["grounding"]["per_class"]["Nodule"]["count"] == positives > 0
    assert results["provenance"]["prompts"]["Nodule"] == ["a chest radiograph showing nodule"]


def test_a_box_that_begins_outside_of_the_image_keeps_the_part_inside(workplace):
    """Of a slice that begins at -5, numpy gives nothing."""
    with (workplace / "my_data" / "boxes.csv").open("a") as file:
        file.write("01.png,-5,-7,20,30\n")
    data = importlib.import_module("my_data").MyData("my_data")
    record = data.read_records(annotated=True)[1]
    region = data.load(record).regions["Nodule"]
    assert region[:30, :20].all() and region.sum() >= 600
    assert data.read_records(annotated=False)[1].labels == {}


def test_use_from_python(tmp_path, monkeypatch, capsys):
    (code,) = (block for block in BLOCKS if "trainer.test(" in block)
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace("images=50", "images=16"), "README.md", "exec"), {})
    assert 0.3 < float(capsys.readouterr().out.splitlines()[-1]) <= 1
    assert list(tmp_path.glob("demo_phantom/*/results.json"))
