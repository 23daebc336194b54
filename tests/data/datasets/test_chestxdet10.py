from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from downloads import records_of, write_small
from PIL import Image, ImageDraw
from places import SHARED

from xbench.data import ChestXDet, ChestXDet10
from xbench.geometry.shapes import Shape

REAL = SHARED / "data" / "chestx_det10" / "train_excerpt.json"
SPELLED = {"Effusion": "Pleural Effusion", "Fibrosis": "Pulmonary Fibrosis"}


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


@pytest.mark.skipif(not REAL.is_file(), reason="no real data here")
def test_real_entries(tmp_path):
    entries = json.loads(REAL.read_text())
    names = {one["file_name"].removesuffix(".png"): one for one in entries}
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


def test_each_polygon_is_drawn_by_itself_and_kept_with_its_corners(tmp_path):
    corners = [[100, 100], [300, 120], [200, 400]]
    inner = [[150, 130], [250, 140], [200, 260]]
    entry = {
        "file_name": "1.png",
        "syms": ["Mass", "Mass", "Effusion"],
        "boxes": [[100, 100, 300, 400], [150, 130, 250, 260], [100, 100, 300, 400]],
        "polygons": [corners, [*inner, inner[0]], corners],
    }
    write_small(tmp_path / "test_data", ["1"])
    (tmp_path / "ChestX_Det_test.json").write_text(json.dumps([entry]))
    data = ChestXDet(str(tmp_path), regions="polygons")
    radiograph = data.load(records_of(data)["1"])
    canvas = Image.new("1", (1024, 1024))
    ImageDraw.Draw(canvas).polygon([(x, y) for x, y in corners], outline=1, fill=1)
    np.testing.assert_array_equal(radiograph.regions["Mass"], np.array(canvas))
    np.testing.assert_array_equal(radiograph.regions["Pleural Effusion"], np.array(canvas))
    kept = [Shape.from_points(points).on(1024, 1024) for points in entry["polygons"][:2]]
    assert [*radiograph.instances["Mass"]] == kept
