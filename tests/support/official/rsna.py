"""RSNA Pneumonia: DICOM files named by patient, boxes as x, y, width, height in rows of a table."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from official.base import Box, Official, hexadecimal, scatter, write_lines
from official.dicom import secondary_capture, write_dicom
from official.films import draw_film, place, scaled

SIDE = 1024
FINDING = "Pneumonia"
MDAI = "mdai_rsna_project_x9N20BZa_images_2018-07-20-153330"

_NUMBERS_OF_BOXES = (1, 0, 2, 0, 0, 3, 1, 0, 4, 0, 2, 0)
_INVERTED = 2


def write_rsna(root: Path, layout: Literal["kaggle", "mdai"] = "kaggle", outside: bool = False) -> Official:
    """Write six images with one to four boxes and six without any. The third is MONOCHROME1 with a window.

    `kaggle` has one more, without annotation, in `stage_2_test_images`. The layout `mdai` is the tree of the original
    release, with MedKLIP's `test.csv` and nothing of Kaggle's.
    """
    official = Official(root, tolerance=8)
    for number, boxes in enumerate(_NUMBERS_OF_BOXES):
        patient = _patient(number)
        tags = secondary_capture(patient, _instance(number), "AP" if number % 2 else "PA")
        image = draw_film(number, SIDE, SIDE)
        spans = [_span(number, which) for which in range(boxes)]
        pixels, encoding, more, image = _as_published(image, number)
        file = root / "stage_2_train_images" / f"{patient}.dcm"
        if layout == "mdai":
            file = root.joinpath(MDAI, *(tags[f"{level}InstanceUID"] for level in ("Study", "Series", "SOP")))
            file = file.with_name(f"{file.name}.dcm")
        write_dicom(official.add(patient, image, file, "train"), pixels, encoding, tags | more)
        official.annotate(patient, {FINDING: int(boxes > 0)})
        for x1, y1, x2, y2 in spans:
            official.fill(patient, Box(FINDING, int(x1), int(y1), int(x2), int(y2)))
        if outside and number == 0:
            official.fill(patient, Box(FINDING, 900, 700, SIDE + 30, 1010))
    if layout == "mdai":
        write_medklip_list(official, root / "test.csv", official.splits["train"])
    else:
        _write_kaggle_tables(official)
    return official


def write_medklip_list(official: Official, path: Path, images: Sequence[str]) -> None:
    rows = []
    for number, patient in enumerate(images):
        boxes = official.boxes.get(patient, [])
        study, series, instance = (_instance(number).replace(".1.4.", f".1.{level}.") for level in (2, 3, 4))
        text = "|".join(f"{box.x1}.0;{box.y1}.0;{box.x2 - box.x1}.0;{box.y2 - box.y1}.0" for box in boxes)
        rows.append(f"{patient},{MDAI}/{study}/{series}/{instance}.dcm,{text},{int(bool(boxes))}")
    write_lines(path, "ID,img_path,boxes,classes", *rows)


def _write_kaggle_tables(official: Official) -> None:
    root = official.root
    rows, classes = [], []
    for number, patient in enumerate(official.splits["train"]):
        boxes = official.boxes.get(patient, [])
        for box in boxes:
            rows.append(f"{patient},{box.x1}.0,{box.y1}.0,{box.x2 - box.x1}.0,{box.y2 - box.y1}.0,1")
        if not boxes:
            rows.append(f"{patient},,,,,0")
        name = "Lung Opacity" if boxes else ("Normal", "No Lung Opacity / Not Normal")[number % 4 // 2]
        classes += [f"{patient},{name}"] * max(len(boxes), 1)
    write_lines(root / "stage_2_train_labels.csv", "patientId,x,y,width,height,Target", *scatter(rows))
    write_lines(root / "stage_2_detailed_class_info.csv", "patientId,class", *classes)

    number = len(_NUMBERS_OF_BOXES)
    patient, image = _patient(number), draw_film(number, SIDE, SIDE)
    file = official.add(patient, image, root / "stage_2_test_images" / f"{patient}.dcm", "stage_2_test_images")
    write_dicom(file, image, "jpeg", secondary_capture(patient, _instance(number)))
    submission = root / "stage_2_sample_submission.csv"
    write_lines(submission, "patientId,PredictionString", f"{patient},0.5 0 0 100 100")


def _patient(number: int) -> str:
    return str(uuid.UUID(hexadecimal(f"rsna {number}")))


def _instance(number: int) -> str:
    return f"1.2.276.0.7230010.3.1.4.8323329.{2000 + number}.1517874291.{115000 + number}"


def _span(number: int, which: int) -> tuple[float, float, float, float]:
    """Whole pixels. The second box overlaps the first."""
    if which == 1:
        x1, y1, x2, y2 = _span(number, 0)
        return x1 + 40, y1 - 90, x2 + 25, y2 - 110
    x1, y1, x2, y2 = scaled(place(FINDING, "rsna", number, which), SIDE, SIDE)
    return int(x1), int(y1), int(x2), int(y2) - 50 * which


def _as_published(
    image: NDArray[np.uint8], number: int
) -> tuple[NDArray[np.uint8], str, dict[str, Any], NDArray[np.uint8]]:
    if number != _INVERTED:
        return image, "jpeg", {}, image
    # 128 levels, from 60 to 187 in the file; black and white lie far outside of the window.
    levels = (255 - image.astype(np.int64)) // 2
    levels[0, :2] = 0, 127
    stored = np.select([levels == 0, levels == 127], [0, 255], levels + 60).astype(np.uint8)
    tags = {"PhotometricInterpretation": "MONOCHROME1", "WindowCenter": "124", "WindowWidth": "128"}
    return stored, "native", tags, (255 - np.rint(levels * (255 / 127))).astype(np.uint8)
