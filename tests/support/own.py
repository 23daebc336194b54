"""Phantoms written to disk as anybody's own data: images, with COCO's JSON, tables of labels and boxes, or masks."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pycocotools import mask as coco

from xbench.data.phantom import Phantom, draw_phantom

LABELS = {"nod": "Nodule", "cardio": "Cardiomegaly", "eff": "Pleural Effusion"}
"""What the files call the findings."""
HEIGHT, WIDTH = 90, 80
Mask = NDArray[np.bool_]


@cache
def phantoms() -> dict[str, Phantom]:
    drawn = {f"p{index // 2}/view{index % 2}": draw_phantom(1, index, HEIGHT, WIDTH) for index in range(12)}
    assert all(1 <= sum(finding in p.masks for p in drawn.values()) < len(drawn) for finding in LABELS.values())
    return drawn


def truth() -> dict[str, dict[str, Mask]]:
    return {
        image: {finding: phantom.masks[finding] for finding in LABELS.values() if finding in phantom.masks}
        for image, phantom in phantoms().items()
    }


def box_of(mask: Mask) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1


def boxed(mask: Mask) -> Mask:
    x, y, width, height = box_of(mask)
    drawn = np.zeros_like(mask)
    drawn[y : y + height, x : x + width] = True
    return drawn


def plain_counts(mask: Mask) -> list[int]:
    counts, value = [0], False
    for column in range(mask.shape[1]):
        for row in range(mask.shape[0]):
            if bool(mask[row, column]) != value:
                value = not value
                counts.append(0)
            counts[-1] += 1
    return counts


def compressed(mask: Mask) -> str:
    text: str = coco.encode(np.asfortranarray(mask, np.uint8))["counts"].decode()
    return text


def write_images(root: Path) -> Path:
    for image, phantom in phantoms().items():
        path = root / f"{image}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(phantom.image).save(path)
    return root


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def coco_content(kind: str = "rle") -> dict[str, Any]:
    """COCO's JSON of the phantoms: segmentations as `rle`, `counts` or `polygons` (of the boxes), or `boxes` alone."""
    images, annotations = [], []
    numbers = {finding: number for number, finding in enumerate(LABELS.values(), 1)}
    for number, (image, regions) in enumerate(truth().items()):
        images.append(
            {
                "id": number, "file_name": f"{image}.png", "width": WIDTH, "height": HEIGHT,
                "patient_id": image.partition("/")[0],
            }
        )  # fmt: skip
        for finding, mask in regions.items():
            x, y, width, height = box_of(mask)
            right, bottom = x + width, y + height
            outline: dict[str, Any] = {
                "rle": {"size": [HEIGHT, WIDTH], "counts": compressed(mask)},
                "counts": {"size": [HEIGHT, WIDTH], "counts": plain_counts(mask)},
                "polygons": [[x, y, right, y, right, bottom, x, bottom]],
                "boxes": [],
            }
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": number, "category_id": numbers[finding],
                    "segmentation": outline[kind], "bbox": [x, y, width, height], "iscrowd": 0,
                }
            )  # fmt: skip
    categories = [{"id": number, "name": label} for number, label in enumerate(LABELS, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_coco(root: Path, content: Any = None, kind: str = "rle") -> Path:
    (root / "annotations.json").write_text(json.dumps(coco_content(kind) if content is None else content))
    return root


def label_rows() -> list[list[object]]:
    rows: list[list[object]] = [["image", "patient_id", *LABELS]]
    for image, regions in truth().items():
        flags = [int(finding in regions) for finding in LABELS.values()]
        rows.append([f"{image}.png", image.partition("/")[0], *flags])
    return rows


def box_rows(fractions: bool = False, corners: bool = False) -> list[list[object]]:
    sides = ("x1", "y1", "x2", "y2") if corners else ("x", "y", "width", "height")
    rows: list[list[object]] = [["image", "finding", *sides]]
    across, down = (WIDTH, HEIGHT) if fractions else (1, 1)
    for image, regions in truth().items():
        for label, finding in LABELS.items():
            if finding in regions:
                x, y, width, height = box_of(regions[finding])
                right, bottom = (x + width, y + height) if corners else (width, height)
                rows.append([f"{image}.png", label, x / across, y / down, right / across, bottom / down])
    return rows


def write_table(path: Path, rows: Iterable[Sequence[object]]) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def write_csv(root: Path, labels: Any = None, boxes: Any = None, **how: bool) -> Path:
    write_table(root / "labels.csv", label_rows() if labels is None else labels)
    write_table(root / "boxes.csv", box_rows(**how) if boxes is None else boxes)
    return root


def write_masks(root: Path, empty: bool = True, pattern: str = "{finding}/{image}") -> Path:
    """Write `masks`: also where nothing is present, unless that is left out."""
    for image, regions in truth().items():
        for label, finding in LABELS.items():
            if empty or finding in regions:
                path = root / "masks" / f"{pattern.format(finding=label, image=image)}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                mask = regions.get(finding, np.zeros((HEIGHT, WIDTH), bool))
                Image.fromarray(mask.astype(np.uint8) * 255).save(path)
    return root


PHRASES = {"nod": "A small nodule", "cardio": "the heart is  enlarged", "eff": "fluid"}
"""A phrase about each finding, as the files write it; of what is absent they say so."""


def phrase_of(label: str, present: bool) -> str:
    return " ".join(PHRASES[label].split()) if present else f"no {PHRASES[label]}".replace("  ", " ")


def phrase_rows() -> list[list[object]]:
    """The table of phrases, its header first; a second box of a nodule has its phrase in small letters."""
    rows: list[list[object]] = [["image", "finding", "text", "label", "x", "y", "width", "height"]]
    for image, regions in truth().items():
        for label, finding in LABELS.items():
            there = finding in regions
            row: list[object] = [f"{image}.png", label, PHRASES[label] if there else f"no {PHRASES[label]}", int(there)]
            rows.append([*row, *(box_of(regions[finding]) if there else [""] * 4)])
            if there and label == "nod":
                rows.append([*row[:2], "a small nodule", "", 0, 0, 3, 2])
    return rows


def phrase_truth() -> dict[str, dict[str, Mask]]:
    found: dict[str, dict[str, Mask]] = {}
    for image, regions in truth().items():
        found[image] = {f"{finding} 1": boxed(mask) for finding, mask in regions.items()}
        if "Nodule" in regions:
            found[image]["Nodule 1"][:2, :3] = True
    return found


def write_phrases(root: Path, kind: str = "csv") -> Path:
    header, *rows = phrase_rows()
    if kind == "csv":
        write_table(root / "labels.csv", [row[:2] for row in label_rows()])
        write_table(root / "boxes.csv", [header, *rows])
        return root
    content = coco_content("boxes")
    numbers = {image["file_name"]: image["id"] for image in content["images"]}
    content["annotations"] = []
    for image, label, text, present, *box in rows:
        entry = {"image_id": numbers[image], "text": text, "bbox": box if box[2] != "" else None}
        entry |= {"category_id": 1 + [*LABELS].index(str(label))} | ({} if present == "" else {"label": present})
        content["annotations"].append(entry)
    return write_coco(root, content)
