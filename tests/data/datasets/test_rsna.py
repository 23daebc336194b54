from __future__ import annotations

import csv

import numpy as np
import pytest
from downloads import assert_reads, records_of, refusal, write_small
from official.rsna import MDAI, write_medklip_list
from places import SHARED

from xbench.data import RSNAPneumonia

TABLE = "stage_2_train_labels.csv"
HEADER = "patientId,x,y,width,height,Target"
REAL = SHARED / "data" / "rsna_pneumonia" / "stage_2_train_labels_excerpt.csv"


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


@pytest.mark.skipif(not REAL.is_file(), reason="no real data here")
def test_real_rows(tmp_path):
    boxes: dict[str, list[tuple[int, ...]]] = {}
    with open(REAL, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        own = boxes.setdefault(row["patientId"], [])
        if row["Target"] == "1":
            own.append(tuple(int(float(row[name])) for name in ("x", "y", "width", "height")))
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
