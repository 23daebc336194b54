"""The written downloads have the variety that other tests rely on without saying so.

That their files hold what they promise shows wherever the product reads them.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from downloads import CLASSES
from official.base import Official
from official.chexlocalize import LABELS, WITHOUT_MASKS, lengthen_rle, write_chexlocalize
from official.siim import rows_of
from PIL import Image
from pycocotools import mask as coco
from pydicom import dcmread

# Findings of the default split that are positive and negative, and have a region somewhere.
SCORED = {"chestxdet10": 10, "chexlocalize": 10, "chestxray14": 8, "vindr": 19}


@pytest.fixture(params=CLASSES)
def official(request, downloads) -> Official:
    return downloads(request.param)


def test_what_is_promised_is_consistent(official):
    assert official.images.keys() == official.files.keys() >= official.labels.keys() == official.masks.keys()
    assert len({image.tobytes() for image in official.images.values()}) == len(official.images)
    for image_id, masks in official.masks.items():
        for finding, mask in masks.items():
            assert official.labels[image_id][finding] == 1
            assert mask.dtype == bool
            assert mask.shape == official.images[image_id].shape
            assert mask.any()
    for image_id, finding in official.outside:
        mask = official.masks[image_id][finding]
        assert mask[:, 0].any() or mask[:, -1].any()


@pytest.mark.parametrize("name", CLASSES)
def test_the_default_split_has_positives_with_and_without_region_and_negatives(downloads, name):
    official = downloads(name)
    ids = [image_id for image_id in next(iter(official.splits.values())) if image_id in official.labels]
    if name == "siim":
        ids = list(official.labels)
    scored = [
        finding
        for finding in official.labels[ids[0]]
        if len({official.labels[image_id][finding] for image_id in ids}) == 2
        and any(finding in official.masks[image_id] for image_id in ids)
    ]
    assert len(scored) == SCORED.get(name, 1)


def test_siim_has_its_first_row_twice(downloads):
    rows = rows_of(downloads("siim").root / "train-rle.csv")
    assert rows[0] == rows[-1]


def test_rsna_has_one_inverted_image(downloads):
    headers = [dcmread(path, stop_before_pixels=True) for path in downloads("rsna").files.values()]
    (inverted,) = [header for header in headers if header.PhotometricInterpretation == "MONOCHROME1"]
    assert "WindowCenter" in inverted


def test_covid_lacks_masks_of_images_with_and_without_opacity(downloads):
    official = downloads("covid")
    with_mask = {path.stem for path in (official.root / "covid_rural_annot" / "pngs_masks").iterdir()}
    for label in (0, 1):
        having = [image_id in with_mask for image_id, known in official.labels.items() if known["COVID-19"] == label]
        assert set(having) == {True, False}


def test_chestxdet10_has_equal_boxes_and_a_box_of_two_findings(downloads):
    root = downloads("chestxdet10").root
    entries = [entry for split in ("test", "train") for entry in json.loads((root / f"{split}.json").read_text())]
    pairs = [list(zip(entry["syms"], map(tuple, entry["boxes"]), strict=True)) for entry in entries]
    assert any(not rows for rows in pairs)
    assert any(len(set(rows)) < len(rows) for rows in pairs)
    assert any(len({box for _, box in set(rows)}) < len(set(rows)) for rows in pairs)


def test_chexlocalize_with_masks_of_every_finding(tmp_path):
    official = write_chexlocalize(tmp_path, masks_for_all=True)
    assert {finding for masks in official.masks.values() for finding in masks} == set(LABELS)
    segmentations = json.loads((tmp_path / "CheXlocalize" / "gt_segmentations_test.json").read_text())
    assert all(set(WITHOUT_MASKS) < findings.keys() for findings in segmentations.values())
    key = next(iter(segmentations))
    rle = json.loads(lengthen_rle(official, key, "Lung Opacity").read_text())[key]["Airspace Opacity"]
    height, width = official.images[key].shape
    assert rle["size"] == [height, width]
    assert coco.area({"size": [height, width + 40], "counts": rle["counts"]}) == height * (width + 40)


def test_files_of_vindr_are_of_many_kinds(downloads):
    headers = [dcmread(path) for path in downloads("vindr").files.values()]
    assert len({str(header.file_meta.TransferSyntaxUID) for header in headers}) == 5
    assert {header.PhotometricInterpretation for header in headers} == {"MONOCHROME1", "MONOCHROME2"}
    assert {header.BitsStored for header in headers} == {10, 12, 14, 16}
    inverted = [header for header in headers if header.PhotometricInterpretation == "MONOCHROME1"]
    assert {"WindowCenter" in header for header in inverted} == {True, False}
    assert any("RescaleSlope" in header and "WindowCenter" in header for header in headers)
    assert len({(header.Rows, header.Columns) for header in headers}) > 10


def test_files_show_the_images(official):
    """Read by Pillow alone, where it can: no decoder of the product has a part in it."""
    for image_id, path in official.files.items():
        if path.suffix not in (".dcm", ".dicom"):
            shown = np.array(Image.open(path).convert("L"), float)
            assert np.abs(shown - official.images[image_id]).max() <= official.tolerance
