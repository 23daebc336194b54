"""ChestX-ray14: PNG files in numbered folders, boxes with fractions in a table whose header has too many commas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from official.base import Box, Official, seed_of, write_lines
from official.films import draw_film, place, scaled

SIDE = 1024

_CLASSES = ("Atelectasis", "Cardiomegaly", "Effusion", "Infiltrate", "Mass", "Nodule", "Pneumonia", "Pneumothorax")
CANONICAL = {name: name for name in _CLASSES} | {"Effusion": "Pleural Effusion", "Infiltrate": "Infiltration"}

# Classes with a box, as the box file writes them; labels without one; where an image is listed.
_IMAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str | None]] = {
    "00000013_005": (("Atelectasis", "Effusion"), ("Emphysema", "Infiltration", "Pleural_Thickening"), "test"),
    "00000032_037": (("Infiltrate",), ("Mass",), "test"),
    "00000061_002": (("Cardiomegaly",), ("Effusion", "Hernia"), "test"),
    "00000061_025": (("Cardiomegaly", "Pneumonia", "Atelectasis"), (), "test"),
    "00000072_000": (("Mass",), ("Fibrosis",), "test"),
    "00000080_005": (("Nodule", "Mass"), ("Pneumothorax",), "test"),
    "00000096_006": (("Pneumothorax",), (), "test"),
    "00000103_014": (("Effusion", "Infiltrate", "Pneumonia", "Nodule"), ("Consolidation", "Edema"), "test"),
    "00000106_000": ((), ("Cardiomegaly",), "test"),
    "00000118_003": ((), (), "test"),
    "00000001_000": ((), ("Cardiomegaly",), "train_val"),
    "00000002_000": ((), (), "train_val"),
    "00030806_001": ((), (), None),
}
_RGBA, _WITH_BOX_OUTSIDE = "00000061_002", "00000080_005"


def write_chestxray14(root: Path, outside: bool = False) -> Official:
    """Write eight test images with boxes (split `boxes`), two without, two of train_val and one in no list.

    `Official.labels` covers the eight classes that have boxes: a label without a box is 1 without a mask.
    """
    official = Official(root)
    rows: list[tuple[str, str]] = []
    entries = []
    for number, (name, (boxed, unboxed, split)) in enumerate(_IMAGES.items()):
        image = draw_film(number, SIDE, SIDE)
        folder = root / f"images_{1 + number % 3:03d}" / "images"
        file = official.add(name, image, folder / f"{name}.png", split)
        picture = Image.fromarray(image)
        if name == _RGBA:
            picture = Image.merge("RGBA", [picture] * 3 + [Image.new("L", picture.size, 255)])
        picture.save(file, compress_level=1)
        if split is None:
            continue
        present = {CANONICAL.get(label, label) for label in (*boxed, *unboxed)}
        official.annotate(name, {finding: int(finding in present) for finding in CANONICAL.values()})
        for spelling in boxed:
            fractions = np.random.default_rng(seed_of(name, spelling)).random(4)
            x1, y1, x2, y2 = scaled(place(spelling, "nih", name), SIDE, SIDE)
            edges = zip((x1, y1, x2 - x1, y2 - y1), fractions.tolist(), strict=True)
            x, y, width, height = (int(edge) + fraction for edge, fraction in edges)
            rows.append((spelling, f"{name}.png,{spelling},{x:.15g},{y:.15g},{width:.15g},{height:.15g}"))
            corners = int(x), int(y), int(x) + int(width), int(y) + int(height)
            official.fill(name, Box(CANONICAL[spelling], *corners))
        entries.append(_entry(name, number, boxed, unboxed))
    if outside:
        rows.append(("Nodule", f"{_WITH_BOX_OUTSIDE}.png,Nodule,960.5,500.25,100.75,60.5"))
        official.fill(_WITH_BOX_OUTSIDE, Box("Nodule", 960, 500, 1060, 560))
    # Sorted by class, so that the boxes of one image lie apart.
    rows.sort(key=lambda row: row[0])
    write_lines(root / "BBox_List_2017.csv", "Image Index,Finding Label,Bbox [x,y,w,h],,,", *(row for _, row in rows))
    header = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"
    header += ",OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y]"
    write_lines(root / "Data_Entry_2017_v2020.csv", header, *sorted(entries))
    for split in ("test", "train_val"):
        write_lines(root / f"{split}_list.txt", *(f"{name}.png" for name in official.splits[split]))
    official.splits = {"boxes": [name for name, (boxed, *_) in _IMAGES.items() if boxed], **official.splits}
    return official


def _entry(name: str, number: int, boxed: tuple[str, ...], unboxed: tuple[str, ...]) -> str:
    patient, _, follow_up = name.partition("_")
    labels = [label.replace("Infiltrate", "Infiltration") for label in boxed] + list(unboxed)
    shown = "|".join(sorted(labels)) or "No Finding"
    size = ("2500,2048", "2048,2500", "2992,2991")[number % 3]
    view = "AP" if number % 2 else "PA"
    return f"{name}.png,{shown},{int(follow_up)},{int(patient)},{40 + number},M,{view},{size},0.168,0.168"
