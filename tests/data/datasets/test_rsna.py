from __future__ import annotations

import csv

import numpy as np
import pytest
from downloads import CUT_OFF, assert_reads, records_of, refusal, write_small
from official.rsna import MDAI, write_medklip_list
from places import SHARED

from xbench.data import RSNAPneumonia

TABLE = "stage_2_train_labels.csv"
HEADER = "patientId,x,y,width,height,Target"
REAL = SHARED / "data" / "rsna_pneumonia" / "stage_2_train_labels_excerpt.csv"


def test_images_labels_and_regions(downloads):
    official = downloads("rsna")
    data = RSNAPneumonia(str(official.root))
    noted = assert_reads(data, official, official.splits["train"])
    assert noted == {name: (CUT_OFF,) for name, _ in official.outside} != {}
    assert data.notes == []
    assert data.annotation_files() == [official.root / TABLE]
    boxes = {record.image_id: len(record.source.annotations) for record in data.records}
    assert boxes == {name: len(official.boxes.get(name, [])) for name in official.splits["train"]}


def test_the_original_files_with_a_published_list(downloads):
    official = downloads("rsna", layout="mdai", outside=False)
    data = RSNAPneumonia(str(official.root), annotations=str(official.root / "test.csv"))
    assert_reads(data, official, official.splits["train"])
    assert data.notes == []
    refusal("rsna", official.root, says=[TABLE, "--data.annotations"])


def test_the_original_files_are_found_whatever_their_paths_look_like(downloads, tmp_path):
    official = downloads("rsna", layout="mdai", outside=False)
    table = tmp_path / "list.csv"
    text = (official.root / "test.csv").read_text()
    for other in (text.replace("/", "\\"), text.replace(MDAI, "/data/elsewhere/mdai"), text.replace(f"{MDAI}/", "")):
        table.write_text(other)
        records = records_of(RSNAPneumonia(str(official.root), annotations=str(table)))
        assert {name: record.source.path for name, record in records.items()} == official.files
    table.write_text(text.replace(f"{MDAI}/", "../../"))
    records = records_of(RSNAPneumonia(str(official.root / MDAI), annotations=str(table)))
    assert {name: record.source.path for name, record in records.items()} == official.files


def test_a_published_list_chooses_images_or_annotates_them(downloads, tmp_path):
    official = downloads("rsna")
    chosen = official.splits["train"][1:6]
    write_medklip_list(official, tmp_path / "list.csv", chosen)
    for option in ("image_list", "annotations"):
        data = RSNAPneumonia(str(official.root), **{option: str(tmp_path / "list.csv")})
        assert_reads(data, official, chosen)
        assert data.notes == [], "the other images are not strays"
        assert tmp_path / "list.csv" in data.annotation_files()


def small(root, *rows, header=HEADER, names=("a", "b")):
    write_small(root / "stage_2_train_images", names, ".dcm")
    (root / TABLE).write_text("\n".join([header, *rows]) + "\n")
    return root


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["a,1,2,3,4,1", "a,,,,,0"], "line 3: a has Target 0 here and 1 further up"),
        (["a,1,2,3,4,0"], "line 2: there is a box, and Target is 0"),
        (["a,1,2,3,1e9,1"], "line 2: The coordinate '1000000000.0' is not a pixel"),
        (["a,,,,,"], "line 2: Target is '', not 0 or 1"),
    ],
)
def test_malformed_rows(tmp_path, rows, said):
    root = small(tmp_path, *rows)
    refusal("rsna", root, says=[root / TABLE, said])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["a,x.dcm,1;2;3,1"], "line 2: boxes holds '1;2;3', which is not x;y;width;height"),
        (["a,x.dcm,1;2;3;nan,1"], "is not a pixel"),
        (["a,x.dcm,,1"], "line 2: classes is '1', and there are 0 boxes"),
        (["a,x.dcm,1;2;3;4,0"], "line 2: classes is '0', and there are 1 boxes"),
        (["a,x.dcm,,0", "a,x.dcm,,0"], "line 3: a is there a second time"),
    ],
)
def test_malformed_lists(tmp_path, rows, said):
    root = small(tmp_path, "a,,,,,0")
    table = root / "list.csv"
    table.write_text("\n".join(["ID,img_path,boxes,classes", *rows]) + "\n")
    refusal("rsna", root, annotations=str(table), says=[table, said])


@pytest.mark.skipif(not REAL.is_file(), reason="no real data here")
def test_real_rows(tmp_path):
    boxes: dict[str, list[tuple[int, ...]]] = {}
    with open(REAL, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        own = boxes.setdefault(row["patientId"], [])
        if row["Target"] == "1":
            own.append(tuple(int(float(row[name])) for name in ("x", "y", "width", "height")))
    # What the description of the excerpt says.
    assert (len(rows), len(boxes), sum(not own for own in boxes.values())) == (43, 25, 8)
    assert {len(own) for own in boxes.values()} == {0, 1, 2, 3, 4}
    data = RSNAPneumonia(str(write_small(tmp_path, sorted(boxes))), annotations=str(REAL))
    records = records_of(data)
    assert records.keys() == boxes.keys()
    for name, own in boxes.items():
        expected = np.zeros((1024, 1024), bool)
        for x, y, width, height in own:
            expected[y : y + height, x : x + width] = True
        assert records[name].labels == {"Pneumonia": int(bool(own))}
        assert len(records[name].source.annotations) == len(own)
        drawn = data.load(records[name]).regions.get("Pneumonia", np.zeros_like(expected))
        np.testing.assert_array_equal(drawn, expected)
