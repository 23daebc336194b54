from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import own
import pytest
from downloads import CUT_OFF, notes_of, records_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from xbench.data import CocoDataset, CsvDataset, MaskFolderDataset
from xbench.data.annotations.items import RunLengths
from xbench.findings.queries import Query
from xbench.geometry.shapes import FRACTIONS, Shape
from xbench.runtime.errors import UserError

IMAGE = "p0/view0"
BOXES, OUTLINES = ("boxes", "polygons"), ("rle", "counts")


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return own.write_images(tmp_path_factory.mktemp("own"))


@pytest.fixture
def root(images, tmp_path) -> Path:
    shutil.copytree(images, tmp_path / "root")
    return tmp_path / "root"


def regions_of(data) -> dict[str, dict[str, np.ndarray]]:
    return {image: dict(data.load(record).regions) for image, record in records_of(data).items()}


def assert_reads(data, boxed: bool) -> None:
    truth = own.truth()
    records = records_of(data)
    assert list(records) == sorted(truth)
    for image, record in records.items():
        assert dict(record.labels) == {finding: int(finding in truth[image]) for finding in own.LABELS.values()}
        assert record.patient_id in (image.partition("/")[0], None)
        radiograph = data.load(record)
        np.testing.assert_array_equal(radiograph.image, own.phantoms()[image].image)
        assert radiograph.regions.keys() == truth[image].keys() and radiograph.notes == ()
        for finding, mask in truth[image].items():
            np.testing.assert_array_equal(radiograph.regions[finding], own.boxed(mask) if boxed else mask)
    assert data.notes == []


@pytest.mark.parametrize("kind", [*BOXES, *OUTLINES])
def test_coco(root, kind):
    data = CocoDataset(str(own.write_coco(root, kind=kind)), own.LABELS)
    assert_reads(data, kind in BOXES)
    assert data.findings == tuple(own.LABELS.values())
    assert records_of(data)[IMAGE].patient_id == "p0"
    assert_reads(CocoDataset(str(root), own.LABELS, shapes="boxes"), boxed=True)


@pytest.mark.parametrize("fractions", [False, True])
@pytest.mark.parametrize("corners", [False, True])
def test_tables(root, fractions, corners):
    own.write_csv(root, fractions=fractions, corners=corners)
    how = {"units": "fractions" if fractions else "pixels", "box": "xyxy" if corners else "xywh"}
    data = CsvDataset(str(root), own.LABELS, **how)
    assert_reads(data, boxed=True)
    assert records_of(data)[IMAGE].patient_id == "p0"


@pytest.mark.parametrize(
    ("pattern", "empty", "labels", "without"),
    [
        ("{finding}/{image}", True, False, "unknown"),
        ("{image}_{finding}", False, False, "absent"),
        ("{finding}/{image}-mask", False, True, "unknown"),
    ],
)
def test_masks(root, pattern, empty, labels, without):
    own.write_masks(root, empty, pattern)
    if labels:
        own.write_csv(root)
    data = MaskFolderDataset(
        str(root), own.LABELS, pattern=pattern, without_mask=without, labels="labels.csv" if labels else None
    )
    assert_reads(data, boxed=False)


def test_images_without_a_mask_are_no_negatives(root):
    own.write_masks(root, empty=False)
    data = MaskFolderDataset(str(root), own.LABELS)
    healthy = [image for image, regions in own.truth().items() if not regions]
    assert records_of(data).keys() == own.truth().keys() - {*healthy}
    assert notes_of(data) == {"an image that the annotation files do not name, left out": healthy}
    assert all(set(record.labels.values()) == {1} for record in data.records)


def test_one_finding_needs_no_folder_for_it(root):
    (root / "masks").mkdir()
    Image.fromarray(own.truth()[image := named("Nodule")]["Nodule"]).save(root / "masks/one.png")
    (root / "one.png").write_bytes((root / f"{image}.png").read_bytes())
    data = MaskFolderDataset(str(root), ["Nodule"])
    assert list(records_of(data)) == ["one"]


