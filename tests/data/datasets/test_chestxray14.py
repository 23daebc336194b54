from __future__ import annotations

import csv

import numpy as np
import pytest
from downloads import notes_of, records_of, write_small
from places import SHARED

from xbench.data import ChestXray14

BOXES = "BBox_List_2017.csv"
LABELS = "Data_Entry_2017_v2020.csv"
HEADER = "Image Index,Finding Label,Bbox [x,y,w,h],,,"
LABEL_HEADER = "Image Index,Finding Labels,Follow-up #,OriginalImage[Width,Height]"
REAL = SHARED / "data" / "nih_chestxray14"
SPELLED = {"Effusion": "Pleural Effusion", "Infiltrate": "Infiltration"}
UNNAMED = "an image that the table of labels does not name; findings without a box are unknown"
DISAGREE = "a box of a finding that the table of labels does not give the image"


def test_without_the_table_of_labels_what_has_no_box_is_unknown(downloads, tmp_path):
    official = downloads.copy("chestxray14", tmp_path / "copy")
    (official.root / LABELS).unlink()
    for split in ("boxes", "test"):
        data = ChestXray14(str(official.root), split=split)
        for name, record in records_of(data).items():
            assert record.labels == dict.fromkeys(official.masks[name], 1)
        assert data.notes == []


def small(root, rows, labels=None, header=HEADER, label_header=LABEL_HEADER, names=("1_0", "2_0")):
    write_small(root / "images", names)
    (root / BOXES).write_text("\n".join([header, *rows]) + "\n")
    if labels is not None:
        (root / LABELS).write_text("\n".join([label_header, *labels]) + "\n")
    return root


ROW = "1_0.png,Mass,10.9,20.1,3.99,4.5"


def test_the_table_of_2017_ends_with_an_empty_column(tmp_path):
    root = small(tmp_path, [ROW], ["1_0.png,Mass,0,1,2,"], label_header=f"{LABEL_HEADER},")
    (root / LABELS).rename(root / "Data_Entry_2017.csv")
    assert records_of(ChestXray14(str(root)))["1_0"].labels == {
        finding: int(finding == "Mass") for finding in ChestXray14.findings
    }


def test_tables_that_disagree(tmp_path):
    data = ChestXray14(str(small(tmp_path, [ROW, ROW.replace("1_0", "2_0")], ["1_0.png,No Finding,0,1,2"])))
    records = records_of(data)
    assert (records["1_0"].labels["Mass"], records["1_0"].labels["Nodule"]) == (1, 0)
    assert records["2_0"].labels == {"Mass": 1}
    assert notes_of(data) == {DISAGREE: ["1_0"], UNNAMED: ["2_0"]}


def test_a_listed_image_that_no_table_names(tmp_path):
    root = small(tmp_path, [ROW], ["1_0.png,Mass,0,1,2"])
    (root / "test_list.txt").write_text("2_0.png\n1_0.png\n2_0.png\n")
    data = ChestXray14(str(root), split="test")
    assert {name: dict(record.labels) for name, record in records_of(data).items()}["2_0"] == {}
    assert notes_of(data) == {UNNAMED: ["2_0"]}


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
def test_real_rows(tmp_path):
    boxes: dict[str, dict[str, np.ndarray]] = {}
    rows = (REAL / "BBox_List_2017_excerpt.csv").read_text().splitlines()[1:]
    for row in rows:
        name, spelling, *numbers = row.split(",")
        x, y, width, height = (int(float(number)) for number in numbers[:4])
        mask = np.zeros((1024, 1024), bool)
        mask[y : y + height, x : x + width] = True
        assert boxes.setdefault(name[:-4], {}).setdefault(SPELLED.get(spelling, spelling), mask) is mask
    with open(REAL / "Data_Entry_2017_v2020_excerpt.csv", newline="") as file:
        labels = {entry[0][:-4]: entry[1].split("|") for entry in list(csv.reader(file))[1:]}
    assert (len(rows), len(boxes)) == (48, 34)
    assert {len(own) for own in boxes.values()} == {1, 2, 3}
    assert sum(own == ["No Finding"] for own in labels.values()) >= 4
    root = write_small(tmp_path / "images", sorted(labels)).parent
    (root / LABELS).write_bytes((REAL / "Data_Entry_2017_v2020_excerpt.csv").read_bytes())
    (root / "test_list.txt").write_text("".join(f"{name}.png\n" for name in labels))
    pairs = 0
    for split, names in (("boxes", boxes), ("test", labels)):
        data = ChestXray14(str(root), annotations=str(REAL / "BBox_List_2017_excerpt.csv"), split=split)
        records = records_of(data)
        assert records.keys() == {*names}
        assert data.notes == [], "boxes and labels agree"
        for name, record in records.items():
            present = {SPELLED.get(label, label) for label in labels[name]}
            assert record.labels == {finding: int(finding in present) for finding in data.findings}
            if split == "test":
                continue
            regions = data.load(record).regions
            assert regions.keys() == boxes[name].keys()
            pairs += len(regions)
            for finding, mask in boxes[name].items():
                np.testing.assert_array_equal(regions[finding], mask)
    assert pairs == 48


@pytest.mark.skipif(not REAL.is_dir(), reason="no real data here")
def test_real_images_decode(tmp_path):
    data = ChestXray14(str(REAL))
    data.setup("predict")
    assert [record.image_id for record in data.records] == ["00000001_000", "00027426_000"]
    for record in data.records:
        image = data.load(record).image
        assert image.shape == (512, 512)
        assert image.std() > 30
