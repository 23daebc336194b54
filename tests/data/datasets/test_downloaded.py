"""What the datasets share that are downloads, on a toy that reads one table of boxes."""

from __future__ import annotations

import pickle
import shutil
from collections import defaultdict

import numpy as np
import pytest
from downloads import CUT_OFF, notes_of, records_of, write_small

from xbench.data.annotations.items import Annotation
from xbench.data.annotations.tables import read_csv
from xbench.data.datasets.downloaded import DownloadedDataset, ImageAnnotations
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.geometry.regions import covers_nothing
from xbench.geometry.shapes import UNKNOWN, Shape
from xbench.runtime.errors import UserError
from xbench.types import Failure

TABLE = "toy.csv"
STRAY = "an image that the annotation files do not name, left out"


class Toy(DownloadedDataset):
    """Rows image, finding, left, top, right, bottom; without a finding the image is negative."""

    findings = ("One", "Two")
    splits = ("test", "train")
    layout = f"pictures/<image>.png and {TABLE}"
    folders = {"test": ("pictures",), "train": ("training",)}  # noqa: RUF012
    files = {"annotations": (TABLE,)}  # noqa: RUF012

    def read_annotations(self, folder):
        drawn = defaultdict(list)
        for row in read_csv(self.name, self.file(folder), ("image", "finding", "l", "t", "r", "b")):
            own = drawn[row.name("image")]
            if row["finding"]:
                self.note("a row", row["image"])
                box = Shape("box", UNKNOWN, np.array([row.number(side) for side in "ltrb"]))
                own.append(Annotation(row["finding"], box))
        return [
            ImageAnnotations(name, {f: int(f in {a.finding for a in own}) for f in self.findings}, tuple(own), (16, 16))
            for name, own in drawn.items()
        ]


def write(root, *rows, names=("a", "b"), folder="pictures"):
    write_small(root / folder, names)
    (root / TABLE).write_text("\n".join(["image,finding,l,t,r,b", *rows]) + "\n")
    return root


def toy(root, **options) -> Toy:
    return Toy(str(root), num_workers=0, **options)


def refusal(root, stage="test", **options) -> str:
    with pytest.raises(UserError) as caught:
        toy(root, **options).setup(stage)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_records_and_regions(tmp_path):
    rows = ("b,One,1,1,4,4", "a,,,,,", "b,Two,2,2,6,6", "b,One,3,3,6,5", "b,Two,14,14,20,20", "b,Two,-3,0,1,1")
    data = toy(write(tmp_path, *rows))
    records = records_of(data)
    assert list(records) == ["a", "b"], "by name"
    assert dict(records["a"].labels) == {"One": 0, "Two": 0}
    assert dict(records["b"].labels) == {"One": 1, "Two": 1}
    radiograph = data.load(records["b"])
    one = np.zeros((16, 16), bool)
    one[1:4, 1:4] = one[3:5, 3:6] = True
    np.testing.assert_array_equal(radiograph.regions["One"], one)
    assert radiograph.regions["Two"].sum() == 16 + 4 + 1
    assert radiograph.notes == (CUT_OFF,), "once, however many are"
    assert notes_of(data) == {"a row": ["b"]}, "once, however many there are"
    assert data.annotation_files() == [tmp_path / TABLE]
    assert records["b"].files == (tmp_path / "pictures" / "b.png",)


def test_setting_up_twice_counts_once_and_records_travel_to_workers(tmp_path):
    data = toy(write(tmp_path, "a,One,1,1,4,4"))
    for _ in range(2):
        data.setup("test")
        assert notes_of(data) == {"a row": ["a"], STRAY: ["b"]}
        assert len(data.annotation_files()) == 1
    samples = pickle.loads(pickle.dumps(data.samples(Preprocessing(stretch((16, 16))))))
    assert samples[0].truth.has_region.tolist() == [True, False]


