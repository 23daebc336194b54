from __future__ import annotations

import json

import numpy as np
import pytest
from downloads import CUT_OFF, assert_reads, notes_of, records_of, write_small
from official.chexlocalize import LABELS, WITHOUT_MASKS, encoded, write_chexlocalize

from xbench.data import CheXlocalize

TABLE = "CheXpert/test_labels.csv"
MASKS = "CheXlocalize/gt_segmentations_test.json"
NOT_GIVEN = "a segmentation of a finding that the table of labels does not give; it is present"


@pytest.mark.parametrize("split", ["test", "val"])
def test_contours_give_the_same_masks(downloads, tmp_path, split):
    official = downloads.copy("chexlocalize", tmp_path / "copy")
    (official.root / "CheXlocalize" / f"gt_segmentations_{split}.json").unlink()
    data = CheXlocalize(str(official.root), split=split)
    noted = assert_reads(data, official, official.splits[split])
    contours = data.annotation_files()[0]
    assert contours.name == f"gt_annotations_{split}.json"
    beyond = set()
    for name, entry in json.loads(contours.read_text()).items():
        height, width = entry.pop("img_size")
        points = [point for drawn in entry.values() for contour in drawn for point in contour]
        if not all(0 <= x <= width and 0 <= y <= height for x, y in points):
            beyond.add(name)
    assert noted == dict.fromkeys(beyond, (CUT_OFF,))
    assert beyond >= {name for name, _ in official.outside if name in official.splits[split]}


def test_the_table_of_chexpert_has_the_labels_of_its_validation_images(downloads, tmp_path):
    official = downloads.copy("chexlocalize", tmp_path / "copy")
    table = official.root / "CheXpert" / "val_labels.csv"
    other = table.rename(official.root / "valid.csv")
    data = CheXlocalize(str(official.root), split="val")
    assert_reads(data, official, official.splits["val"])
    assert other in data.annotation_files()
    table.write_text(other.read_text())
    other.write_text("Path\n")
    data = CheXlocalize(str(official.root), split="val")
    assert_reads(data, official, official.splits["val"])
    assert table in data.annotation_files()


def test_masks_of_the_three_others_are_used_if_they_are_there(tmp_path):
    official = write_chexlocalize(tmp_path / "download", masks_for_all=True)
    assert_reads(CheXlocalize(str(official.root)), official, official.splits["test"])
    assert {finding for masks in official.masks.values() for finding in masks} >= {*WITHOUT_MASKS}


def test_frontal_views_alone(downloads):
    official = downloads("chexlocalize")
    data = CheXlocalize(str(official.root), views="frontal")
    frontal = [name for name in official.splits["test"] if name.endswith("_frontal")]
    assert 0 < len(frontal) < len(official.splits["test"])
    assert list(records_of(data)) == sorted(frontal)
    assert data.notes == [], "lateral views are no strays"


KEY = "patient1_study1_view1_frontal"
PATH = "test/patient1/study1/view1_frontal.jpg"


def small(root, masks, labels=(), path=PATH, more_rows=(), header=LABELS):
    write_small(root / "CheXpert" / "test" / "patient1" / "study1", ["view1_frontal"], ".jpg")
    (root / "CheXlocalize").mkdir(exist_ok=True)
    (root / MASKS).write_text(json.dumps(masks))
    row = ",".join([path, *(dict(labels).get(finding, "0.0") for finding in header)])
    (root / TABLE).write_text("\n".join([",".join(["Path", *header]), row, *more_rows]) + "\n")
    return root


def square(size=(16, 16)):
    mask = np.zeros(size, bool)
    mask[3:9, 2:5] = True
    return mask


def test_unknown_labels(tmp_path):
    labels = {"Edema": "", "Fracture": "-1.0", "Pneumonia": "1", "Cardiomegaly": "0"}
    record = records_of(CheXlocalize(str(small(tmp_path, {}, labels))))[KEY]
    assert len(record.labels) == len(LABELS) - 2
    assert not {"Edema", "Fracture"} & record.labels.keys()
    assert (record.labels["Pneumonia"], record.labels["Cardiomegaly"]) == (1, 0)


def test_segmentations_that_the_table_does_not_know_of(tmp_path):
    masks = {KEY: {"Edema": encoded(square()), "Hernia": encoded(square())}, "patient9": {"Edema": encoded(square())}}
    data = CheXlocalize(str(small(tmp_path, masks)))
    assert records_of(data)[KEY].labels["Edema"] == 1
    assert notes_of(data) == {
        NOT_GIVEN: [KEY],
        "a segmentation of 'Hernia', which is not one of the findings, left out": [KEY],
        "a segmentation of an image that the table of labels does not name, left out": ["patient9"],
    }
