"""MS-CXR: JPG files in the folders of MIMIC-CXR-JPG, and a table with a row per box of a phrase, all invented."""

from __future__ import annotations

import csv
from pathlib import Path

from PIL import Image

from official.base import Official, hexadecimal
from official.films import draw_film, place, scaled

HEADER = ("dicom_id", "category_name", "label_text", "path", *"xywh", "image_width", "image_height", "split")
# Patient, size, split, and phrases: category, text, number of boxes.
_IMAGES = (
    (10000001, (410, 330), "train", (("Pneumonia", "invented patch, lower left", 3), ("Edema", "invented haze", 1))),
    (10000001, (400, 480), "train", (("Pneumonia", "invented patch, lower left", 1),)),
    (10000002, (333, 355), "val", (("Atelectasis", "invented band", 1), ("Lung Opacity", "invented band", 1))),
    (11000003, (420, 360), "test", (("Pneumothorax", 'no "invented" change', 1), ("Pneumothorax", "Apical rim", 2))),
    (11000004, (350, 420), "test", (("Cardiomegaly", "the heart is large in this invention", 1),)),
    (12000005, (444, 333), "test", (("Consolidation", "INVENTED white", 1), ("Pleural Effusion", "tracé d'eau", 2))),
)


def write_mscxr(root: Path, outside: bool = False) -> Official:
    """Write six images of five patients. Rows of a phrase may differ in capitals and space."""
    official = Official(root, tolerance=6)
    rows: list[tuple[int, list[object]]] = []
    for number, (patient, size, split, phrases) in enumerate(_IMAGES):
        name = "-".join(hexadecimal(f"mscxr {number}")[at : at + 8] for at in range(0, 32, 8))
        path = f"files/p{str(patient)[:2]}/p{patient}/s{50000000 + number}/{name}.jpg"
        official.add(name, draw_film(number, *size), root / path, split, "all")
        Image.fromarray(official.images[name]).save(official.files[name], quality=98)
        official.annotate(name, {})
        official.patients[name] = f"p{patient}"
        for category, text, count in phrases:
            spans = [scaled(place(category, text, name, which), *size) for which in range(count)]
            corners = [(int(x1), int(y1), int(x2) - int(x1), int(y2) - int(y1)) for x1, y1, x2, y2 in spans]
            if outside and not rows:
                corners[0] = (*corners[0][:2], size[1], 40)
            official.say(name, category, text, "en", 1, [(x, y, x + w, y + h, "") for x, y, w, h in corners])
            for which, box in enumerate(corners):
                said = f" {text.upper()} " if which == 1 else text
                rows.append((which, [name, category, said, path, *box, size[1], size[0], split]))
    with open(root / "MS_CXR_Local_Alignment_v1.1.0.csv", "w", newline="") as file:
        # The rows of one phrase lie apart.
        csv.writer(file).writerows([HEADER, *(row for _, row in sorted(rows, key=lambda one: one[0]))])
    return official
