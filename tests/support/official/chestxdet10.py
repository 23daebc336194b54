"""ChestX-Det10: PNG files by number, boxes as two corners in one JSON list a split; ChestX-Det, with polygons too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from PIL import Image

from official.base import Box, Official
from official.phantoms import draw_film, outline, place, polygon_mask, scaled

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
    """Write the same images with outlines in their boxes, and one more with the new findings.

    With `polygons`, these outlines are the regions.
    """
    return write_chestxdet10(root, outside, {"36300": [*_NEW, "Nodule"]}, "ChestX_Det_{}", polygons)


def write_chestxdet10(
    root: Path,
    outside: bool = False,
    more: Mapping[str, list[str]] = MappingProxyType({}),
    table: str = "{}",
    polygons: bool | None = None,
) -> Official:
    """Write ten test images, three of them with empty lists, and two training images.

    Every class has one to three positive test images. Several boxes of one class overlap. With `outside`, a box of the
    first test image reaches beyond the frame.
    """
    official = Official(root)
    number = 0
    for split, images in (("test", _TEST | {**more}), ("train", _TRAIN)):
        entries = []
        for name, classes in images.items():
            extra = [Box("Mass", -12, 300, 150, 420)] if outside and name == "36204" else []
            boxes = _boxes(name, classes) + extra
            entries.append(
                _write_image(
                    official,
                    split,
                    name,
                    boxes,
                    number,
                    polygons,
                    [*CANONICAL.values(), *_NEW] if more else [*CANONICAL.values()],
                )
            )
            number += 1
        (root / f"{table.format(split)}.json").write_text(json.dumps(entries))
    return official


def _write_image(
    official: Official, split: str, name: str, boxes: list[Box], number: int, polygons: bool | None, findings: list[str]
) -> dict[str, object]:
    image = draw_film(number, SIDE, SIDE)
    file = official.add(name, image, official.root / f"{split}_data" / f"{name}.png", split)
    Image.fromarray(image).save(file, compress_level=1)
    official.annotate(name, {finding: int(finding in [box.finding for box in boxes]) for finding in findings})
    drawn = []
    for place_of, box in enumerate(boxes):
        # Most repeat their first corner at the end, as most of the owners' do.
        corners = [[round(x), round(y)] for x, y in outline((box.x1, box.y1, box.x2, box.y2), name, place_of)]
        drawn.append(corners + corners[:1] * (place_of % 3 > 0))
        if polygons:
            official.mark(name, box.finding, polygon_mask(drawn[-1], SIDE, SIDE))
            if any(min(corner) < 0 or max(corner) > SIDE for corner in corners):
                official.outside.append((name, box.finding))
        else:
            official.fill(name, box)
    spelled = {finding: spelling for spelling, finding in CANONICAL.items()}
    entry = {
        "file_name": file.name,
        "syms": [spelled.get(box.finding, box.finding) for box in boxes],
        "boxes": [[box.x1, box.y1, box.x2, box.y2] for box in boxes],
    }
    return entry if polygons is None else entry | {"polygons": drawn}


def _boxes(name: str, classes: list[str]) -> list[Box]:
    boxes: list[Box] = []
    for entry in classes:
        word = entry.removeprefix("=")
        finding = CANONICAL.get(word, word)
        if entry.startswith("="):
            last = boxes[-1]
            boxes.append(Box(finding, last.x1, last.y1, last.x2, last.y2))
            continue
        before = [box for box in boxes if box.finding == finding]
        if before:
            last = before[-1]
            right, down = (last.x2 - last.x1) // 2, (last.y2 - last.y1) // 3
            boxes.append(Box(finding, last.x1 + right, last.y1 + down, last.x2 + right, last.y2 + down))
            continue
        x1, y1, x2, y2 = scaled(place(finding, "det10", name), SIDE, SIDE)
        boxes.append(Box(finding, int(x1), int(y1), int(x2), int(y2)))
    return boxes
