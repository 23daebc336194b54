from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from downloads import CLASSES, CUT_OFF, assert_reads, notes_of, records_of, refusal
from official.chexlocalize import LABELS, encoded
from official.mscxr import HEADER
from official.vindr import COLUMNS

STRAY = "an image that the annotation files do not name, left out"
UNKNOWN = "a polygon of the unknown label 'pleural_effusion', taken for an opacity"
EDEMA = "a box or label of 'Edema', which is not one of the 21 findings, left out"
UNDRAWN = "a present phrase has no annotation, so no number counts it"
BOXLESS = "an image of tuberculosis without a box, scored for recognition only"
REPORTS = "grounded_reports_20240819.json"

# Dataset, split, options of the writer, options of the dataset, files that are read, and notes on them.
LAYOUTS = [
    ("rsna", "train", {}, {}, ["stage_2_train_labels.csv"], set()),
    ("siim", "all", {}, {}, ["train-rle.csv"], set()),
    ("siim", "stage1_train", {}, {}, ["train-rle.csv"], set()),
    ("siim", "stage1_test", {}, {}, ["train-rle.csv"], set()),
    ("covid", "all", {}, {}, None, {STRAY, UNKNOWN}),
    ("chestxdet10", "test", {}, {}, ["test.json"], set()),
    ("chestxdet10", "train", {}, {}, ["train.json"], set()),
    ("chexdet", "test", {"polygons": True}, {"regions": "polygons"}, ["ChestX_Det_test.json"], set()),
    ("chexdet", "train", {"polygons": True}, {"regions": "polygons"}, ["ChestX_Det_train.json"], set()),
    ("chexdet", "test", {"polygons": False}, {}, ["ChestX_Det_test.json"], set()),
    ("chexlocalize", "test", {}, {}, ["gt_segmentations_test.json", "test_labels.csv"], set()),
    ("chexlocalize", "val", {}, {}, ["gt_segmentations_val.json", "val_labels.csv"], set()),
    ("chestxray14", "boxes", {}, {}, ["BBox_List_2017.csv", "Data_Entry_2017_v2020.csv"], set()),
    ("chestxray14", "test", {}, {}, ["BBox_List_2017.csv", "Data_Entry_2017_v2020.csv", "test_list.txt"], set()),
    ("vindr", "test", {}, {}, ["annotations_test.csv", "image_labels_test.csv"], {EDEMA}),
    ("vindr", "train", {}, {}, ["annotations_train.csv", "image_labels_train.csv"], set()),
    ("vindr", "train", {"layout": "kaggle", "outside": False}, {}, ["train.csv"], set()),
    ("mscxr", "all", {}, {}, ["MS_CXR_Local_Alignment_v1.1.0.csv"], set()),
    ("mscxr", "train", {}, {}, ["MS_CXR_Local_Alignment_v1.1.0.csv"], set()),
    ("padchestgr", "test", {}, {}, ["master_table.csv", REPORTS], {UNDRAWN}),
    ("padchestgr", "all", {"language": "es"}, {"language": "es"}, ["master_table.csv", REPORTS], {UNDRAWN}),
    *(
        ("padchestgr", "test", {"readers": who, "outside": False}, {"readers": who}, None, {UNDRAWN})
        for who in ("second", "both")
    ),
    ("tbx11k", "val", {}, {}, ["TBX11K_val.json"], {BOXLESS}),
    ("tbx11k", "train", {}, {}, ["TBX11K_train.json"], set()),
    ("tbx11k", "all_val", {}, {}, ["all_val.json"], {BOXLESS}),
    ("tbx11k", "trainval", {"layout": "kaggle"}, {}, ["data.csv"], {BOXLESS}),
]


