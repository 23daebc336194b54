"""ChestX-Det10: PNG files by number, boxes as two corners in one JSON list a split; ChestX-Det, with polygons too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from PIL import Image

from official.base import Box, Official
from official.films import draw_film, outline, place, polygon_mask, scaled

SIDE = 1024

_CLASSES = (
    *("Atelectasis", "Calcification", "Consolidation", "Effusion", "Emphysema"),
    *("Fibrosis", "Fracture", "Mass", "Nodule", "Pneumothorax"),
)
CANONICAL = {name: name for name in _CLASSES} | {"Effusion": "Pleural Effusion", "Fibrosis": "Pulmonary Fibrosis"}

# A class once more is a second box; "=" repeats the box before it under another class, or as an exact duplicate.
_TEST = {
    "36204": ["Nodule"],
    "36205": [],
    "36217": ["Consolidation", "=Effusion", "Effusion"],
    "36219": ["Fracture", "=Fracture", "Fracture", "Fibrosis"],
    "36230": [],
    "36240": ["Emphysema", "Nodule", "Nodule", "Nodule", "Calcification"],
    "36251": ["Mass", "Atelectasis", "=Consolidation"],
    "36268": ["Pneumothorax", "Effusion"],
    "36270": [],
    "36299": ["Fibrosis", "Calcification", "Consolidation", "Consolidation"],
}
_TRAIN = {"50001": ["Effusion", "Effusion"], "50002": []}
_NEW = ("Cardiomegaly", "Diffuse Nodule", "Pleural Thickening")


def write_chexdet(root: Path, outside: bool = False, polygons: bool = False) -> Official:
    """Write the same images, the outlines of their boxes (with `polygons`, the regions) and one more image."""
    return write_chestxdet10(root, outside, {"36300": [*_NEW, "Nodule"]}, "ChestX_Det_{}", polygons)


def write_chestxdet10(
    root: Path,
    outside: bool = False,
    more: Mapping[str, list[str]] = MappingProxyType({}),
    table: str = "{}",
    polygons: bool | None = None,
) -> Official:
    """Write ten test images, three with empty lists, and two training images. Boxes of one class overlap."""
    official = Official(root)
    findings = [*CANONICAL.values(), *(_NEW if more else ())]
    spelled = {finding: spelling for spelling, finding in CANONICAL.items()}
    for split, images in (("test", _TEST | {**more}), ("train", _TRAIN)):
        entries = []
        for name, classes in images.items():
            boxes = _boxes(name, classes)
            if outside and name == "36204":
                boxes.append(Box("Mass", -12, 300, 150, 420))
            image = draw_film(len(official.images), SIDE, SIDE)
            file = official.add(name, image, root / f"{split}_data" / f"{name}.png", split)
            Image.fromarray(image).save(file, compress_level=1)
            official.annotate(name, {finding: int(finding in [box.finding for box in boxes]) for finding in findings})
            outlines = [_outline(name, which, box) for which, box in enumerate(boxes)]
            for box, corners in zip(boxes, outlines, strict=True):
                if not polygons:
                    official.fill(name, box)
                    continue
                official.mark(name, box.finding, polygon_mask(corners, SIDE, SIDE))
                if any(min(corner) < 0 or max(corner) > SIDE for corner in corners):
                    official.outside.append((name, box.finding))
            entry: dict[str, object] = {
                "file_name": file.name,
                "syms": [spelled.get(box.finding, box.finding) for box in boxes],
                "boxes": [[box.x1, box.y1, box.x2, box.y2] for box in boxes],
            }
            entries.append(entry if polygons is None else entry | {"polygons": outlines})
        (root / f"{table.format(split)}.json").write_text(json.dumps(entries))
    return official


def _outline(name: str, which: int, box: Box) -> list[list[float]]:
    points = outline((box.x1, box.y1, box.x2, box.y2), name, which)
    corners: list[list[float]] = [[round(x), round(y)] for x, y in points]
    return corners + corners[:1] * (which % 3 > 0)


def _boxes(name: str, classes: Sequence[str]) -> list[Box]:
    boxes: list[Box] = []
    for entry in classes:
        word = entry.removeprefix("=")
        finding = CANONICAL.get(word, word)
        before = [box for box in boxes if box.finding == finding]
        if entry != word:
            last, right, down = boxes[-1], 0, 0
        elif before:
            last = before[-1]
            right, down = (last.x2 - last.x1) // 2, (last.y2 - last.y1) // 3
        else:
            x1, y1, x2, y2 = scaled(place(finding, "det10", name), SIDE, SIDE)
            last, right, down = Box(finding, int(x1), int(y1), int(x2), int(y2)), 0, 0
        boxes.append(Box(finding, last.x1 + right, last.y1 + down, last.x2 + right, last.y2 + down))
    return boxes