def named(finding: str) -> str:
    return next(image for image, regions in own.truth().items() if finding in regions)


def test_several_labels_for_one_finding_and_others_left_out(root):
    own.write_csv(root)
    data = CsvDataset(str(root), {"nod": "Lesion", "cardio": "Lesion"})
    truth = own.truth()
    both = {image: {"Nodule", "Cardiomegaly"} & {*regions} for image, regions in truth.items()}
    records = records_of(data)
    assert {image: record.labels["Lesion"] for image, record in records.items()} == {
        image: int(bool(found)) for image, found in both.items()
    }
    for image, found in both.items():
        if found:
            expected = np.logical_or.reduce([own.boxed(truth[image][finding]) for finding in found])
            np.testing.assert_array_equal(data.load(records[image]).regions["Lesion"], expected)
    left_out = sorted(image for image, regions in truth.items() if "Pleural Effusion" in regions)
    assert notes_of(data) == {"an annotation of 'eff', which --data.findings does not name, left out": left_out}


def test_recognition_only(root):
    content = own.coco_content()
    for annotation in content["annotations"]:
        if annotation["category_id"] == 2:
            annotation |= {"bbox": None, "segmentation": []}
    data = CocoDataset(str(own.write_coco(root, content)), own.LABELS, recognition_only=["Cardiomegaly", "Nodule"])
    assert {finding for regions in regions_of(data).values() for finding in regions} == {"Pleural Effusion"}
    assert sum(record.labels["Cardiomegaly"] for record in data.records) > 0
    (note,) = notes_of(data)
    assert note == "an annotation of Nodule, which is scored for recognition only, left out"


def test_columns_by_other_names(root):
    labels, boxes = own.label_rows(), own.box_rows()
    labels[0][0], boxes[0][:2], boxes[0][5] = "file", ["file", "class"], "h"
    own.write_csv(root, labels, boxes)
    assert_reads(
        CsvDataset(str(root), own.LABELS, columns={"image": "file", "finding": "class", "height": "h"}), boxed=True
    )


def test_unknown_is_not_absent(root):
    labels = own.label_rows()
    image = named("Nodule")
    (row,) = (row for row in labels if row[0] == f"{image}.png")
    row[2:] = ["", -1, -1]
    rows = [row for row in own.box_rows() if row[0] != f"{image}.png" or row[1] == "nod"]
    data = CsvDataset(str(own.write_csv(root, labels, rows)), own.LABELS)
    assert records_of(data)[image].labels == {"Nodule": 1}
    assert notes_of(data) == {"a box of a finding that the table of labels calls unknown; it is present": [image]}


def test_a_label_without_a_box_is_scored_for_recognition(root):
    image = named("Nodule")
    rows = [row for row in own.box_rows() if row[:2] != [f"{image}.png", "nod"]]
    data = CsvDataset(str(own.write_csv(root, boxes=[*rows, [f"{image}.png", "", "", "", "", ""]])), own.LABELS)
    record = records_of(data)[image]
    assert record.labels["Nodule"] == 1 and "Nodule" not in data.load(record).regions
    assert notes_of(data) == {"Nodule, present without annotation, is scored for recognition only": [image]}


