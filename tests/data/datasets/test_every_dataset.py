"""What holds of the tables and image lists of every dataset."""

from __future__ import annotations

import pytest
from downloads import CHANGES, CLASSES, records_of, refusal, rewrite

# Tables that other programs may have written again, by dataset and split. Spaces within a list of images are part of a
# name.
TABLES = {
    ("rsna", "train"): ["stage_2_train_labels.csv"],
    ("siim", "all"): ["train-rle.csv"],
    ("chexlocalize", "test"): ["CheXpert/test_labels.csv"],
    ("chestxray14", "test"): ["BBox_List_2017.csv", "Data_Entry_2017_v2020.csv", "test_list.txt"],
    ("vindr", "test"): ["annotations/annotations_test.csv", "annotations/image_labels_test.csv"],
    ("vindr", "train"): ["annotations/annotations_train.csv", "annotations/image_labels_train.csv"],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("name", "split"), TABLES)
def test_other_ways_to_write_the_tables(downloads, tmp_path, name, split, change):
    expected = records_of(CLASSES[name](str(downloads(name).root), split=split))
    copy = downloads.copy(name, tmp_path / "copy")
    for table in TABLES[name, split]:
        if not (change == "spaces" and table.endswith(".txt")):
            rewrite(copy.root / table, change)
    records = records_of(CLASSES[name](str(copy.root), split=split))
    assert records.keys() == expected.keys()
    for image, record in expected.items():
        assert records[image].labels == record.labels
        assert sorted(map(repr, records[image].source.annotations)) == sorted(map(repr, record.source.annotations))


@pytest.mark.parametrize("line", ["{}", " {}.PNG ", "C:\\data\\test\\{}.dicom", "../../images/{}.jpg"])
@pytest.mark.parametrize("name", CLASSES)
def test_image_lists(downloads, tmp_path, name, line):
    root = str(downloads(name).root)
    chosen = sorted(records_of(CLASSES[name](root)))[1:4]
    path = tmp_path / "list.csv"
    path.write_text("Image Index,x\n" + "".join(f"{line.format(image)},1\n" for image in chosen))
    data = CLASSES[name](root, image_list=str(path))
    assert list(records_of(data)) == chosen
    assert path in data.annotation_files()
    path.write_text("nobody\n")
    assert "(first: 'nobody')" in refusal(name, root, image_list=str(path))
