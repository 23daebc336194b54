"""ChestX-ray14: PNG files in numbered folders, boxes with fractions in a table whose header has too many commas."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from official.base import Box, Official, seed_of, write_lines
from official.phantoms import draw_film, place, scaled

SIDE = 1024

_CLASSES = ("Atelectasis", "Cardiomegaly", "Effusion", "Infiltrate", "Mass", "Nodule", "Pneumonia", "Pneumothorax")
CANONICAL = {name: name for name in _CLASSES} | {"Effusion": "Pleural Effusion", "Infiltrate": "Infiltration"}


@dataclass(frozen=True)
class _Image:
    """Classes with a box, as the box file writes them; labels without one; where it is listed."""

    name: str
    boxed: tuple[str, ...] = ()
    unboxed: tuple[str, ...] = ()
    split: str | None = "test"


_IMAGES = (
    _Image("00000013_005", ("Atelectasis", "Effusion"), ("Emphysema", "Infiltration", "Pleural_Thickening")),
    _Image("00000032_037", ("Infiltrate",), ("Mass",)),
    _Image("00000061_002", ("Cardiomegaly",), ("Effusion", "Hernia")),
    _Image("00000061_025", ("Cardiomegaly", "Pneumonia", "Atelectasis"), ()),
    _Image("00000072_000", ("Mass",), ("Fibrosis",)),
    _Image("00000080_005", ("Nodule", "Mass"), ("Pneumothorax",)),
    _Image("00000096_006", ("Pneumothorax",), ()),
    _Image("00000103_014", ("Effusion", "Infiltrate", "Pneumonia", "Nodule"), ("Consolidation", "Edema")),
    _Image("00000106_000", (), ("Cardiomegaly",)),
    _Image("00000118_003"),
    _Image("00000001_000", (), ("Cardiomegaly",), "train_val"),
    _Image("00000002_000", split="train_val"),
    _Image("00030806_001", split=None),
)
_RGBA = "00000061_002"
_IN_FOLDERS = 3


def write_chestxray14(root: Path, outside: bool = False) -> Official:
    """Write eight test images with one to four boxes, two without, two of train_val and one that no list names.

    The eight are the split `boxes`, and in `test` as well. `Official.labels` covers the eight classes that
    have boxes: a label without a box is 1 without a mask. With `outside`, the last box of the file reaches beyond the
    frame.
    """
    official = Official(root)
    rows: list[tuple[str, str]] = []
    entries = []
    for number, image in enumerate(_IMAGES):
        folder = root / f"images_{1 + number % _IN_FOLDERS:03d}" / "images"
        rows += _write_image(official, image, folder, number)
        if image.split is not None:
            entries.append(_entry(image, number))
    if outside:
        name = _IMAGES[5].name
        rows.append(("Nodule", f"{name}.png,Nodule,960.5,500.25,100.75,60.5"))
        official.fill(name, Box("Nodule", 960, 500, 1060, 560))
    # Sorted by class, so that the boxes of one image lie apart.
    rows.sort(key=lambda row: row[0])
    write_lines(root / "BBox_List_2017.csv", "Image Index,Finding Label,Bbox [x,y,w,h],,,", *(row for _, row in rows))
    header = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"
    header += ",OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
    write_lines(root / "Data_Entry_2017_v2020.csv", header, *sorted(entries))
    for split in ("test", "train_val"):
        write_lines(root / f"{split}_list.txt", *(f"{name}.png" for name in official.splits[split]))
    official.splits = {"boxes": [image.name for image in _IMAGES if image.boxed], **official.splits}
    return official


def _write_image(official: Official, image: _Image, folder: Path, number: int) -> list[tuple[str, str]]:
    """Write the file; return the class and row of each box."""
    rows, boxes = [], []
    for spelling in image.boxed:
        rng = np.random.default_rng(seed_of(image.name, spelling))
        x1, y1, x2, y2 = scaled(place(CANONICAL[spelling], "nih", image.name), SIDE, SIDE)
        x, y, width, height = (int(edge) + rng.random() for edge in (x1, y1, x2 - x1, y2 - y1))
        rows.append((spelling, f"{image.name}.png,{spelling},{x:.15g},{y:.15g},{width:.15g},{height:.15g}"))
        boxes.append(Box(CANONICAL[spelling], int(x), int(y), int(x) + int(width), int(y) + int(height)))
    grey = draw_film(number, SIDE, SIDE)
    picture = Image.fromarray(grey)
    file = official.add(image.name, grey, folder / f"{image.name}.png", image.split)
    if image.name == _RGBA:
        picture = Image.merge("RGBA", [picture] * 3 + [Image.new("L", picture.size, 255)])
    picture.save(file, compress_level=1)
    if image.split is not None:
        present = {box.finding for box in boxes} | {CANONICAL.get(label, label) for label in image.unboxed}
        official.annotate(image.name, {finding: int(finding in present) for finding in CANONICAL.values()})
        for box in boxes:
            official.fill(image.name, box)
    return rows


def _entry(image: _Image, number: int) -> str:
    patient, _, follow_up = image.name.partition("_")
    labels = [label.replace("Infiltrate", "Infiltration") for label in image.boxed] + list(image.unboxed)
    shown = "|".join(sorted(labels)) or "No Finding"
    size = ("2500,2048", "2048,2500", "2992,2991")[number % 3]
    view = "AP" if number % 2 else "PA"
    return f"{image.name}.png,{shown},{int(follow_up)},{int(patient)},{40 + number},M,{view},{size},0.168,0.168"