def test_files_elsewhere(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own.write_coco(root)
    (root / "annotations.json").rename(root / "other.json")
    assert_reads(CocoDataset("root", own.LABELS, annotations="other.json"), boxed=False)
    (root / "other.json").rename(tmp_path / "third.json")
    assert_reads(CocoDataset("root", own.LABELS, annotations="third.json"), boxed=False)


@pytest.mark.parametrize("line", ["{}", "{}.png", "./{}.dcm", "{root}/{}.png", "p{}"])
def test_image_lists_and_names(root, tmp_path, line):
    own.write_coco(root)
    (tmp_path / "list.txt").write_text(line.format(IMAGE[line == "p{}" :], root=root) + "\n")
    data = CocoDataset(str(root), own.LABELS, image_list=str(tmp_path / "list.txt"))
    assert list(records_of(data)) == [IMAGE]


SIDES = st.integers(1, 9)


@given(st.tuples(SIDES, SIDES).flatmap(lambda shape: arrays(bool, shape)))
def test_run_lengths_of_both_kinds(mask):
    counts = own.plain_counts(mask)
    drawn = RunLengths.of_coco(counts, *mask.shape)
    np.testing.assert_array_equal(drawn.decode(*mask.shape), mask)
    assert drawn.empty == (not mask.any())
    # Runs of no pixel change nothing.
    np.testing.assert_array_equal(RunLengths.of_coco([0, 0, *counts, 0], *mask.shape).decode(*mask.shape), mask)


def inside(points, height, width):
    """Which pixels have their centers inside of a polygon, by rays to the right; None where that is close."""
    mask = np.zeros((height, width), object)
    for row in range(height):
        for column in range(width):
            x, y, crossed, close = column + 0.5, row + 0.5, False, False
            for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
                along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / max((x1 - x0) ** 2 + (y1 - y0) ** 2, 1e-9)
                along = min(max(along, 0), 1)
                close |= np.hypot(x0 + along * (x1 - x0) - x, y0 + along * (y1 - y0) - y) < 0.75
                if (y0 > y) != (y1 > y):
                    crossed ^= x < x0 + (y - y0) * (x1 - x0) / (y1 - y0)
            mask[row, column] = None if close else crossed
    return mask


@given(st.integers(3, 14), st.integers(3, 14), st.lists(st.tuples(*[st.floats(-1, 2)] * 2), min_size=3, max_size=6))
def test_polygons_as_coco_draws_them(height, width, shares):
    points = [(x * width, y * height) for x, y in shares]
    drawn, expected = Shape.from_points(points, outline=False).on(height, width).draw(), inside(points, height, width)
    sure = np.not_equal(expected, None)
    np.testing.assert_array_equal(drawn[sure], expected[sure].astype(bool))


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_fractions_give_back_whole_pixels(side, one, other):
    left, right = sorted((one % (side + 1), other % (side + 1)))
    edges = np.array([left / side, 0.0, left / side + (right - left) / side, 1.0])
    box = Shape("box", FRACTIONS, edges).on(1, side)
    assert np.flatnonzero(box.draw()[0]).tolist() == [*range(left, right)]
    assert not box.leaves()


def test_what_is_odd_is_counted(root):
    content = own.coco_content()
    first, second, third, *_ = content["annotations"]
    first["iscrowd"] = 1
    second |= {"segmentation": None, "bbox": [-3, 2, 20, 20]}
    content["annotations"].append(third | {"category_id": 4})
    content["categories"].append({"id": 4, "name": "Wire"})
    content["images"][0] |= {"width": 2 * own.WIDTH, "height": 2 * own.HEIGHT}
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] or a["category_id"] == 4]
    (root / "p9").mkdir()
    shutil.copy(root / f"{IMAGE}.png", root / "p9/stray.png")
    data = CocoDataset(str(own.write_coco(root, content)), own.LABELS)
    regions_of(data)
    notes = notes_of(data)
    assert notes["an image that the annotation files do not name, left out"] == ["p9/stray"]
    assert [*notes] and any("iscrowd 1" in note for note in notes)
    assert any("'Wire'" in note for note in notes) and any("in place of an outline" in note for note in notes)
    cut = [record.image_id for record in data.records if CUT_OFF in data.load(record).notes]
    assert len(cut) == 1


def refusal(data, says: str) -> None:
    with pytest.raises(UserError) as caught:
        data().setup("test")
    message = str(caught.value)
    assert says in message, message
    assert (
        "\n" not in message and message[-1] in ".?)" and ".." not in message.replace("...", "") and len(message) < 900
    )


def changed(part="annotations", kind="rle", add=(), **change):
    content = own.coco_content(kind)
    content[part][0] |= change
    for where, entry in add:
        content[where].append(entry)
    return content