def test_an_annotation_outside_of_the_image(tmp_path):
    data = toy(write(tmp_path, "a,One,20,20,30,30", "b,,,,,"))
    data.setup("test")
    sample = data.samples(Preprocessing(stretch((16, 16))))[0]
    assert sample.truth.has_region.tolist() == [False, False]
    assert [note.text for note in sample.notes] == [CUT_OFF, covers_nothing("One")]


@pytest.mark.parametrize(
    ("size", "fits"),
    [((16, 16), True), ((8, 8), True), ((33, 32), True), ((32, 33), True), ((35, 32), False), ((16, 32), False)],
)
def test_copies_of_other_proportions_are_refused(tmp_path, size, fits):
    root = write(tmp_path, "a,One,1,1,4,4", "b,,,,,")
    write_small(root / "pictures", ["a"], size=size)
    data = toy(root)
    record = records_of(data)["a"]
    if fits:
        radiograph = data.load(record)
        assert radiograph.image.shape == size
        assert radiograph.regions["One"].shape == (16, 16), "the frame of the annotations"
        return
    with pytest.raises(UserError, match=f"{size[1]} x {size[0]} pixels.*drawn for 16 x 16"):
        data.load(record)
    write_small(root / "pictures", ["b"], size=size)
    assert data.load(records_of(data)["b"]).image.shape == size, "where nothing is drawn nothing can be misplaced"


def test_links_that_lead_nowhere_are_missing_images(tmp_path):
    root = write(tmp_path, "a,,,,,", names=())
    (root / "pictures" / "a.png").symlink_to(tmp_path / "elsewhere.png")
    assert "1 of 1 annotated images have no file (first: a)" in refusal(root)
    data = toy(root, on_error="skip")
    assert records_of(data)["a"].missing
    failure = data.samples(Preprocessing(stretch((8, 8))))[0]
    assert isinstance(failure, Failure) and failure.image_id == "a"
    archive = shutil.make_archive(str(root / "pictures"), "zip", root, "pictures")
    shutil.rmtree(root / "pictures")
    assert f"not unpacked lie there ({archive})" in refusal(root)
    write_small(root / "pictures", ["0"])
    (root / TABLE).write_text("image,finding,l,t,r,b\n0,,,,,\na,,,,,\n")
    assert toy(root, limit=1).setup("test") is None, "only of what would be scored"


def test_the_folder_of_the_split_alone_counts_where_there_is_one(tmp_path):
    root = write(tmp_path, "a,,,,,", "b,,,,,")
    write_small(root / "training", ["a", "b", "c"])
    write_small(root / "masks", ["a", "b"])
    data = toy(root)
    assert [record.source.path.parent.name for record in records_of(data).values()] == ["pictures"] * 2
    assert STRAY not in notes_of(data), "an image of another split is no stray"
    (root / "pictures" / "b.png").unlink()
    assert "first: b" in refusal(root), "the mask of that name is not the image"
    write_small(root / "pictures" / "more", ["a", "b"])
    assert "image 'a' has several files" in refusal(root)


def test_prediction_needs_no_annotations(tmp_path):
    root = write(tmp_path, "a,One,1,1,4,4")
    write_small(root / "training", ["c"])
    (root / TABLE).unlink()
    data = toy(root)
    data.setup("predict")
    assert [(record.image_id, dict(record.labels)) for record in data.records] == [("a", {}), ("b", {})]
    assert data.load(data.records[0]).regions == {}
    assert (data.notes, data.annotation_files()) == ([], [])
    assert "has no images" in refusal(write(tmp_path / "empty", names=()), "predict")


def test_the_wrong_root(tmp_path):
    root = write(tmp_path / "root", "a,,,,,", "b,,,,,")
    assert "is not a folder" in refusal("x" * 5000)
    assert "is a file; unpack it and give the folder" in refusal(root / TABLE)
    (root / "tables").mkdir()
    (root / TABLE).rename(root / "tables" / TABLE)
    assert f"There is {root / 'pictures'}: did you mean --data.root {root}?" in refusal(root / "tables")
