from __future__ import annotations

import csv
import json
import warnings
from itertools import chain

import numpy as np
import pytest
from downloads import notes_of, records_of
from official.base import write_lines
from PIL import Image

from xbench.data import MSCXR, PadChestGR
from xbench.data.datasets import mscxr
from xbench.runtime.errors import UserError

TABLE, REPORTS = "MS_CXR_Local_Alignment_v1.1.0.csv", "grounded_reports_20240819.json"
SMALLER = "an image of another size than its annotation file states; shapes are drawn in the stated one"


def replaced(path, size):
    with Image.open(path) as picture:
        copy = picture.resize(size)
    path.unlink()
    copy.save(path)


def test_copies_of_another_size_are_noted_or_refused(downloads, tmp_path):
    official = downloads.copy("mscxr", tmp_path / "copy", outside=False)
    smaller, other, *_ = official.splits["all"]
    height, width = official.images[smaller].shape
    replaced(official.files[smaller], (width // 2, height // 2))
    replaced(official.files[other], (100, 100))
    data = MSCXR(str(official.root))
    records = records_of(data)
    radiograph = data.load(records[smaller])
    assert radiograph.image.shape == (height // 2, width // 2) and radiograph.notes == (SMALLER,)
    for name, region in radiograph.regions.items():
        np.testing.assert_array_equal(region, official.masks[smaller][name])
    with pytest.raises(UserError, match="which has other proportions"):
        data.load(records[other])


@pytest.mark.parametrize("kind", [MSCXR, PadChestGR])
def test_prediction_is_asked_for_the_phrases_and_told_nothing_else(downloads, kind):
    official = downloads(kind.name)
    data = kind(str(official.root))
    data.setup("predict")
    assert [record.image_id for record in data.records] == sorted(official.splits[data.split])
    for record in data.records:
        assert [*record.queries] == official.queries[record.image_id]
        assert record.labels == {} and data.load(record).regions == {}


def test_other_releases_of_mscxr(downloads, tmp_path):
    official = downloads.copy("mscxr", tmp_path / "copy", outside=False)
    with open(official.root / TABLE, newline="") as file:
        header, *rows = csv.reader(file)
    rows[0][1] = "Gout"
    for row in rows:
        row[3] = row[3].removeprefix("files/")
    with open(official.root / TABLE.replace("1.1", "1.0"), "w", newline="") as file:
        csv.writer(file).writerows([header[:-1], *(row[:-1] for row in rows)])
    (official.root / TABLE).unlink()
    data = MSCXR(str(official.root))
    records = records_of(data)
    assert {image: record.patient_id for image, record in records.items()} == official.patients
    assert notes_of(data) == {"a phrase about 'Gout' was left out: it is not one of the eight findings": [rows[0][0]]}
    with pytest.raises(UserError, match="lacks split"):
        MSCXR(str(official.root), split="test").setup("test")


def test_counts_are_compared_with_those_that_are_reported(downloads, monkeypatch):
    root = str(downloads("mscxr").root)
    with pytest.warns(UserWarning, match="phrases: 10 instead of 1,162; phrases whatever their category: 9 instead of"):
        MSCXR(root, split="test").setup("test")
    found = dict(zip(mscxr._REPORTED, (1, 1, 1, 1, 1, 1, 2, 2, 10, 9, 14, 6, 5), strict=True))
    monkeypatch.setattr(mscxr, "_REPORTED", found)
    with warnings.catch_warnings(action="error"):
        MSCXR(root, split="test").setup("test")


def test_the_second_reader_of_padchestgr_says_how_well_readers_agree(downloads):
    drawn = {who: downloads("padchestgr", readers=who) for who in ("main", "second")}
    data = PadChestGR(str(drawn["main"].root))
    several = 0
    for image, record in records_of(data).items():
        masks = {who: official.masks[image] for who, official in drawn.items()}
        both = masks["main"].keys() & masks["second"].keys()
        radiograph = data.load(record)
        assert radiograph.reader_agreement.keys() == both
        for name in both:
            one, other = (of_reader[name] for of_reader in masks.values())
            dice = 2 * (one & other).sum() / (one.sum() + other.sum())
            assert radiograph.reader_agreement[name][0] == pytest.approx(dice)
            several += 1
    assert several >= 3


def test_sentences_that_compare_and_what_is_odd(downloads, tmp_path):
    official = downloads.copy("padchestgr", tmp_path / "copy", outside=False)
    (official.root / "master_table.csv").unlink()
    with pytest.raises(UserError, match=r"no master_table\.csv lies under"):
        PadChestGR(str(official.root)).setup("test")
    texts = {}
    for progression in ("any", "stated", "none"):
        data = PadChestGR(str(official.root), split="all", progression=progression)
        records = records_of(data)
        assert {record.patient_id for record in records.values()} == {None}
        texts[progression] = [query.text for record in records.values() for query in record.queries]
    assert {*texts["stated"]} == {"Invented large heart."} and "Invented large heart." not in texts["none"]
    assert sorted(texts["any"]) == sorted(texts["stated"] + texts["none"])
    studies = json.loads((official.root / REPORTS).read_text())
    image = studies[0]["ImageID"].removesuffix(".png")
    sentence = studies[0]["findings"][0]
    studies[0]["findings"] = [
        sentence | {"boxes": [[0.5, 0.1, 0.2, 0.3], [0.1, 0.1, 0.3, 0.2]]},
        {"sentence_en": "invented LARGE heart.", "sentence_es": "", "abnormal": False, "boxes": [[0, 0, 1, 1]]},
        {"sentence_en": "", "sentence_es": "Nada.", "abnormal": False},
    ]
    (official.root / REPORTS).write_text(json.dumps(studies))
    rows = [[study["ImageID"], "", "train" if study is studies[0] else "test"] for study in studies]
    write_lines(official.root / "master_table.csv", *map(",".join, [["ImageID", "PatientID", "split"], *rows]))
    data = PadChestGR(str(official.root))
    assert image not in {*records_of(data), *chain(*notes_of(data).values())}
    data = PadChestGR(str(official.root), split="train")
    record = records_of(data)[image]
    assert [query.name for query in record.queries] == ["Cardiomegaly 1", "Phrase 1"]
    assert record.labels == {"Cardiomegaly 1": 1, "Phrase 1": 0}
    assert {note for note, images in notes_of(data).items() if image in images} == {
        "a box that ends before it begins, or holds nothing, left out",
        "boxes of a sentence about what is absent, left out",
        "a sentence that does not exist in this language, left out",
    }
