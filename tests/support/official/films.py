"""Pictures instead of radiographs, and places for annotations on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from official.base import seed_of

Span = tuple[float, float, float, float]
"""x1, y1, x2, y2: as shares of the image, or in pixels."""


def draw_film(number: int, height: int, width: int) -> NDArray[np.uint8]:
    """A smooth picture (H, W), which lossy formats keep; each number has its own."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return (128 + 70 * np.sin(3 * x + number) + 45 * np.cos(4 * y - number / 2)).astype(np.uint8)


def place(*seed: object) -> Span:
    """A box in shares of the image that leaves room around it; each seed has its own."""
    x, y, width, height = np.random.default_rng(seed_of(*seed)).uniform((0.1, 0.1, 0.06, 0.16), (0.5, 0.5, 0.2, 0.3))
    return float(x), float(y), float(x + width), float(y + height)


def scaled(span: Span, height: int, width: int) -> Span:
    x1, y1, x2, y2 = span
    return x1 * width, y1 * height, x2 * width, y2 * height


def outline(span: Span, *seed: object) -> list[list[float]]:
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