def with_corners(kind="boxes", **change):
    content = own.coco_content(kind)
    for annotation in content["annotations"]:
        x, y, width, height = annotation["bbox"]
        annotation["bbox"] = [x, y, x + width, y + height]
    for image in content["images"]:
        image |= change
    return content


AGAIN = own.coco_content("boxes")["annotations"][2] | {"id": 99}
RLE = {"size": [own.HEIGHT, own.WIDTH], "counts": [own.HEIGHT * own.WIDTH]}
COCO = {
    "no dictionary": ([], "is not COCO's format"),
    "category missing": (changed("categories", name="nodule 2"), "has no category 'nod'. Its categories: 'nodule 2'"),
    "category twice": (changed("categories", id=2), "category 2: the id 2 occurs twice"),
    "another spelling": (changed(category_id=9, add=[("categories", {"id": 9, "name": "NOD"})]), "'NOD' is not 'nod'"),
    "category unknown": (changed(category_id=77), "annotation 1 (id 1): there is no category with the id 77"),
    "image twice": (changed("images", id=1), "image 2: the id 1 occurs twice"),
    "file twice": (changed("images", file_name="p0/view1.png"), "'p0/view1' is annotated twice"),
    "file ambiguous": (changed("images", file_name="view1.png"), "6 images under"),
    "no file name": (changed("images", file_name=None), "file_name is empty"),
    "file gone": (changed("images", file_name="p0/none.png"), "annotated images have no file (first: p0/none)"),
    "size": (changed("images", width=0), "An image of 0 x 90 pixels is not possible"),
    "no list": (own.coco_content() | {"annotations": [7]}, "annotation 1: "),
    "nothing drawn": (changed(segmentation=[], bbox=[]), "neither a segmentation nor a bbox"),
    "empty mask": (changed(segmentation=RLE), "its mask is empty"),
    "mask of another size": (changed(segmentation=RLE | {"size": [9, 800]}), "800 x 9 pixels, and the image 80"),
    "mask cut off": (changed(segmentation=RLE | {"counts": [5]}), "that add up to the 7200 pixels"),
    "run lengths cut off": (changed(segmentation=RLE | {"counts": "_m1"}), "do not add up to its 80 x 90 pixels"),
    "flat polygon": (changed(segmentation=[1, 2, 3, 4, 5, 6]), "within the list of parts"),
    "polygon outside": (changed(segmentation=[[95, 2, 130, 4, 105, 6]]), "outside the image of 80 x 90"),
    "polygon far outside": (changed(segmentation=[[1, 2, 3, 4, 1005, 6]]), "far outside the image of 80 x 90"),
    "polygon of nothing": (changed(segmentation=[[1, 2, 3, 2, 5, 2]]), "encloses nothing"),
    "no side": (changed(segmentation=None, bbox=[1, 2, 0, 3]), "contains no whole pixel"),
    "negative side": (changed(segmentation=None, bbox=[1, 2, -4, 3]), "a negative side"),
    "box again": (changed(kind="boxes", add=[("annotations", AGAIN)]), "it repeats annotation 3"),
    "corners": (with_corners(), "these are corners"),
    "corners in frames not stated": (with_corners(width=None, height=None), "these are corners"),
    "box outside": (changed(segmentation=None, bbox=[100, 2, 4, 3]), "outside the image of 80 x 90"),
}  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=50)
@given(st.data())
def test_any_change_of_the_json(images, tmp_path_factory, data):
    part = content = own.coco_content(data.draw(st.sampled_from([*BOXES, *OUTLINES])))
    while data.draw(st.integers(0, 4)) and isinstance(part, dict | list) and part:
        inside, key = part, data.draw(st.sampled_from([*part] if isinstance(part, dict) else range(len(part))))
        part = part[key]
    if part is not content:
        inside[key] = data.draw(JSON)
    path = own.write_coco(tmp_path_factory.getbasetemp(), content) / "annotations.json"
    dataset = CocoDataset(str(images), own.LABELS, annotations=str(path), on_error="skip")
    try:
        regions_of(dataset)
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1500


