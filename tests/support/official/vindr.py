"""VinDr-CXR: DICOM files of every kind, boxes as two corners of one consensus or of three readers, label tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from official.base import Box, Official, hexadecimal, write_lines
from official.dicom import write_dicom
from official.films import draw_film, place, scaled

COLUMNS = (
    "Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Clavicle fracture", "Consolidation", "Edema",
    "Emphysema", "Enlarged PA", "ILD", "Infiltration", "Lung Opacity", "Lung cavity", "Lung cyst", "Mediastinal shift",
    "Nodule/Mass", "Pleural effusion", "Pleural thickening", "Pneumothorax", "Pulmonary fibrosis", "Rib fracture",
    "Other lesion", "COPD", "Lung tumor", "Pneumonia", "Tuberculosis", "Other diseases", "No finding",
)  # fmt: skip

CANONICAL = {
    name: " ".join(word[0].upper() + word[1:] for word in name.split())
    for name in sorted(COLUMNS[:22])
    if name != "Edema"
}
"""The 21 classes of the table, with capitals. Edema is annotated as well, but is not one of them."""

KAGGLE = (
    "Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Consolidation", "ILD", "Infiltration",
    "Lung Opacity", "Nodule/Mass", "Other lesion", "Pleural effusion", "Pleural thickening", "Pneumothorax",
    "Pulmonary fibrosis", "No finding",
)  # fmt: skip

READERS = ("R9", "R10", "R8")

# Classes with boxes, then labels without one. "=" gives the box before it a second class; "|" makes it 3 px wide and
# "0" moves it to the edge of the image. No image has Clavicle fracture or Lung cyst.
_TEST: tuple[tuple[tuple[int, int], tuple[str, ...], tuple[str, ...]], ...] = (
    ((401, 317), ("Aortic enlargement", "Cardiomegaly"), ()),
    ((317, 401), (), ()),
    ((389, 333), ("Pleural effusion", "Pleural effusion", "Pleural thickening"), ()),
    ((360, 360), ("Nodule/Mass", "Nodule/Mass", "Nodule/Mass", "Other lesion"), ("Lung tumor",)),
    ((333, 389), (), ()),
    ((150, 176), ("Infiltration", "=Lung Opacity", "Consolidation"), ("Pneumonia",)),
    ((402, 322), ("Pulmonary fibrosis", "ILD"), ("COPD",)),
    ((350, 400), ("Cardiomegaly", "Aortic enlargement", "Edema"), ()),
    ((400, 350), (), ()),
    ((377, 311), ("Pneumothorax", "|Rib fracture"), ()),
    ((311, 377), ("Atelectasis", "Mediastinal shift", "0Pleural effusion"), ()),
    ((344, 414), ("Lung cavity", "Calcification", "Pulmonary fibrosis"), ("Tuberculosis",)),
    ((176, 150), ("Emphysema", "Enlarged PA"), ("Lung Opacity",)),
    ((320, 390), (), ("Other diseases",)),
)
# What each of READERS drew; a number in front tells apart the boxes of one class.
_TRAIN: tuple[tuple[tuple[int, int], tuple[tuple[str, ...], ...]], ...] = (
    ((366, 318), (("Cardiomegaly", "Infiltration", "=Lung Opacity"), ("1Cardiomegaly",), ("Aortic enlargement",))),
    ((318, 366), ((), (), ())),
    ((355, 355), (("Nodule/Mass", "Pleural effusion"), ("1Pleural effusion",), ("2Pleural effusion",))),
)


def write_vindr(root: Path, layout: Literal["physionet", "kaggle"] = "physionet", outside: bool = False) -> Official:
    """Write fourteen test images with a consensus and three training images with three readers each.

    PhysioNet's coordinates have fractions, Kaggle's are cut to whole numbers; a box covers the columns int(x_min) ..
    int(x_max) - 1. `kaggle` has 14 classes, two test images without annotations, and no label tables.
    """
    official = Official(root)
    kaggle = layout == "kaggle"
    drawn: dict[str, list[Box]] = {}
    extra: dict[str, tuple[str, ...]] = {}
    for number, (size, classes, labels) in enumerate(_TEST[:2] if kaggle else _TEST):
        name = hexadecimal(f"vindr test {number}")
        _write_image(official, "test", name, size, number)
        drawn[name], extra[name] = _boxes(name, size, classes), labels
        if outside and number == 2:
            drawn[name].append(Box("Atelectasis", 250.7, 300.2, 333 + 25.6, 350.9))
    for number, (size, readers) in enumerate(_TRAIN):
        name = hexadecimal(f"vindr train {number}")
        _write_image(official, "train", name, size, len(_TEST) + number)
        drawn[name] = [box for who, own in zip(READERS, readers, strict=True) for box in _boxes(name, size, own, who)]
    for split in ("train",) if kaggle else ("test", "train"):
        for name in official.splits[split]:
            positive = {box.finding for box in drawn[name]} | {*extra.get(name, ())}
            classes = KAGGLE if kaggle else COLUMNS
            official.annotate(name, {CANONICAL[c]: int(c in positive) for c in CANONICAL if c in classes})
            for box in drawn[name]:
                if box.finding in CANONICAL:
                    corners = int(box.x1), int(box.y1), int(box.x2), int(box.y2)
                    official.fill(name, Box(CANONICAL[box.finding], *corners, box.reader))
        if not kaggle:
            _write_physionet_tables(official, split, drawn, extra)
    if kaggle:
        _write_kaggle_tables(official, drawn)
    return official


def _boxes(name: str, size: tuple[int, int], classes: Iterable[str], reader: str = "") -> list[Box]:
    boxes: list[Box] = []
    for entry in classes:
        class_name = entry.lstrip("=|0123456789")
        kind = entry.removesuffix(class_name)
        if kind == "=":
            last = boxes[-1]
            boxes.append(Box(class_name, last.x1, last.y1, last.x2, last.y2, reader))
            continue
        which = sum(box.finding == class_name for box in boxes)
        # No two readers draw quite the same box.
        moved = 4 * int(kind) if kind.isdecimal() else 0
        x1, y1, x2, y2 = (edge + moved for edge in scaled(place(class_name, "vindr", name, which), *size))
        if kind == "|":
            x2 = x1 + 3
        if kind == "0":
            x1, x2 = 0, x2 - x1
        boxes.append(Box(class_name, *(round(edge, 3) for edge in (x1, y1, x2, y2)), reader))
    return boxes


def _write_physionet_tables(
    official: Official, split: str, drawn: dict[str, list[Box]], extra: dict[str, tuple[str, ...]]
) -> None:
    boxes, labels = [], []
    for name in official.splits[split]:
        for reader in READERS if split == "train" else ("",):
            own = [box for box in drawn[name] if box.reader == reader]
            who = f"{name},{reader}" if reader else name
            boxes += [f"{who},{box.finding},{box.x1},{box.y1},{box.x2},{box.y2}" for box in own]
            boxes += [] if own else [f"{who},No finding,,,,"]
            positive = {box.finding for box in own} | {*extra.get(name, ())} or {"No finding"}
            labels.append(",".join([who, *(str(int(column in positive)) for column in COLUMNS)]))
    who = "image_id,rad_id" if split == "train" else "image_id"
    # The two tables do not agree on this name.
    named = [name.replace("diseases", "disease") if split == "test" else name for name in COLUMNS]
    folder = official.root / "annotations"
    write_lines(folder / f"annotations_{split}.csv", f"{who},class_name,x_min,y_min,x_max,y_max", *boxes)
    write_lines(folder / f"image_labels_{split}.csv", ",".join([who, *named]), *labels)


def _write_kaggle_tables(official: Official, drawn: dict[str, list[Box]]) -> None:
    rows = []
    for name in official.splits["train"]:
        for reader in READERS:
            own = [box for box in drawn[name] if box.reader == reader]
            for box in own:
                edges = ",".join(f"{int(edge)}.0" for edge in (box.x1, box.y1, box.x2, box.y2))
                rows.append(f"{name},{box.finding},{KAGGLE.index(box.finding)},{reader},{edges}")
            rows += [] if own else [f"{name},No finding,14,{reader},,,,"]
    # The rows of one image lie apart.
    rows.sort(key=hexadecimal)
    write_lines(official.root / "train.csv", "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max", *rows)
    guesses = (f"{name},14 1 0 0 1 1" for name in official.splits["test"])
    write_lines(official.root / "sample_submission.csv", "image_id,PredictionString", *guesses)


def _write_image(official: Official, split: str, name: str, size: tuple[int, int], number: int) -> None:
    image = draw_film(number, *size)
    # Full range, so that the stretch to 8 bits gives the image back.
    image[0, :2] = 0, 255
    file = official.add(name, image, official.root / split / f"{name}.dicom", split)
    levels = image.astype(np.int64)
    inverted = {"PhotometricInterpretation": "MONOCHROME1"}
    rescaled = {"RescaleSlope": "2", "RescaleIntercept": "-1024"} | _window(-2024, 2056)
    kinds: list[tuple[NDArray[Any], str, dict[str, Any]]] = [
        (_overexposed(300 + levels * 12, 20, 4000), "native", _bits(12) | _window(300, 3360)),
        (_overexposed(200 + (255 - levels) * 60, 0, 16383), "native", _bits(14) | _window(200, 15500, 1) | inverted),
        ((levels * 257).astype(np.uint16), "jpeg-2000", {}),
        ((levels * 4).astype(np.uint16), "jpeg-lossless", _bits(10)),
        (_overexposed(levels * 8 - 500, -2000, 9000).astype(np.int16), "rle", rescaled),
        ((4080 - levels * 16).astype(np.uint16), "jpeg-lossless", _bits(12) | inverted),
        ((levels * 16).astype(np.uint16), "implicit", _bits(12)),
    ]
    pixels, encoding, tags = kinds[number % len(kinds)]
    write_dicom(file, pixels, encoding, {"PatientSex": "O", "PatientAge": "", **tags})


def _overexposed(pixels: NDArray[np.int64], low: int, high: int) -> NDArray[Any]:
    return np.select([pixels == pixels.min(), pixels == pixels.max()], [low, high], pixels).astype(np.uint16)


def _bits(number: int) -> dict[str, Any]:
    return {"BitsStored": number, "HighBit": number - 1}


def _window(low: int, high: int, *more: int) -> dict[str, Any]:
    """The window that takes low to black and high to white (PS3.3 C.11.2.1.2), and further ones."""
    return {"WindowCenter": [(low + high + 1) / 2, *more], "WindowWidth": [high - low + 1, *more]}
