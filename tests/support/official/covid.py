"""COVID-19 Rural: JPEG files, outlines by labelme with the whole image inside, and mask files for most of them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from official.base import Official, write_lines
from official.phantoms import draw_film, outline, place, polygon_mask, scaled

FINDING = "COVID-19"

_LUNGS = {"right_lung": (0.14, 0.14, 0.44, 0.76), "left_lung": (0.54, 0.14, 0.86, 0.76)}


@dataclass(frozen=True)
class _Image:
    """Patient and day, height and width, labels of the outlines besides the lungs, and which files there are."""

    name: str
    size: tuple[int, int]
    opacities: tuple[str, ...] = ()
    mask: bool = True
    outlines: bool = True


_IMAGES = (
    _Image("16407001_01-15-2020", (401, 317)),
    _Image("16407002_02-03-2020", (317, 401), ("subtle_hazy", "consolidation")),
    _Image("16407002_02-05-2020", (333, 389), ("groud_glass_opacity", "groud_glass_opacity")),
    _Image("16407003_03-11-2020", (360, 360), mask=False),
    _Image("16407004_03-21-2020", (389, 333), ("consolidation",), mask=False),
    _Image("16407005_04-01-2020", (402, 322), ("subtle_hazy", "pleural_effusion")),
    _Image("16407006_04-02-2020", (350, 400), mask=False),
    _Image("16407007_04-12-2020", (400, 355), ("groud_glass_opacity",)),
    _Image("16407008_04-30-2020", (377, 311), ("subtle_hazy", "subtle_hazy", "consolidation"), mask=False),
    _Image("16407009_05-02-2020", (344, 414)),
    _Image("16407010_05-09-2020", (320, 400), mask=False, outlines=False),
)


def write_covid(root: Path, lungs_in_masks: bool = False, outside: bool = False) -> Official:
    """Write six images with opacities, four without, and one that was never annotated, under `covid_rural_annot`.

    Two positive and two negative images have no mask file; two negative ones have an empty one. One label of an outline
    is not among the usual ones, and its outline is part of the region. Predictions lie about all of them. With
    `lungs_in_masks`, mask files are 1 in the lung fields and 2 in the opacities, not 0 and 1 as the authors say; with
    `outside`, an outline of the second image reaches beyond the frame.
    """
    official = Official(root, tolerance=6)
    base = root / "covid_rural_annot"
    for number, image in enumerate(_IMAGES):
        name = f"COVID-19-AR-{image.name}-XR"
        shapes = _shapes(image)
        if outside and number == 1:
            shapes.append(("consolidation", outline((-30, 250, 60, 350), "outside")))
        _write_image(official, base, name, image, number)
        if image.outlines:
            _annotate(official, base, name, image, shapes, lungs_in_masks)
    patients = sorted({image.name[:8] for image in _IMAGES})
    rows = (f"COVID-19-AR-{patient},{50 + i},M,27.5,721" for i, patient in enumerate(patients))
    write_lines(base / "covid_rural_patient_info.csv", "PATIENT_ID,AGE,SEX,LATEST_BMI,ZIP", *rows)
    notes = (f'COVID-19-AR-{image.name}-XR.jpg,"Heart normal, lungs as seen"' for image in _IMAGES)
    write_lines(base / "covid_rural_radiologist_notes.csv", "image,notes", *notes)
    if outside:
        official.outside.append((official.splits["all"][1], FINDING))
    return official


def _shapes(image: _Image) -> list[tuple[str, list[list[float]]]]:
    height, width = image.size
    shapes = [(label, outline(scaled(span, height, width), image.name, label)) for label, span in _LUNGS.items()]
    for which, label in enumerate(image.opacities):
        span = scaled(place(FINDING, "covid", image.name, which), height, width)
        shapes.append((label, outline(span, image.name, label, which)))
    return shapes


def _write_image(official: Official, base: Path, name: str, image: _Image, number: int) -> None:
    grey = draw_film(number, *image.size)
    file = official.add(name, grey, base / "jpgs" / f"{name}.jpg", "all" if image.outlines else None)
    Image.fromarray(grey).convert("RGB").save(file, quality=98)
    guess = np.zeros(grey.shape, np.uint8)
    guess[: grey.shape[0] // 3] = 1
    folder = base / "manual_segmentations_model_predictions"
    folder.mkdir(exist_ok=True)
    Image.fromarray(guess).save(folder / f"{name}.jpg.png")


def _annotate(
    official: Official,
    base: Path,
    name: str,
    image: _Image,
    shapes: list[tuple[str, list[list[float]]]],
    lungs_in_masks: bool,
) -> None:
    height, width = image.size
    official.annotate(name, {FINDING: int(any(not label.endswith("_lung") for label, _ in shapes))})
    pixels = np.zeros((height, width), np.uint8)
    for label, points in shapes:
        mask = polygon_mask(points, height, width)
        if not label.endswith("_lung"):
            official.mark(name, FINDING, mask)
            pixels[mask] = 2 if lungs_in_masks else 1
        elif lungs_in_masks:
            pixels[mask] = 1
    if image.mask:
        (base / "pngs_masks").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(base / "pngs_masks" / f"{name}.png")
    entry = {
        "version": "4.5.6",
        "flags": {},
        "shapes": [
            {"label": label, "points": points, "group_id": None, "shape_type": "polygon", "flags": {}}
            for label, points in shapes
        ],
        "imagePath": f"..\\{name}.jpg",
        "imageData": base64.b64encode(official.files[name].read_bytes()).decode(),
        "imageHeight": height,
        "imageWidth": width,
    }
    folder = base / "jpgs" / "jsons"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(entry, indent=2))