@pytest.mark.parametrize("content", COCO)
def test_wrong_coco(root, content):
    own.write_coco(root, COCO[content][0])
    refusal(lambda: CocoDataset(str(root), own.LABELS), COCO[content][1])


def table_with(*cells, name="labels", row=1, column=2):
    rows = own.label_rows() if name == "labels" else own.box_rows()
    rows[row][column : column + len(cells)] = cells
    return {name: rows}


labels_with, boxes_with = table_with, partial(table_with, name="boxes")
FIRST = own.box_rows()[1]
HEALTHY = 1 + [*own.truth().values()].index({})
TABLES = {
    "no column": (labels_with("wire", row=0), "has no column nod (for Nodule). Its columns: image, patient_id, wire"),
    "no label": (labels_with("2"), "a label is 1, 0, or -1 for unknown"),
    "image twice": (labels_with("p0/view1.png", column=0), "p0/view1 is listed twice"),
    "image gone": (labels_with("none.png", row=HEALTHY, column=0), "1 of 12 annotated images have no file"),
    "image unknown": (boxes_with("none.png", column=0), "line 2: the table of labels lacks none"),
    "NaN": (boxes_with("nan"), "x is 'nan', not a number"),
    "no side": (boxes_with(0, column=4), "contains no pixel"),
    "another spelling": (boxes_with(f"{FIRST[1]}_".upper(), column=1), "is not"),
    "again": ({"boxes": [*own.box_rows(), FIRST]}, f"{len(own.box_rows()) + 1}: the box of {FIRST[1]} on"),
    "corners": ({"boxes": [own.box_rows()[0], *own.box_rows(corners=True)[1:]]}, "--data.box xyxy"),
    "column twice": ({"labels": [[*row, row[-1]] for row in own.label_rows()]}, "the column 'eff' occurs twice"),
    "absent": ({"labels": [[0 if cell == 1 else cell for cell in row] for row in own.label_rows()]}, "calls absent on"),
    "never": ({"boxes": [row for row in own.box_rows() if row[1] != "eff"]}, "has no annotation of Pleural Effusion"),
    "fractions": ({"boxes": own.box_rows(fractions=True)}, "is in --data.units fractions, not pixels"),
}  # fmt: skip


@settings(max_examples=60)
@given(st.data())
def test_any_change_of_the_tables(images, tmp_path_factory, data):
    tables = {"labels": own.label_rows(), "boxes": own.box_rows()}
    row = data.draw(st.sampled_from(tables[data.draw(st.sampled_from([*tables]))]))
    content = st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["nod", "p1/view1.png", 0, 1, -1])
    row[data.draw(st.integers(0, len(row) - 1))] = data.draw(content)
    folder = own.write_csv(tmp_path_factory.getbasetemp(), **tables)
    files = {"labels": str(folder / "labels.csv"), "annotations": str(folder / "boxes.csv")}
    try:
        regions_of(CsvDataset(str(images), own.LABELS, on_error="skip", **files))
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1500


@pytest.mark.parametrize("content", TABLES)
def test_wrong_tables(root, content):
    own.write_csv(root, **TABLES[content][0])
    refusal(lambda: CsvDataset(str(root), own.LABELS), TABLES[content][1])


def test_a_wrong_path_is_called_one(root):
    data = partial(CsvDataset, str(root), own.LABELS, annotations=str(own.write_csv(root) / "b.csv"))
    refusal(data, "b.csv does not exist. Correct the path.")


def test_sizes_that_reach_over_an_edge_are_no_corners(root):
    """Rounding, and a box at the edge here and there, are no sign; nor are boxes that cannot be corners."""
    rows = own.box_rows()
    for row in rows[1:]:
        row[2:] = [own.WIDTH - 30, own.HEIGHT - 40, 35, 45]
    labels = own.label_rows()
    data = CsvDataset(str(own.write_csv(root, labels, rows)), own.LABELS)
    assert records_of(data)
    for row in rows[1:]:
        row[2:] = [30, 30, own.WIDTH - 30 + 0.5, own.HEIGHT - 30 + 0.5]
    data = CsvDataset(str(own.write_csv(root, labels, rows)), own.LABELS)
    assert records_of(data)


