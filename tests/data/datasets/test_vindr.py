from __future__ import annotations

import numpy as np
import pytest
from downloads import assert_reads, notes_of, records_of, refusal, write_small
from official.base import write_lines
from official.vindr import CANONICAL, COLUMNS, KAGGLE
from PIL import Image

from xbench.data import VinDrCXR
from xbench.runtime.errors import UserError

BOXES, LABELS = "annotations/annotations_{}.csv", "annotations/image_labels_{}.csv"
ABSENT = "a box of a finding that the table of labels calls absent; it is present"


def test_kaggle(downloads):
    official = downloads("vindr", layout="kaggle", outside=False)
    data = VinDrCXR(str(official.root), split="train")
    records_of(data)
    known = {finding for spelled, finding in CANONICAL.items() if spelled in KAGGLE}
    assert len(known) == 14
    assert all(record.labels.keys() == known for record in data.records), "the other seven are unknown"
    assert "no annotations_test.csv" in refusal("vindr", official.root)


@pytest.mark.parametrize("layout", ["physionet", "kaggle"])
@pytest.mark.parametrize("needed", [1, 2, 3, 4])
def test_how_many_readers_must_agree(downloads, layout, needed):
    official = downloads("vindr", layout=layout, outside=layout == "physionet")
    data = VinDrCXR(str(official.root), split="train", min_readers=needed)
    positives = 0
    for name, record in records_of(data).items():
        height, width = official.images[name].shape
        regions = data.load(record).regions
        for finding in official.labels[name]:
            own = [box for box in official.boxes.get(name, []) if box.finding == finding]
            present = len({box.reader for box in own}) >= needed
            positives += present
            assert record.labels[finding] == int(present)
            assert (finding in regions) == present
            if present:
                expected = np.zeros((height, width), bool)
                for box in own:
                    expected[box.y1 : box.y2, box.x1 : box.x2] = True
                np.testing.assert_array_equal(regions[finding], expected)
    assert positives == {1: 6, 2: 2, 3: 1, 4: 0}[needed]


def test_readers_do_not_matter_to_the_test_split(downloads):
    official = downloads("vindr")
    assert_reads(VinDrCXR(str(official.root), min_readers=3), official, official.splits["test"])
    with pytest.raises(UserError, match="min_readers 0 must be at least 1"):
        VinDrCXR(str(official.root), min_readers=0)


def small(
    root, rows, labels=None, header="image_id,class_name,x_min,y_min,x_max,y_max", names=("a", "b"), split="test"
):
    write_small(root / split, names, ".dicom")
    write_lines(root / BOXES.format(split), header, *rows)
    if labels is not None:
        write_lines(root / LABELS.format(split), ",".join(["image_id", *COLUMNS]), *labels)
    return root


def labels_row(name, **given):
    return ",".join([name, *(str(given.get(column.replace(" ", "_"), 0)) for column in COLUMNS)])


def test_the_two_tables_disagree(tmp_path):
    rows = ["a,ILD,1,1,5,5", "a,ILD,2,2,6,6", "b,No finding,,,,"]
    labels = [labels_row("a", Cardiomegaly=1), labels_row("b", ILD=1, Pneumonia=1, Edema=1), labels_row("c")]
    data = VinDrCXR(str(small(tmp_path, rows, labels, names=("a", "b", "c"))))
    records = records_of(data)
    present = {name: {f for f, label in record.labels.items() if label} for name, record in records.items()}
    assert present == {"a": {"ILD", "Cardiomegaly"}, "b": {"ILD"}, "c": set()}
    assert data.load(records["b"]).regions == {}
    assert notes_of(data) == {ABSENT: ["a"]}


@pytest.mark.parametrize("empty", ["", "-1"])
def test_an_empty_label_is_unknown_unless_there_is_a_box(tmp_path, empty):
    labels = [labels_row("a", ILD=empty, Atelectasis=empty), labels_row("b")]
    data = VinDrCXR(str(small(tmp_path, ["a,ILD,1,1,5,5"], labels)))
    records = records_of(data)
    assert records["a"].labels["ILD"] == 1
    assert "Atelectasis" not in records["a"].labels
    assert records["b"].labels["Atelectasis"] == 0
    assert notes_of(data) == {"an image whose label of some finding is empty; without a box it is unknown": ["a"]}


def test_a_row_without_coordinates_is_a_label(tmp_path):
    data = VinDrCXR(str(small(tmp_path, ["a,ILD,,,,", "b,No Finding,,,,"])))
    records = records_of(data)
    assert (records["a"].labels["ILD"], records["a"].source.annotations) == (1, ())
    assert not any(records["b"].labels.values())


def test_other_classes_with_the_columns_of_kaggle(tmp_path):
    header = "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max"
    rows = ["a,Rib fracture,20,R1,1,1,5,5", "b,No finding,14,R1,,,,"]
    data = VinDrCXR(str(small(tmp_path, rows, header=header, split="train")), split="train")
    records = records_of(data)
    assert (records["a"].labels["Rib Fracture"], records["b"].labels["Rib Fracture"]) == (1, 0)
    assert "Clavicle Fracture" not in records["a"].labels


def convert(official, suffix, size=1.0):
    for name in official.splits["test"]:
        picture = Image.fromarray(official.images[name])
        official.files[name].unlink()
        official.files[name] = official.files[name].with_suffix(suffix)
        picture.resize([round(side * size) for side in picture.size]).save(official.files[name])


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_copies_of_the_same_size_are_read_and_counted(downloads, tmp_path, suffix):
    official = downloads.copy("vindr", tmp_path / "copy", outside=False)
    convert(official, suffix)
    official.tolerance = 0 if suffix == ".png" else 40
    data = VinDrCXR(str(official.root))
    assert_reads(data, official, official.splits["test"])
    (note,) = (text for text in notes_of(data) if text.startswith("a copy in PNG or JPEG"))
    assert notes_of(data)[note] == sorted(official.splits["test"])


@pytest.mark.parametrize("size", [0.25, 0.6])
def test_copies_of_another_size_are_refused(downloads, tmp_path, size):
    official = downloads.copy("vindr", tmp_path / "copy", outside=False)
    convert(official, ".png", size)
    for options in ({}, {"on_error": "skip"}, {"limit": 1}):
        refusal(
            "vindr",
            official.root,
            **options,
            says=["the copies are smaller than the DICOM files"],
        )
    VinDrCXR(str(official.root)).setup("predict")


def test_copies_beside_the_dicom_files_are_left_aside(downloads, tmp_path):
    official = downloads.copy("vindr", tmp_path / "copy")
    expected = VinDrCXR(str(official.root))
    records_of(expected)
    for name in official.splits["test"]:
        Image.fromarray(official.images[name][:8, :8]).save(official.root / "test" / f"{name}.png")
    data = VinDrCXR(str(official.root))
    assert_reads(data, official, official.splits["test"])
    assert data.notes == expected.notes
    gone = sorted(official.splits["test"])[0]
    official.files[gone].unlink()
    refusal(
        "vindr",
        official.root,
        says=[f"1 of {len(official.splits['test'])} annotated images have no file (first: {gone}). Expected"],
    )
