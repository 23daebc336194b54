"""COVID-19 Rural: JPEG files, outlines by labelme with the whole image inside, and mask files for most of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
from PIL import Image

from official.base import Official, write_lines
from official.films import draw_film, outline, place, polygon_mask, scaled

FINDING = "COVID-19"

_LUNGS = {"right_lung": (0.14, 0.14, 0.44, 0.76), "left_lung": (0.54, 0.14, 0.86, 0.76)}
# Patient, day, height, width, labels of the outlines other than the lungs, and whether the image has a mask.
_IMAGES: tuple[tuple[str, tuple[int, int], tuple[str, ...], bool], ...] = (
    ("16407001_01-15-2020", (401, 317), (), True),
    ("16407002_02-03-2020", (317, 401), ("subtle_hazy", "consolidation"), True),
    ("16407002_02-05-2020", (333, 389), ("groud_glass_opacity", "groud_glass_opacity"), True),
    ("16407003_03-11-2020", (360, 360), (), False),
    ("16407004_03-21-2020", (389, 333), ("consolidation",), False),
    ("16407005_04-01-2020", (402, 322), ("subtle_hazy", "pleural_effusion"), True),
    ("16407006_04-02-2020", (350, 400), (), False),
    ("16407007_04-12-2020", (400, 355), ("groud_glass_opacity",), True),
    ("16407008_04-30-2020", (377, 311), ("subtle_hazy", "subtle_hazy", "consolidation"), False),
    ("16407009_05-02-2020", (344, 414), (), True),
    ("16407010_05-09-2020", (320, 400), (), False),
)
_NEVER_ANNOTATED = "16407010_05-09-2020"


def write_covid(root: Path, lungs_in_masks: bool = False, outside: bool = False) -> Official:
    """Write six images with opacities, four without, and one that was never annotated, under `covid_rural_annot`.

    Two positive and two negative images have no mask file; two negative ones have an empty one. One outline has another
    label. With `lungs_in_masks`, mask files are 1 in the lung fields and 2 in the opacities.
    """
    official = Official(root, tolerance=6)
    base = root / "covid_rural_annot"
    for folder in ("jpgs/jsons", "pngs_masks", "manual_segmentations_model_predictions"):
        (base / folder).mkdir(parents=True)
    for number, (patient, size, opacities, has_mask) in enumerate(_IMAGES):
        name, annotated = f"COVID-19-AR-{patient}-XR", patient != _NEVER_ANNOTATED
        image = draw_film(number, *size)
        file = official.add(name, image, base / "jpgs" / f"{name}.jpg", *(["all"] if annotated else []))
        Image.fromarray(image).convert("RGB").save(file, quality=98)
        guess = (np.arange(size[0]) < size[0] // 3)[:, None].repeat(size[1], axis=1)
        Image.fromarray(guess).save(base / "manual_segmentations_model_predictions" / f"{name}.jpg.png")
        if not annotated:
            continue
        shapes = [(label, outline(scaled(span, *size), patient, label)) for label, span in _LUNGS.items()]
        for which, label in enumerate(opacities):
            shapes.append((label, outline(scaled(place("covid", patient, which), *size), patient, label, which)))
        if outside and number == 1:
            shapes.append(("consolidation", outline((-30, 250, 60, 350), "outside")))
            official.outside.append((name, FINDING))
        official.annotate(name, {FINDING: int(bool(opacities))})
        pixels = np.zeros(size, np.uint8)
        for label, points in shapes:
            mask = polygon_mask(points, *size)
            if not label.endswith("_lung"):
                official.mark(name, FINDING, mask)
                pixels[mask] = 2 if lungs_in_masks else 1
            elif lungs_in_masks:
                pixels[mask] = 1
        if has_mask:
            Image.fromarray(pixels).save(base / "pngs_masks" / f"{name}.png")
        entry = {
            "version": "4.5.6",
            "flags": {},
            "shapes": [
                {"label": label, "points": points, "group_id": None, "shape_type": "polygon", "flags": {}}
                for label, points in shapes
            ],
            "imagePath": f"..\\{name}.jpg",
            "imageData": base64.b64encode(file.read_bytes()).decode(),
            "imageHeight": size[0],
            "imageWidth": size[1],
        }
        (base / "jpgs" / "jsons" / f"{name}.json").write_text(json.dumps(entry, indent=2))
    notes = (f'{name}.jpg,"Heart normal, lungs as seen"' for name in official.images)
    write_lines(base / "covid_rural_radiologist_notes.csv", "image,notes", *notes)
    return official