def save(path: Path, pixels, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8), mode).save(path)


SQUARE = np.zeros((own.HEIGHT, own.WIDTH), np.uint8)
SQUARE[9:20, 9:20] = 255
CLEAR = np.dstack([SQUARE * 0, SQUARE * 0, SQUARE * 0, SQUARE])
MASKS = {
    "gray values": ("nod/p0/view0.png", SQUARE // 2 + np.arange(own.WIDTH, dtype=np.uint8), "gray values, from 0"),
    "never black": ("nod/p0/view0.png", SQUARE // 2 + 1, "has 2 gray values, from 1"),
    "transparent": ("nod/p0/view0.png", CLEAR, "has transparent pixels"),
    "two files": ("nod/p0/view0.jpg", SQUARE, "p0/view0 has two masks of nod"),
    "no image": ("nod/none.png", SQUARE, "Masks are matched with images by --data.pattern {finding}/{image}"),
    "no finding": ("stray.png", SQUARE, "does not fit by --data.pattern {finding}/{image}"),
    "another spelling": ("Nod/p0/view0.png", SQUARE, "'Nod' is not 'nod'"),
    "no picture": ("nod/p0/view0.png", None, "cannot be decoded"),
}


@pytest.mark.parametrize("case", MASKS)
def test_wrong_masks(root, case):
    own.write_masks(root)
    path, pixels, says = MASKS[case]
    if pixels is None:
        (root / "masks" / path).write_text("no picture")
    else:
        save(root / "masks" / path, pixels)
    refusal(lambda: MaskFolderDataset(str(root), own.LABELS), says)


def test_masks_against_labels_and_images(root):
    own.write_csv(own.write_masks(root), **labels_with(*([1 - int(own.label_rows()[1][2])])))
    refusal(lambda: MaskFolderDataset(str(root), own.LABELS, labels="labels.csv"), "labels.csv calls Nodule")
    save(root / "masks/nod/p0/view0.png", SQUARE[:50])
    data = MaskFolderDataset(str(root), own.LABELS)
    with pytest.raises(UserError, match="80 x 50 pixels, but its image is 80 x 90"):
        data.load(records_of(data)[IMAGE])
    shutil.rmtree(root / "masks/eff")
    refusal(lambda: MaskFolderDataset(str(root), own.LABELS), "has no annotation of Pleural Effusion")
    shutil.rmtree(root / "masks")
    refusal(lambda: MaskFolderDataset(str(root), own.LABELS), "is not a folder, here or in")


def test_a_mask_that_two_findings_claim(root):
    (root / "masks").mkdir()
    save(root / "masks/a_b_c.png", SQUARE)
    refusal(lambda: MaskFolderDataset(str(root), ["b_c", "c"], pattern="{image}_{finding}"), "may be of b_c or c")


OPTIONS = {
    "no finding": ({"findings": {}}, "--data.findings: there are no findings"),
    "another's name": ({"name": "rsna"}, "is the name of a dataset of the package"),
    "a path": ({"name": "a/b"}, "no slash"),
    "unknown": ({"recognition_only": ["Mass"]}, "--data.recognition_only Mass is not one of the findings"),
    "columns": ({"columns": {"left": "l"}}, "--data.columns left: give image, finding, x, y, width, height"),
    "annotations": ({"annotations": "a.csv"}, "masks are in --data.masks"),
    "pattern": ({"pattern": "{image}_{side}"}, "write {image} once"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_wrong_options(root, case):
    options, says = OPTIONS[case]
    cls = CsvDataset if "columns" in options else MaskFolderDataset
    refusal(lambda: cls(str(root), **({"findings": own.LABELS} | options)), says)


@pytest.mark.parametrize("kind", [CsvDataset, CocoDataset])
def test_phrases(root, kind):
    own.write_phrases(root, kind.name)
    data = kind(str(root), own.LABELS, text="text")
    truth, regions = own.truth(), own.phrase_truth()
    records = records_of(data)
    assert list(records) == sorted(truth) and records[IMAGE].patient_id == "p0"
    for image, record in records.items():
        expected = [
            Query(f"{finding} 1", finding, own.phrase_of(label, finding in truth[image]))
            for label, finding in own.LABELS.items()
        ]
        assert [*record.queries] == expected
        assert record.labels == {f"{finding} 1": int(finding in truth[image]) for finding in own.LABELS.values()}
        radiograph = data.load(record)
        assert radiograph.regions.keys() == regions[image].keys()
        for name, mask in regions[image].items():
            np.testing.assert_array_equal(radiograph.regions[name], mask)
    assert data.notes == []


def test_phrases_without_a_finding_a_label_or_a_box(root):
    labels = [["image", "eff"], *([row[0], ""] for row in own.label_rows()[1:])]
    labels[1][1] = 0
    rows = [
        ["image", "finding", "text", "x", "y", "width", "height"],
        [f"{IMAGE}.png", "", "two\n lines\u200b", 1, 2, 3, 4],
        [f"{IMAGE}.png", "", "an open question", *[""] * 4],
        [f"{IMAGE}.png", "eff", "dry", *[""] * 4],
        ["p1/view0", "eff", "wet", *[""] * 4],
        ["p1/view0", "gout", "swollen", 1, 2, 3, 4],
    ]
    data = CsvDataset(str(own.write_csv(root, labels, rows)), {"eff": "Pleural Effusion"}, text="text")
    records = records_of(data)
    assert [(query.name, query.finding, query.text) for query in records[IMAGE].queries] == [
        ("Phrase 1", None, "two lines"),
        ("Phrase 2", None, "an open question"),
        ("Pleural Effusion 1", "Pleural Effusion", "dry"),
    ]
    assert records[IMAGE].labels == {"Phrase 1": 1, "Pleural Effusion 1": 0}
    assert [query.text for query in records["p1/view0"].queries] == ["wet"] and records["p1/view0"].labels == {}
    assert records["p1/view1"].queries == () and data.groups == ("Pleural Effusion", "Phrases")
    assert notes_of(data) == {"an annotation of 'gout', which --data.findings does not name, left out": ["p1/view0"]}
    # No finding at all, and a phrase that is present without a box.
    rows = [[*rows[0], "label"], [f"{IMAGE}.png", "", "somewhere", *[""] * 4, 1]]
    data = CsvDataset(str(own.write_csv(root, [row[:1] for row in labels], rows)), [], text="text")
    assert records_of(data)[IMAGE].labels == {"Phrase 1": 1} and data.groups == ("Phrases",)
    assert [*notes_of(data)] == ["a present phrase has no annotation, so no number counts it"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": "  "}, "text is empty"),
        ({"label": 0}, "a phrase with the label 0, absent, has an annotation"),
        ({"label": 2}, "a label is 1, 0, or -1 for unknown"),
        ({"image": "p9/view9"}, "the table of labels lacks p9/view9"),
        ({"finding": "eff", "text": "NO FLUID", "width": ""}, "not a number"),
        ({"finding": "eff", "text": "no FLUID", "label": ""}, "present in one row of p0/view0 and absent in another"),
    ],
)
def test_rows_of_phrases_that_are_refused(root, change, said):
    header, *rows = own.phrase_rows()
    assert "Pleural Effusion" not in own.truth()[IMAGE]
    wrong = dict(zip(header, [f"{IMAGE}.png", "nod", "a spot", 1, 1, 2, 3, 4], strict=True)) | change
    own.write_phrases(root)
    own.write_table(root / "boxes.csv", [header, *rows, list(wrong.values())])
    with pytest.raises(UserError, match=said):
        CsvDataset(str(root), own.LABELS, text="text").setup("test")
    with pytest.raises(UserError, match="a phrase is None, not a text"):
        CocoDataset(str(own.write_coco(root)), own.LABELS, text="text").setup("test")
