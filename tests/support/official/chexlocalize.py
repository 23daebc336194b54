"""CheXlocalize: CheXpert's JPEG files with labels in tables, run lengths and contours of ten findings in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as coco

from official.base import Official, write_lines
from official.films import draw_film, outline, place, polygon_mask, scaled

LABELS = (
    "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema", "Consolidation", "Pneumonia",
    "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture", "Support Devices",
)  # fmt: skip
"""The findings in the spelling of the tables, which is the canonical one."""

WITHOUT_MASKS = ("Pneumonia", "Pleural Other", "Fracture")

_HEART = {"Cardiomegaly": 1, "Enlarged Cardiomediastinum": 1, "Pleural Effusion": 2, "Support Devices": 2}
# Views: height and width, and the number of contours by positive finding, 0 if it is not visible here.
_TEST: dict[str, tuple[tuple[int, int], dict[str, int]]] = {
    "patient64741_study1_view1_frontal": ((401, 317), _HEART),
    "patient64741_study1_view2_lateral": ((389, 311), {**dict.fromkeys(_HEART, 0), "Cardiomegaly": 1}),
    "patient64742_study1_view1_frontal": ((320, 390), {}),
    "patient64743_study1_view1_frontal": ((333, 389), {"Lung Opacity": 3, "Consolidation": 2, "Atelectasis": 1}),
    "patient64744_study1_view1_frontal": ((360, 360), {"Pneumothorax": 1, "Support Devices": 1}),
    "patient64744_study1_view2_lateral": ((355, 363), {"Pneumothorax": 0, "Support Devices": 0}),
    "patient64745_study1_view1_frontal": ((322, 402), {"Pneumonia": 1}),
    "patient64746_study1_view1_frontal": ((390, 320), {"Edema": 2, "Lung Opacity": 1, "Cardiomegaly": 0}),
    "patient64747_study2_view1_frontal": ((350, 400), {"Lung Lesion": 1, "Fracture": 1}),
    "patient64748_study1_view1_frontal": ((400, 350), {}),
    "patient64749_study1_view1_frontal": ((377, 311), {"Pleural Other": 1, "Pleural Effusion": 1}),
    "patient64750_study1_view1_frontal": ((317, 377), {"Enlarged Cardiomediastinum": 1, "Atelectasis": 2}),
}
_VAL: dict[str, tuple[tuple[int, int], dict[str, int]]] = {
    "patient64541_study1_view1_frontal": ((390, 340), {"Lung Opacity": 1, "Edema": 1, "Pneumonia": 1}),
    "patient64541_study1_view2_lateral": ((340, 390), {"Lung Opacity": 1, "Edema": 0, "Pneumonia": 0}),
    "patient64542_study1_view1_frontal": ((330, 350), {}),
}


def write_chexlocalize(root: Path, masks_for_all: bool = False, outside: bool = False) -> Official:
    """Write twelve test views of ten patients and three validation views; two negative views are in no JSON.

    With `masks_for_all`, the three findings for recognition only have masks as well.
    """
    official = Official(root, tolerance=6)
    segmented = [finding for finding in LABELS if masks_for_all or finding not in WITHOUT_MASKS]
    for split, views in (("test", _TEST), ("val", _VAL)):
        annotations, segmentations = {}, {}
        for key, (size, numbers) in views.items():
            contours = {
                finding: _contours(key, finding, size, number)
                for finding, number in numbers.items()
                if number and finding in segmented
            }
            if outside and not official.images:
                contours["Pleural Effusion"].append(outline((280, 250, 340, 330), "outside"))
                official.outside.append((key, "Pleural Effusion"))
            image = draw_film(len(official.images), *size)
            patient, study, rest = key.split("_", 2)
            file = official.add(key, image, root / "CheXpert" / split / patient / study / f"{rest}.jpg", split)
            Image.fromarray(image).save(file, quality=98)
            official.annotate(key, {finding: int(finding in numbers) for finding in LABELS})
            for finding, outlines in contours.items():
                for points in outlines:
                    official.mark(key, finding, polygon_mask(points, *size))
            if contours:
                spelled = {_spelling(finding): drawn for finding, drawn in contours.items()}
                annotations[key] = {"img_size": list(size), **spelled}
                masks, nothing = official.masks[key], np.zeros(size, np.bool_)
                segmentations[key] = {_spelling(name): encoded(masks.get(name, nothing)) for name in segmented}
        folder = root / "CheXlocalize"
        folder.mkdir(exist_ok=True)
        (folder / f"gt_annotations_{split}.json").write_text(json.dumps(annotations))
        (folder / f"gt_segmentations_{split}.json").write_text(json.dumps(segmentations))
        _write_table(official, split)
    return official


def _spelling(finding: str) -> str:
    return "Airspace Opacity" if finding == "Lung Opacity" else finding


def _contours(key: str, finding: str, size: tuple[int, int], number: int) -> list[list[list[float]]]:
    x1, y1, x2, y2 = scaled(place(finding, "chexlocalize", key), *size)
    # The second overlaps the first by half of its width; the third touches the second, or nearly so.
    shifts = [offset * (x2 - x1) for offset in (0, 0.5, 1.35)[:number]]
    return [outline((x1 + by, y1, x2 + by, y2), key, finding, which) for which, by in enumerate(shifts)]


def encoded(mask: NDArray[np.bool_]) -> dict[str, object]:
    rle = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": list(mask.shape), "counts": rle["counts"].decode()}


def _write_table(official: Official, split: str) -> None:
    header = ["Path", *LABELS, "No Finding"]
    if split == "val":
        header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", "No Finding", *LABELS]
    rows = []
    for number, key in enumerate(official.splits[split]):
        path = official.files[key].relative_to(official.root / "CheXpert").as_posix()
        lateral = key.endswith("lateral")
        cells = {finding: f"{label}.0" for finding, label in official.labels[key].items()}
        cells["No Finding"] = f"{int(not any(official.labels[key].values()))}.0"
        cells["Path"] = path if split == "test" else path.replace("val/", "CheXpert-v1.0/valid/", 1)
        cells |= {"Sex": "Female", "Age": str(60 + number), "Frontal/Lateral": "Lateral" if lateral else "Frontal"}
        cells["AP/PA"] = "" if lateral else "AP"
        rows.append(",".join(cells[name] for name in header))
    write_lines(official.root / "CheXpert" / f"{split}_labels.csv", ",".join(header), *rows)
