from __future__ import annotations

import csv
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from downloads import notes_of, write_small
from hypothesis import given
from hypothesis import strategies as st

from xbench.data import ChestXray14, CheXlocalize, CocoDataset, CsvDataset, PadChestGR, PhantomCXR
from xbench.data.store import record_key
from xbench.findings.attributes import ATTRIBUTES, known_attributes

ODD = [
    "a sex that is neither F nor M counts as unknown",
    "an age that is not a number of years from 0 to 120 counts as unknown",
    "a projection other than PA, AP and lateral counts as unknown",
]


@pytest.mark.parametrize(
    ("stated", "expected", "notes"),
    [
        (("Female", "058Y", "PA"), {"sex": "F", "age": 58, "projection": "PA"}, []),
        ((" m ", "0", "LL"), {"sex": "M", "age": 0, "projection": "lateral"}, []),
        (("male", 120.0, "AP_horizontal"), {"sex": "M", "age": 120, "projection": "AP"}, []),
        (("", None, ""), {}, []),
        *(
            (odd, {}, ODD)
            for odd in (("Unknown", "120.1", "frontal"), ("O", "-1", "?"), (1, "Y", []), ("x", "nan", "x"))
        ),
    ],
)
def test_what_is_understood_and_what_counts_as_unknown(stated, expected, notes):
    assert known_attributes(dict(zip(ATTRIBUTES, stated, strict=True))) == (expected, notes)


@given(*[st.text()] * 3)
def test_any_text_is_read(sex, age, projection):
    found, _ = known_attributes({"sex": sex, "age": age, "projection": projection})
    assert found.get("sex", "F") in {*"FM"} and 0 <= found.get("age", 0) <= 120
    assert found.get("projection", "PA") in {"PA", "AP", "lateral"}


def checked(data):
    return {record.image_id: record for record in data.checked_records(annotated=True)}


def test_annotation_files_that_tell(downloads, tmp_path):
    nih = checked(ChestXray14(str(downloads("chestxray14").root)))
    with open(downloads("chestxray14").root / "Data_Entry_2017_v2020.csv", newline="") as file:
        rows = {row[0].removesuffix(".png"): row for row in csv.reader(file)}
    for name, record in nih.items():
        assert record.attributes == {"sex": "M", "age": float(rows[name][4]), "projection": rows[name][6]}
    for split in ("val", "test"):
        official = downloads("chexlocalize")
        for name, record in checked(CheXlocalize(str(official.root), split=split)).items():
            lateral = name.endswith("lateral")
            stated = {"sex": "F", "age": 60.0 + official.splits["val"].index(name)} if split == "val" else {}
            # The table of the test split states none of them, and the file's name a lateral.
            seen = {"projection": "lateral"} if lateral else {"projection": "AP"} if split == "val" else {}
            assert record.attributes == stated | seen
    gr = downloads.copy("padchestgr", tmp_path / "gr")
    with open(gr.root / "master_table.csv", newline="") as file:
        header, *lines = csv.reader(file)
    with open(gr.root / "master_table.csv", "w", newline="") as file:
        about = ["PatientSex_DICOM", "PatientAge", "Projection"]
        csv.writer(file).writerows([[*header, *about], *([*line, "F", "71.0", "AP_horizontal"] for line in lines)])
    attributes = [record.attributes for record in checked(PadChestGR(str(gr.root))).values()]
    assert attributes == [{"sex": "F", "age": 71, "projection": "AP"}] * len(attributes)


def test_own_data_may_tell(tmp_path):
    write_small(tmp_path, ["a", "b"])
    (tmp_path / "labels.csv").write_text("image,sex,age,projection,nod\na,F,30,PA,1\nb,?,411,,0\n")
    (tmp_path / "boxes.csv").write_text("image,finding,x,y,width,height\na,nod,2,2,4,4\n")
    data = CsvDataset(str(tmp_path), {"nod": "Nodule"})
    records = checked(data)
    assert records["a"].attributes == {"sex": "F", "age": 30, "projection": "PA"}
    assert records["b"].attributes == {} and notes_of(data) == {text: ["b"] for text in ODD[:2]}
    # No prepared image depends on them.
    assert record_key(records["a"]) == record_key(replace(records["a"], attributes={}))
    images = [{"id": 1, "file_name": "a.png", "sex": "M", "age": 8}, {"id": 2, "file_name": "b.png", "age": [1]}]
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [2, 2, 4, 4]}
    content = {"images": images, "annotations": [box], "categories": [{"id": 1, "name": "nod"}]}
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    records = checked(CocoDataset(str(tmp_path), {"nod": "Nodule"}))
    assert [record.attributes for record in records.values()] == [{"sex": "M", "age": 8}, {}]


def test_a_run_keeps_them_for_every_image(command):
    run = command("test", "--config", "whole_image_phantom", "--data.images", "12", "--data.size", "64", status=0)
    kept = pq.read_table(run.folder / "images.parquet").select(["image_id", *ATTRIBUTES]).to_pylist()
    assert kept == [{"image_id": name, **record.attributes} for name, record in checked(PhantomCXR(12)).items()]
