"""The written downloads of datasets with boxes, read again with plain code."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from official.base import Official
from official.chestxdet10 import CANONICAL as DET10
from official.chestxdet10 import write_chestxdet10
from official.chestxray14 import CANONICAL as NIH
from official.chestxray14 import write_chestxray14
from official.reread import have_neighbours, same_boxes, table
from official.rsna import MDAI, write_medklip_list, write_rsna
from official.vindr import CANONICAL as VINDR
from official.vindr import COLUMNS, KAGGLE, READERS, write_vindr
from PIL import Image
from pydicom import dcmread


@pytest.fixture(scope="module")
def rsna(tmp_path_factory) -> Official:
    return write_rsna(tmp_path_factory.mktemp("rsna") / "download")


@pytest.fixture(scope="module")
def vindr(tmp_path_factory) -> Official:
    return write_vindr(tmp_path_factory.mktemp("vindr") / "download")


def test_rsna(rsna):
    rows = table(rsna.root / "stage_2_train_labels.csv")
    assert list(rows[0]) == ["patientId", "x", "y", "width", "height", "Target"]
    assert not have_neighbours([row["patientId"] for row in rows])
    assert {row["patientId"]: {"Pneumonia": int(row["Target"])} for row in rows} == rsna.labels
    assert all(not row["x"] for row in rows if row["Target"] == "0")
    assert all(row["x"].endswith(".0") for row in rows if row["Target"] == "1")

    def boxes() -> Iterator[tuple[str, str, int, int, int, int]]:
        for row in rows:
            if row["Target"] == "1":
                x, y, width, height = (int(float(row[name])) for name in ("x", "y", "width", "height"))
                yield row["patientId"], "Pneumonia", x, y, x + width, y + height

    same_boxes(rsna, boxes())
    classes = table(rsna.root / "stage_2_detailed_class_info.csv")
    assert len(classes) == len(rows)
    assert len({row["class"] for row in classes}) == 3
    headers = {image_id: dcmread(path, stop_before_pixels=True) for image_id, path in rsna.files.items()}
    assert all(header.PatientID == image_id for image_id, header in headers.items())
    (inverted,) = [header for header in headers.values() if header.PhotometricInterpretation == "MONOCHROME1"]
    assert "WindowCenter" in inverted
    (unlabelled,) = rsna.splits["stage_2_test_images"]
    assert unlabelled not in rsna.labels


def test_rsna_as_first_released(rsna, tmp_path):
    official = write_rsna(tmp_path / "mdai", layout="mdai")
    assert sorted(path.name for path in official.root.iterdir()) == [MDAI, "test.csv"]
    rows = table(official.root / "test.csv")
    for row in rows:
        assert official.root / row["img_path"] == official.files[row["ID"]]
        assert {"Pneumonia": int(row["classes"])} == official.labels[row["ID"]]
        numbers = [[int(float(number)) for number in box.split(";")] for box in row["boxes"].split("|") if box]
        mask = np.zeros((1024, 1024), bool)
        for x, y, width, height in numbers:
            mask[y : y + height, x : x + width] = True
        np.testing.assert_array_equal(mask, official.masks[row["ID"]].get("Pneumonia", np.zeros_like(mask)))
    chosen = rsna.splits["train"][:4]
    write_medklip_list(rsna, tmp_path / "list.csv", chosen)
    assert [row["ID"] for row in table(tmp_path / "list.csv")] == chosen


def test_chestxdet10(tmp_path):
    official = write_chestxdet10(tmp_path)
    entries = [
        entry for split in ("test", "train") for entry in json.loads((official.root / f"{split}.json").read_text())
    ]
    for entry in entries:
        present = {DET10[symptom] for symptom in entry["syms"]}
        known = official.labels[Path(entry["file_name"]).stem]
        assert known == {finding: int(finding in present) for finding in DET10.values()}
    same_boxes(
        official,
        (
            (Path(entry["file_name"]).stem, DET10[symptom], *box)
            for entry in entries
            for symptom, box in zip(entry["syms"], entry["boxes"], strict=True)
        ),
    )
    pairs = [list(zip(entry["syms"], map(tuple, entry["boxes"]), strict=True)) for entry in entries]
    assert any(not rows for rows in pairs)
    assert any(len(set(rows)) < len(rows) for rows in pairs)
    assert any(len({box for _, box in set(rows)}) < len(set(rows)) for rows in pairs)


def test_chestxray14(tmp_path):
    official = write_chestxray14(tmp_path)
    lines = (official.root / "BBox_List_2017.csv").read_text().splitlines()
    assert lines[0] == "Image Index,Finding Label,Bbox [x,y,w,h],,,"
    assert len(lines[0].split(",")) == 9
    rows = [line.split(",") for line in lines[1:]]
    assert {len(row) for row in rows} == {6}
    assert {row[1] for row in rows} == set(NIH)

    def boxes() -> Iterator[tuple[str, str, int, int, int, int]]:
        for name, spelling, *numbers in rows:
            x, y, width, height = (int(float(number)) for number in numbers)
            yield name.removesuffix(".png"), NIH[spelling], x, y, x + width, y + height

    same_boxes(official, boxes())
    assert {row[0].removesuffix(".png") for row in rows} == set(official.splits["boxes"]) < set(official.splits["test"])
    with open(official.root / "Data_Entry_2017_v2020.csv") as file:
        header, *entries = csv.reader(file)
    assert len(header) == 11
    spelled = {**{finding: finding for finding in NIH.values()}, "Effusion": "Pleural Effusion"}
    for name, labels, *_ in entries:
        present = {spelled.get(label) for label in labels.split("|")}
        known = official.labels[name.removesuffix(".png")]
        assert known == {finding: int(finding in present) for finding in NIH.values()}
    assert {label for entry in entries for label in entry[1].split("|")} >= {"Pleural_Thickening", "No Finding"}
    assert any(sum(official.labels[name].values()) > len(official.masks[name]) for name in official.splits["boxes"])
    listed = [
        line.removesuffix(".png")
        for split in ("test", "train_val")
        for line in (official.root / f"{split}_list.txt").read_text().split()
    ]
    assert set(listed) == official.labels.keys() < official.images.keys()
    assert {Image.open(path).mode for path in official.files.values()} == {"L", "RGBA"}
    assert {path.parts[-3] for path in official.files.values()} == {"images_001", "images_002", "images_003"}


def test_chestxray14_in_one_folder(tmp_path):
    official = write_chestxray14(tmp_path, layout="nih")
    assert {path.parent for path in official.files.values()} == {tmp_path / "images"}


def corners(row: dict[str, str]) -> tuple[int, int, int, int]:
    x1, y1, x2, y2 = (int(float(row[name])) for name in ("x_min", "y_min", "x_max", "y_max"))
    return x1, y1, x2, y2


def test_vindr(vindr):
    rows = []
    for split in ("test", "train"):
        own = table(vindr.root / "annotations" / f"annotations_{split}.csv")
        assert ("rad_id" in own[0]) == (split == "train")
        assert {row["image_id"] for row in own} == set(vindr.splits[split])
        rows += own
        labels = table(vindr.root / "annotations" / f"image_labels_{split}.csv")
        assert len(labels) == len(vindr.splits[split]) * (3 if split == "train" else 1)
        assert ("Other disease" in labels[0]) == ("Other diseases" not in labels[0]) == (split == "test")
        assert len(labels[0]) == 28 + (2 if split == "train" else 1)
        for image_id in vindr.splits[split]:
            of_image = [row for row in labels if row["image_id"] == image_id]
            assert vindr.labels[image_id] == {
                finding: int(any(row[name] == "1" for row in of_image)) for name, finding in VINDR.items()
            }
    empty = [row for row in rows if row["class_name"] == "No finding"]
    assert empty
    assert all(not row["x_min"] for row in empty)
    filled = [row for row in rows if row["class_name"] != "No finding"]
    same_boxes(
        vindr,
        ((row["image_id"], VINDR[row["class_name"]], *corners(row)) for row in filled if row["class_name"] in VINDR),
    )
    assert "Edema" in {row["class_name"] for row in filled}
    assert any(row["x_min"] == "0" for row in filled)
    assert any(corners(row)[2] - corners(row)[0] == 3 for row in filled)
    assert any("." in row["x_min"] for row in filled)
    boxes = [(row["image_id"], row.get("rad_id"), corners(row)) for row in filled]
    assert len(set(boxes)) < len(boxes)
    positive = {finding for known in vindr.labels.values() for finding, label in known.items() if label}
    assert set(VINDR.values()) - positive == {"Clavicle Fracture", "Lung Cyst"}
    assert any(sum(known.values()) > len(vindr.masks[image_id]) for image_id, known in vindr.labels.items())


def test_files_of_vindr_are_of_many_kinds(vindr):
    headers = [dcmread(path) for path in vindr.files.values()]
    assert len({str(header.file_meta.TransferSyntaxUID) for header in headers}) == 6
    assert {header.PhotometricInterpretation for header in headers} == {"MONOCHROME1", "MONOCHROME2"}
    assert {header.BitsStored for header in headers} == {10, 12, 14, 16}
    inverted = [header for header in headers if header.PhotometricInterpretation == "MONOCHROME1"]
    assert {"WindowCenter" in header for header in inverted} == {True, False}
    assert any("RescaleSlope" in header and "WindowCenter" in header for header in headers)
    assert len({(header.Rows, header.Columns) for header in headers}) > 10


def test_vindr_without_a_column(tmp_path):
    write_vindr(tmp_path, absent_columns=["Edema"])
    for split in ("test", "train"):
        assert "Edema" not in table(tmp_path / "annotations" / f"image_labels_{split}.csv")[0]
    assert len(COLUMNS) == 28


def test_vindr_at_kaggle(tmp_path):
    official = write_vindr(tmp_path, layout="kaggle")
    rows = table(tmp_path / "train.csv")
    assert list(rows[0]) == ["image_id", "class_name", "class_id", "rad_id", "x_min", "y_min", "x_max", "y_max"]
    assert all(KAGGLE[int(row["class_id"])] == row["class_name"] for row in rows)
    assert {row["rad_id"] for row in rows} == set(READERS)
    filled = [row for row in rows if row["class_id"] != "14"]
    assert all(row["x_min"].endswith(".0") for row in filled)
    same_boxes(official, ((row["image_id"], VINDR[row["class_name"]], *corners(row)) for row in filled))
    by_reader = {(image_id, box.finding, box.reader) for image_id, boxes in official.boxes.items() for box in boxes}
    assert by_reader == {(row["image_id"], VINDR[row["class_name"]], row["rad_id"]) for row in filled}
    assert not set(official.splits["test"]) & official.labels.keys()
    assert not (tmp_path / "annotations").exists()
