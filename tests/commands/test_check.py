from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from downloads import Downloads
from official.base import Official
from PIL import Image
from places import SHARED
from toys import Squares

from xbench.commands import check
from xbench.commands.check import choose_cells, outlined
from xbench.data import ChestXDet10
from xbench.findings.published import paper
from xbench.geometry.shapes import Shape

CHECK = ("check", "--config", "oracle_chestxdet10", "--data.num_workers", "0", "--data.root")
OUTLINE = (255, 196, 0)
SHARED = SHARED / "data"


@pytest.fixture
def det10(downloads: Downloads) -> Official:
    return downloads("chestxdet10", outside=False)


def row_of(output: str, finding: str) -> list[str]:
    (line,) = [line for line in output.splitlines() if line.strip().startswith(f"{finding} ")]
    return line.split()[len(finding.split()) :]


def test_counts_stand_beside_the_published_ones(command, det10):
    run = command(*CHECK, det10.root, status=0)
    assert "No problems found." in run.output
    names = det10.splits["test"]
    for finding in ChestXDet10.findings:
        positives = sum(det10.labels[name][finding] for name in names)
        boxes = sum(box.finding == finding for name in names for box in det10.boxes.get(name, []))
        regions = sum(finding in det10.masks[name] for name in names)
        theirs = [str(entry["counts"][finding]) for entry in paper()["positives"]["chestxdet10"]]
        own = [str(n) for n in (positives, boxes, regions, len(names) - positives, 0)]
        assert row_of(run.output, finding) == own + theirs


def test_the_contact_sheet_outlines_every_finding(command, det10, tmp_path):
    command(*CHECK, det10.root)
    sheet = np.array(Image.open(tmp_path / "runs" / "check" / "chestxdet10" / "contact_sheet.png").convert("RGB"))
    # Tiles are 448 wide and, with their captions, 478 high, 10 pixels apart.
    drawn = (sheet == OUTLINE).all(axis=2)[10:-30, 10:]
    tiles = [
        drawn[y : y + 478, x : x + 448].any() for y in range(0, len(drawn), 488) for x in range(0, drawn.shape[1], 458)
    ]
    assert sum(tiles) == min(48, sum(len(det10.masks[name]) for name in det10.splits["test"]))


def test_an_outline_lies_around_its_region(det10):
    data = ChestXDet10(str(det10.root))
    record = next(record for record in data.read_records(True) if det10.masks[record.image_id].get("Mass") is not None)
    y, x = (outlined(data.load(record), "Mass") == OUTLINE).all(axis=2).nonzero()
    rows, columns = det10.masks[record.image_id]["Mass"].nonzero()
    expected = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) * 448 / 1024
    # The outline is drawn on the outermost covered pixels.
    assert np.abs(np.array([x.min(), y.min(), x.max() + 1, y.max() + 1]) - expected).max() <= 1


def test_findings_take_turns_on_the_sheet(det10):
    data = ChestXDet10(str(det10.root))
    records = data.read_records(True)
    pairs = {finding: [(record, finding) for record in records] for finding in ("Mass", "Nodule")}
    cells = choose_cells(data, pairs | {"Mass": pairs["Mass"] * 30})
    assert len(cells) <= 48
    assert [finding for _, finding in cells[:4]] == ["Mass", "Nodule", "Mass", "Nodule"]


