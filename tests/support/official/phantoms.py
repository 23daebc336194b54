"""Cheap radiographs with lesions wherever a fixture wants them."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from official.base import seed_of
from xbench.data.phantom import draw_phantom

Span = tuple[float, float, float, float]
"""x1, y1, x2, y2: as shares of the image, or in pixels."""

_SIDE = 128
_CHESTS = 5

_PLACES: dict[str, Span] = {
    "Aortic Enlargement": (0.48, 0.24, 0.60, 0.36), "Atelectasis": (0.16, 0.60, 0.42, 0.70),
    "COVID-19": (0.16, 0.46, 0.40, 0.70), "Calcification": (0.26, 0.30, 0.31, 0.34),
    "Cardiomegaly": (0.32, 0.46, 0.76, 0.76), "Clavicle Fracture": (0.22, 0.14, 0.34, 0.20),
    "Consolidation": (0.18, 0.44, 0.42, 0.68), "Edema": (0.18, 0.34, 0.84, 0.68),
    "Diffuse Nodule": (0.15, 0.30, 0.43, 0.74), "Emphysema": (0.16, 0.18, 0.42, 0.50),
    "Enlarged Cardiomediastinum": (0.34, 0.20, 0.70, 0.74),
    "Enlarged PA": (0.54, 0.36, 0.66, 0.46), "Fracture": (0.12, 0.42, 0.19, 0.49),
    "ILD": (0.14, 0.44, 0.42, 0.72), "Infiltration": (0.16, 0.42, 0.40, 0.64),
    "Lung Cavity": (0.20, 0.24, 0.34, 0.36), "Lung Cyst": (0.20, 0.26, 0.30, 0.36),
    "Lung Lesion": (0.22, 0.36, 0.34, 0.46), "Lung Opacity": (0.16, 0.40, 0.42, 0.66),
    "Mass": (0.20, 0.34, 0.36, 0.48), "Mediastinal Shift": (0.38, 0.16, 0.66, 0.70),
    "Nodule": (0.26, 0.40, 0.32, 0.46), "Nodule/Mass": (0.22, 0.38, 0.32, 0.47),
    "Other Lesion": (0.30, 0.16, 0.40, 0.26), "Pleural Effusion": (0.10, 0.62, 0.36, 0.80),
    "Pleural Other": (0.10, 0.50, 0.16, 0.72), "Pleural Thickening": (0.18, 0.13, 0.36, 0.17),
    "Pneumonia": (0.16, 0.40, 0.42, 0.68), "Pneumothorax": (0.12, 0.14, 0.26, 0.46),
    "Pulmonary Fibrosis": (0.20, 0.18, 0.38, 0.32), "Rib Fracture": (0.10, 0.48, 0.18, 0.55),
    "Support Devices": (0.46, 0.12, 0.50, 0.60),
}  # fmt: skip
_CENTRAL = frozenset(
    {
        "Aortic Enlargement", "Cardiomegaly", "Edema", "Enlarged Cardiomediastinum", "Enlarged PA", "Mediastinal Shift",
        "Support Devices",
    }
)  # fmt: skip
_DARK = frozenset({"Emphysema", "Lung Cavity", "Lung Cyst", "Pneumothorax"})


@cache
def _healthy_chests() -> list[NDArray[np.uint8]]:
    chests: list[NDArray[np.uint8]] = []
    index = 0
    while len(chests) < _CHESTS:
        phantom = draw_phantom(0, index, _SIDE, _SIDE)
        if not phantom.masks:
            chests.append(phantom.image)
        index += 1
    return chests


def draw_chest(number: int, height: int, width: int) -> NDArray[np.uint8]:
    """A healthy chest (H, W); those of different numbers differ in patient, exposure or frame."""
    turn = number // _CHESTS
    chest = Image.fromarray(_healthy_chests()[number % _CHESTS])
    frame = (turn % 4, turn % 3, _SIDE - turn % 5, _SIDE - turn % 7)
    grey = np.array(chest.resize((width, height), Image.Resampling.BICUBIC, frame), np.float32) / 255
    return (grey ** (1 + 0.08 * (turn % 6)) * 235 + 10).astype(np.uint8)


def place(finding: str, *seed: object) -> Span:
    """Where a finding may lie, in shares of the image; the seed moves it a little and chooses the side."""
    rng = np.random.default_rng(seed_of(finding, *seed))
    x1, y1, x2, y2 = _PLACES[finding]
    if finding not in _CENTRAL and rng.random() < 0.5:
        x1, x2 = 1 - x2, 1 - x1
    right, down = rng.uniform(-0.02, 0.02, 2).tolist()
    return x1 + right, y1 + down, x2 + right, y2 + down


def scaled(span: Span, height: int, width: int) -> Span:
    """A place in pixels of the image."""
    x1, y1, x2, y2 = span
    return x1 * width, y1 * height, x2 * width, y2 * height


def outline(span: Span, *seed: object) -> list[list[float]]:
    """A closed, uneven outline that fills a box in pixels: [[x, y], ...], with fractions."""
    rng = np.random.default_rng(seed_of(*seed))
    x1, y1, x2, y2 = span
    angles = np.linspace(0, 2 * np.pi, 14, endpoint=False)
    radii = rng.uniform(0.82, 1, len(angles))
    across = (x1 + x2) / 2 + (x2 - x1) / 2 * radii * np.cos(angles)
    down = (y1 + y2) / 2 + (y2 - y1) / 2 * radii * np.sin(angles)
    return [[round(x, 4), round(y, 4)] for x, y in zip(across.tolist(), down.tolist(), strict=True)]


def polygon_mask(points: list[list[float]], height: int, width: int) -> NDArray[np.bool_]:
    """The pixels (H, W) of a polygon, as Pillow draws it: what labelme and CheXlocalize do."""
    canvas = Image.new("1", (width, height))
    ImageDraw.Draw(canvas).polygon([(x, y) for x, y in points], outline=1, fill=1)
    return np.array(canvas, np.bool_)


def paint(image: NDArray[np.uint8], span: Span, finding: str) -> None:
    """Draw a lesion into an image: an ellipse with soft edges, within a box in pixels."""
    height, width = image.shape
    x1, y1 = (max(int(edge), 0) for edge in span[:2])
    x2, y2 = min(int(span[2]), width), min(int(span[3]), height)
    if x2 <= x1 or y2 <= y1:
        return
    canvas = Image.new("L", (x2 - x1, y2 - y1))
    inset = min(x2 - x1, y2 - y1) // 8
    ImageDraw.Draw(canvas).ellipse((inset, inset, x2 - x1 - 1 - inset, y2 - y1 - 1 - inset), fill=255)
    profile = np.array(canvas.filter(ImageFilter.GaussianBlur(inset / 2)), np.float32) / 255
    strength = -45 if finding in _DARK else 60
    part = image[y1:y2, x1:x2]
    part[...] = np.clip(part + strength * profile, 0, 255).astype(np.uint8)