@pytest.mark.parametrize(("name", "split", "written", "options", "files", "notes"), LAYOUTS)
def test_images_labels_and_regions(downloads, name, split, written, options, files, notes):
    official = downloads(name, **written)
    data = CLASSES[name](str(official.root), split=split, **options)
    names = official.splits.get(split, official.images)
    noted = assert_reads(data, official, names)
    # Run lengths hold what is left of an outline that reaches over the edge.
    beyond = [] if name == "chexlocalize" else official.outside
    assert noted == {image: (CUT_OFF,) for image, _ in beyond if image in names}
    assert files is None or [path.name for path in data.annotation_files()] == files
    assert {*notes_of(data)} == notes


def lines(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def labels_of(path: str = "test/patient1/study1/view1_frontal.jpg", header=LABELS, **given: str) -> str:
    return lines(",".join(["Path", *header]), ",".join([path, *(given.get(name, "0.0") for name in header)]))


def entry(**change: object) -> dict[str, object]:
    return {
        "file_name": "1.png", "syms": ["Mass"], "boxes": [[1, 2, 3, 4]], "polygons": [[[1, 2], [3, 2], [3, 4]]]
    } | change  # fmt: skip


def labelme(**change: object) -> dict[str, object]:
    shape = {"label": "consolidation", "shape_type": "polygon", "points": [[0, 0], [9, 0], [9, 9]]}
    own = {key: value for key, value in change.items() if key.startswith("image")}
    changed = {key: value for key, value in (shape | change).items() if key not in own and value is not None}
    return {"imageHeight": 16, "imageWidth": 16, "shapes": [changed]} | own


RSNA, SIIM, MASKS = "stage_2_train_labels.csv", "train-rle.csv", "CheXlocalize/gt_segmentations_test.json"
TABLE, BOXES, ENTRIES = "CheXpert/test_labels.csv", "BBox_List_2017.csv", "Data_Entry_2017_v2020.csv"
VINDR, VOTES = "annotations/annotations_test.csv", "annotations/image_labels_test.csv"
KEY = "patient1_study1_view1_frontal"
RLE = encoded(np.eye(16, dtype=bool))
targets = partial(lines, "patientId,x,y,width,height,Target")
listed = partial(lines, "ID,img_path,boxes,classes")
boxes = partial(lines, "Image Index,Finding Label,Bbox [x,y,w,h],,,")
corners = partial(lines, "image_id,class_name,x_min,y_min,x_max,y_max")
PHRASES = "MS_CXR_Local_Alignment_v1.1.0.csv"
phrases = partial(lines, ",".join(HEADER))


def study(**change: object) -> dict[str, object]:
    sentence = {"sentence_en": "haze", "sentence_es": "bruma", "abnormal": True, "boxes": [[0.1, 0.2, 0.3, 0.4]]}
    return {"ImageID": "1.png", "findings": [sentence | change]}


def tbx(**change: object) -> dict[str, object]:
    images = [{"id": 1, "file_name": "tb/tb1.png", "height": 9, "width": 9}]
    return {"categories": [{"id": 1, "name": "ActiveTuberculosis"}], "images": images, "annotations": []} | change


# Files beside the malformed one.
SOUND = {
    "padchestgr": {"master_table.csv": lines("ImageID,PatientID,split", "1.png,2,test")},
    "chexlocalize": {MASKS: {}, TABLE: labels_of()},
    "chestxray14": {BOXES: boxes("1_0.png,Mass,10.9,20.1,3.99,4.5")},
    "vindr": {VINDR: corners("a,ILD,1,1,5,5")},
}
MALFORMED = [
    ("rsna", RSNA, targets("a,1,2,3,4,1", "a,,,,,0"), "line 3: a has Target 0 here and 1 in an earlier row"),
    ("rsna", RSNA, targets("a,1,2,3,4,0"), "line 2: there is a box, and Target is 0"),
    ("rsna", RSNA, targets("a,1,2,3,1e9,1"), "line 2: The coordinate '1000000000.0' is not a pixel"),
    ("rsna", RSNA, targets("a,,,,,"), "line 2: Target is '', not 0 or 1"),
    ("rsna", RSNA, listed("a,x.dcm,1;2;3,1"), "line 2: boxes holds '1;2;3', which is not x;y;width;height"),
    ("rsna", RSNA, listed("a,x.dcm,1;2;3;nan,1"), "is not a pixel"),
    ("rsna", RSNA, listed("a,x.dcm,,1"), "line 2: classes is '1', and there are 0 boxes"),
    ("rsna", RSNA, listed("a,x.dcm,1;2;3;4,0"), "line 2: classes is '0', and there are 1 boxes"),
    ("rsna", RSNA, listed("a,x.dcm,,0", "a,x.dcm,,0"), "line 3: a is listed twice"),
    ("siim", SIIM, "", "columns"),
    ("siim", SIIM, lines("ImageId,EncodedPixels", "a,-1", "a,"), "line 3"),
    ("siim", SIIM, lines("ImageId,EncodedPixels", "a,-1", "b,-1", "a,3 4"), "first: 'a'"),
    ("siim", SIIM, "ImageId,EncodedPixels\nb,99 5 3", "line 2: the file is cut off within this mask"),
    *(
        ("covid", "jpgs/jsons/a.json", content, said)
        for content, said in [
            ([], "is not a LabelMe file"),
            ({}, "'imageHeight' is missing"),
            ({"imageHeight": 16, "imageWidth": 16}, "'shapes' is missing"),
            (labelme(imageHeight=-16, imageWidth=-16), "An image of -16 x -16 pixels"),
            (labelme(points=None), "'points' is missing"),
            (labelme(points=[[1, "2"], [3, 4], [5, 6]]), "'2' is not a pixel"),
            (labelme(shape_type="circle"), "is a circle, not a polygon"),
        ]
    ),
    *(
        ("chexdet", "ChestX_Det_test.json", content, said)
        for content, said in [
            ({}, "is not a list of images"),
            ([None], "entry 1"),
            ([{"file_name": "1.png", "syms": [], "boxes": []}], "entry 1: 'polygons' is missing"),
            ([{"file_name": "1.png", "boxes": [], "polygons": []}], "entry 1: 'syms' is missing"),
            ([entry(file_name="")], "entry 1: file_name is empty"),
            ([entry(), entry()], "'1' is annotated twice"),
            ([entry(syms=[])], "entry 1"),
            ([entry(syms=["Hernia"])], "'Hernia' is not one of the findings"),
            ([entry(boxes=[[1, 2, 3]])], "entry 1"),
            ([entry(boxes=[[3, 2, 1, 4]])], "ends before it begins"),
            ([entry(boxes=[[1, 2, 3, 10**400]])], "is not a pixel"),
            ([entry(polygons=[])], "there are 1 boxes and 0 polygons"),
            ([entry(polygons=[[]])], "A polygon has no points"),
            ([entry(polygons=[[[1, 2], [3]]])], "entry 1"),
            ([entry(polygons=[[[1, 2], [3, None]]])], "entry 1"),
            ([entry(polygons=7)], "entry 1"),
        ]
    ),
    *(
        ("chexlocalize", MASKS, content, said)
        for content, said in [
            ([], "has no segmentations by image"),
            ({KEY: {"Edema": {"size": [16, 16]}}}, "'counts' is missing"),
            ({KEY: {"Edema": {"size": [10**5, 10**5], "counts": RLE["counts"]}}}, "100000 x 100000"),
            ({KEY: {"Edema": {"size": [16, 16], "counts": [5, 6]}}}, "add up to the 256 pixels"),
            ({KEY: {"Edema": {"size": [16, 16], "counts": 7}}}, "is not a COCO run-length encoding"),
            ({KEY: {"Edema": RLE, "Lung Lesion": encoded(np.eye(16, 17, dtype=bool))}}, "differ in size"),
            ({KEY: {"img_size": [16, 16], "Edema": 7}}, KEY),
            ({KEY: {"img_size": [16, 16], "Edema": [[]]}}, "A polygon has no points"),
        ]
    ),
    ("chexlocalize", TABLE, labels_of(Edema="2"), "line 2: Edema is '2'; a label is 1, 0, or -1 for unknown"),
    ("chexlocalize", TABLE, labels_of(path=""), "line 2: Path is empty"),
    ("chexlocalize", TABLE, labels_of() + labels_of().split("\n")[1], f"line 3: {KEY} is listed twice"),
    ("chexlocalize", TABLE, labels_of(header=LABELS[:-1]), "no column for Support Devices"),
    ("chestxray14", BOXES, boxes("1_0.png,Hernia,1,2,3,4"), "line 2: the finding 'Hernia' is not one of the eight"),
    ("chestxray14", BOXES, boxes(",Mass,1,2,3,4"), "line 2: Image Index is empty"),
    ("chestxray14", BOXES, boxes("1_0.png,Mass,1,2,-3,4"), "has a negative side"),
    ("chestxray14", BOXES, lines("Image Index,Finding,x,y,w,h"), "lacks Finding Label"),
    ("chestxray14", ENTRIES, lines("Image Index,Finding Labels", "1_0.png,"), "line 2: Finding Labels is empty"),
    (
        "chestxray14",
        ENTRIES,
        lines("Image Index,Finding Labels", "1_0.png,Mass", "1_0.png,Nodule"),
        "line 3: 1_0 is listed twice",
    ),
    ("vindr", VINDR, corners("a,ILD,5,1,1,5"), "line 2: The box (5.0, 1.0) to (1.0, 5.0) ends before it begins"),
    ("vindr", VINDR, corners("a,,1,1,5,5"), "line 2: class_name is empty"),
    ("vindr", VOTES, lines(",".join(["image_id", *COLUMNS]), "a" + ",yes" * 28), "is 'yes', not a number"),
    ("mscxr", PHRASES, phrases("a,Edema,haze,p,1,2,3,4,0,9,test"), "line 2: An image of 0 x 9 pixels"),
    ("mscxr", PHRASES, phrases("a,Edema,haze,p,1,2,-3,4,9,9,test"), "line 2: A box of -3.0 x 4.0 pixels"),
    ("mscxr", PHRASES, phrases("a,Edema,,p,1,2,3,4,9,9,test"), "line 2: label_text is empty"),
    (
        *("mscxr", PHRASES, phrases("a,Edema,haze,p,1,2,3,4,9,9,test", "a,Edema,fog,p,1,2,3,4,9,8,test")),
        "line 3: a has another size here than in an earlier row",
    ),
    *(
        ("padchestgr", REPORTS, content, said)
        for content, said in [
            ({"studies": []}, "the list of studies"),
            ([{"ImageID": 2168401113669640}], "the list of studies"),
            ([study() | {"findings": True}], "the findings of 1: 'bool' object is not iterable"),
            ([study(abnormal=None)], "sentence 1 of 1: abnormal is None, not true or false"),
            ([study(boxes=[[0.1, 0.2, 0.3, 10**400]])], "sentence 1 of 1: int too large to convert to float"),
            ([study(boxes=[[10, 20, 30, 40]])], "is not in fractions of the image"),
            ([study(sentence_en=["haze"])], "a phrase is ['haze'], not a text"),
        ]
    ),
    *(
        ("tbx11k", "TBX11K_val.json", content, said)
        for content, said in [
            ([], "its lists of categories, images and annotations"),
            (tbx(annotations=[{"image_id": 1, "category_id": 1}]), "annotation 1: 'bbox' is missing"),
            (tbx(annotations=[{"image_id": 9, "category_id": 1, "bbox": [1, 2, 3, 4]}]), "annotation 1: 9 is missing"),
            (tbx(images=[{"id": 1, "file_name": "tb/tb1.png", "height": 0, "width": 9}]), "image 1: An image of 9 x 0"),
        ]
    ),
]


@pytest.mark.parametrize(("name", "file", "content", "said"), MALFORMED)
def test_malformed_files(tmp_path, name, file, content, said):
    for path, text in (SOUND.get(name, {}) | {file: content}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text if isinstance(text, str) else json.dumps(text))
    refusal(name, tmp_path, says=[tmp_path / file, said])


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
