from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from downloads import CUT_OFF, assert_reads, records_of, refusal, write_small
from places import SHARED

from xbench.data import ChestXDet10

REAL = SHARED / "data" / "chestx_det10" / "train_excerpt.json"
SPELLED = {"Effusion": "Pleural Effusion", "Fibrosis": "Pulmonary Fibrosis"}


@pytest.mark.parametrize("split", ["test", "train"])
def test_images_labels_and_regions(downloads, split):
    official = downloads("chestxdet10")
    data = ChestXDet10(str(official.root), split=split)
    noted = assert_reads(data, official, official.splits[split])
    assert noted == ({name: (CUT_OFF,) for name, _ in official.outside} if split == "test" else {})
    assert data.notes == [], "the images of the other split are no strays"
    assert data.annotation_files() == [official.root / f"{split}.json"]
    assert ChestXDet10.splits == ("test", "train")


def small(root, *entries, names=("1", "2")):
    write_small(root / "test_data", names)
    (root / "test.json").write_text(json.dumps(entries))
    return root


def entry(name="1.png", syms=(), boxes=()):
    return {"file_name": name, "syms": list(syms), "boxes": list(boxes)}


def test_names_of_files(tmp_path):
    entries = [entry("1.PNG"), entry("../../test_data/2.png"), entry("images\\3.png"), entry("4")]
    root = small(tmp_path, *entries, names=("1", "2", "3", "4"))
    (root / "test_data" / "1.png").rename(root / "test_data" / "1.PNG")
    data = ChestXDet10(str(root))
    assert list(records_of(data)) == ["1", "2", "3", "4"]
    assert data.notes == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "is not a list of images"),
        ([None], "entry 1"),
        ([{"file_name": "1.png", "boxes": []}], "entry 1: 'syms' is missing"),
        ([entry("")], "entry 1: file_name is empty"),
        ([entry(), entry()], "'1' is annotated twice"),
        ([entry(boxes=[[1, 2, 3, 4]])], "entry 1"),
        ([entry(syms=["Hernia"], boxes=[[1, 2, 3, 4]])], "'Hernia' is none of the findings"),
        ([entry(syms=["Mass"], boxes=[[1, 2, 3]])], "entry 1"),
        ([entry(syms=["Mass"], boxes=[[3, 2, 1, 4]])], "ends before it begins"),
        ([entry(syms=["Mass"], boxes=[[1, 2, 3, 10**400]])], "is not a pixel"),
    ],
)
def test_malformed_entries(tmp_path, content, said):
    root = small(tmp_path)
    (root / "test.json").write_text(json.dumps(content))
    refusal("chestxdet10", root, says=[root / "test.json", said])


@pytest.mark.skipif(not REAL.is_file(), reason="no real data here")
def test_real_entries(tmp_path):
    entries = json.loads(REAL.read_text())
    names = {one["file_name"].removesuffix(".png"): one for one in entries}
    # What the description of the excerpt says.
    assert (len(entries), len(names), sum(not one["syms"] for one in entries)) == (35, 35, 8)
    assert len(names["36205"]["boxes"]) == 24
    data = ChestXDet10(str(write_small(tmp_path, sorted(names))), annotations=str(REAL), split="train")
    records = records_of(data)
    assert data.notes == []
    boxes = Counter(a.finding for record in records.values() for a in record.source.annotations)
    written = Counter(SPELLED.get(symptom, symptom) for one in entries for symptom in one["syms"])
    assert boxes == written
    assert boxes.keys() == {*ChestXDet10.findings}
    for name, one in names.items():
        expected: dict[str, np.ndarray] = {}
        for symptom, (x1, y1, x2, y2) in zip(one["syms"], one["boxes"], strict=True):
            mask = expected.setdefault(SPELLED.get(symptom, symptom), np.zeros((1024, 1024), bool))
            mask[y1:y2, x1:x2] = True
        assert records[name].labels == {finding: int(finding in expected) for finding in ChestXDet10.findings}
        regions = data.load(records[name]).regions
        assert regions.keys() == expected.keys()
        for finding, mask in expected.items():
            np.testing.assert_array_equal(regions[finding], mask)
    # One rectangle under two symptoms belongs to both.
    twice = names["36367"]
    shared = [box for box in twice["boxes"] if twice["boxes"].count(box) > 1]
    assert shared