def test_every_problem_is_reported_at_once(command, det10, downloads, tmp_path):
    broken = downloads.copy("chestxdet10", tmp_path / "broken", outside=False)
    gone, cut, *_ = sorted(broken.splits["test"])
    broken.files[gone].unlink()
    content = broken.files[cut].read_bytes()
    broken.files[cut].unlink()
    broken.files[cut].write_bytes(content[: len(content) // 2])
    clip = ("check", "--config", "clip_chestxdet10", "--data.root", broken.root, "--data.num_workers", "0")
    run = command(*clip, "--model.checkpoint", tmp_path / "no.safetensors", status=1)
    assert "Traceback" not in run.output + run.errors
    assert "no.safetensors" in run.output
    assert f"1 annotated image without a file ({gone})" in run.output
    assert f"Image {cut} cannot be read" in run.output
    assert "3 problems" in run.errors
    listed = (tmp_path / "runs" / "check" / "chestxdet10" / "problems.txt").read_text().splitlines()
    assert len(listed) == 3 + 1
    assert listed[-1] == f"Image {gone} has no file."
    # What is in the annotation files is counted whether or not there are images.
    drawn = sum(int(row_of(run.output, finding)[1]) for finding in ChestXDet10.findings)
    assert drawn == sum(len(det10.boxes.get(name, [])) for name in det10.splits["test"])


def test_published_counts_stand_beside_their_own_split_alone(command, det10):
    run = command(*CHECK, det10.root, "--data.split", "train")
    assert "publ." not in run.output
    assert len(row_of(run.output, "Mass")) == 5
    assert "Published counts are for the split test only." in run.output


def test_a_list_of_old_problems_goes_when_they_are_gone(command, det10, tmp_path):
    listing = tmp_path / "runs" / "check" / "chestxdet10" / "problems.txt"
    listing.parent.mkdir(parents=True)
    listing.write_text("an old one\n")
    command(*CHECK, det10.root, status=0)
    assert not listing.exists()


class Named(Squares):
    findings = (*Squares.findings, "Effusion")


def test_check_gives_the_usual_name_of_a_finding(command, toy_config):
    toy_config.write_text(toy_config.read_text().replace("toys.Squares", f"{__name__}.Named"))
    said = command("check", "--config", toy_config).output
    assert said.count("in `xbench list findings`") == said.count("Effusion is Pleural Effusion in") == 1


class Sliced(Squares):
    """Boxes that begin left of the image, drawn by slices: numpy counts negative places from the right."""

    def load(self, record):
        radiograph = super().load(record)
        regions = {finding: np.zeros(radiograph.image.shape, bool) for finding in self.findings}
        for finding, region in radiograph.regions.items():
            begin = -5 if (record.source, finding) in ((3, "Square"), (3, "Hole"), (6, "Hole")) else 0
            regions[finding][2:9, begin:20] = region.any()
        return replace(radiograph, regions=regions)


def test_a_positive_annotation_that_leaves_no_region_is_named(command, toy_config, tmp_path):
    toy_config.write_text(toy_config.read_text().replace("toys.Squares", f"{__name__}.Sliced"))
    sliced = ("--config", toy_config, "--data.images", "8")
    run = command("check", *sliced, status=1)
    assert "3 problems" in run.errors
    listed = (tmp_path / "runs" / "check" / "sliced" / "problems.txt").read_text().splitlines()
    named = [("003", "Square"), ("003", "Hole"), ("006", "Hole")]
    assert [re.findall(r"Image square-(\d+): the annotation of (\w+) covers no pixel", line) for line in listed] == [
        [pair] for pair in named
    ]
    run = command("test", *sliced, status=0)
    notes = {note["note"].split()[3]: (note["count"], note["first"]) for note in run.results["counts"]["notes"]}
    assert notes == {"Square": (1, ["square-003"]), "Hole": (2, ["square-003", "square-006"])}


class Framed(Squares):
    """Regions with a box around each as an item, without a size or wrongly with fractions of pixels."""

    def __init__(self, whole: bool = True, **kwargs) -> None:
        super().__init__(**kwargs)
        self.whole = whole

    def read_records(self, annotated):
        records = super().read_records(annotated)
        return [replace(one, patient_id="7", attributes={"sex": "FM"[one.source % 2]}) for one in records]

    def load(self, record):
        radiograph = super().load(record)
        items = {}
        for finding, region in radiograph.regions.items():
            (y, x), size = region.nonzero(), region.shape
            corners = x.min(), y.min(), x.max() + 1, y.max() + 1
            half = Shape("box", size, np.array(corners) + 0.5)
            items[finding] = [Shape.from_corners(*map(float, corners)) if self.whole else half]
        return replace(radiograph, instances=items)


def test_items_of_a_data_module_are_counted_and_read_back(command, toy_config):
    options = ("--config", toy_config, "--data.images", "8")
    assert row_of(command("check", *options).output, "Square") == ["4", "-", "4", "4", "0"]
    toy_config.write_text(toy_config.read_text().replace("toys.Squares", f"{__name__}.Framed"))
    assert row_of(command("check", *options).output, "Square") == ["4", "4", "4", "4", "0"]
    assert "8 images: patient recorded as both F and M" in command("check", *options).output
    run = command("test", *options)
    assert run.status == 0, run.errors
    assert command("verify", run.folder, "--deep").status == 0
    for name in ("check", "test"):
        refused = command(name, *options, "--data.whole", "false")
        assert refused.status and refused.folder is None
        for words in ("square-000", "`instances` of Hole", "Shape.from_corners"):
            assert words in refused.errors + refused.output


def test_a_package_that_is_too_old(monkeypatch):
    monkeypatch.setattr(check.importlib.metadata, "version", lambda name: "0.0.1" if name == "lightning" else "99")
    problems = check.check_versions()
    assert any(problem.startswith("lightning 0.0.1 is installed") for problem in problems)
    assert not any(problem.startswith("numpy") for problem in problems)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real data here")
def test_real_rows_without_images(command, tmp_path):
    root = tmp_path / "nih"
    root.mkdir()
    for name in ("BBox_List_2017", "Data_Entry_2017_v2020"):
        shutil.copy(SHARED / "nih_chestxray14" / f"{name}_excerpt.csv", root / f"{name}.csv")
    run = command("check", "--config", "oracle_chestxray14", "--data.root", root, status=1)
    assert "34 annotated images without a file" in run.output
    findings = ("Atelectasis", "Cardiomegaly", "Pleural Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia")
    assert sum(int(row_of(run.output, finding)[1]) for finding in (*findings, "Pneumothorax")) == 48
