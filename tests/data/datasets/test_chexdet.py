from __future__ import annotations

import json

import numpy as np
import pytest
from downloads import CUT_OFF, assert_reads, records_of, refusal, write_small
from PIL import Image, ImageDraw

from xbench.data import ChestXDet
from xbench.geometry.shapes import Shape


@pytest.mark.parametrize("polygons", [False, True])
@pytest.mark.parametrize("split", ["test", "train"])
def test_images_labels_and_regions(downloads, split, polygons):
    official = downloads("chexdet", polygons=polygons)
    data = ChestXDet(str(official.root), regions="polygons" if polygons else "boxes", split=split)
    noted = assert_reads(data, official, official.splits[split])
    assert noted == ({name: (CUT_OFF,) for name, _ in official.outside} if split == "test" else {})
    assert data.annotation_files() == [official.root / f"ChestX_Det_{split}.json"]


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
    # One within another leaves no hole.
    np.testing.assert_array_equal(radiograph.regions["Mass"], np.array(canvas))
    np.testing.assert_array_equal(radiograph.regions["Pleural Effusion"], np.array(canvas))
    kept = [Shape.from_points(points).on(1024, 1024) for points in entry["polygons"][:2]]
    assert [*radiograph.instances["Mass"]] == kept


@pytest.mark.parametrize("regions", ["boxes", "polygons"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"polygons": []}, "there are 1 boxes and 0 polygons"),
        ({"polygons": [[]]}, "A polygon has no points"),
        ({"polygons": [[[1, 2], [3]]]}, "entry 1"),
        ({"polygons": [[[1, 2], [3, None]]]}, "entry 1"),
        ({"polygons": 7}, "entry 1"),
        ({"boxes": [[1, 2, 3]]}, "entry 1"),
        ({"syms": ["Hernia"]}, "'Hernia' is none of the findings"),
    ],
)
def test_malformed_entries(tmp_path, change, said, regions):
    entry = {"file_name": "1.png", "syms": ["Mass"], "boxes": [[1, 2, 3, 4]], "polygons": [[[1, 2], [3, 2], [3, 4]]]}
    write_small(tmp_path / "test_data", ["1"])
    path = tmp_path / "ChestX_Det_test.json"
    path.write_text(json.dumps([entry | change]))
    refusal("chexdet", tmp_path, regions=regions, says=[path, said])
