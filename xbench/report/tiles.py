"""Pictures of one image: the map of a finding over it, and all maps side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from math import ceil, sqrt

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from xbench.report.colors import tinted
from xbench.report.names import in_thousandths
from xbench.runtime.files import IMAGE_SUFFIXES

SIDE = 448
"""The longer side of an image in pixels."""
_NARROWEST = 240
_CAPTION = 30
_GAP = 10
_INK, _FAINT = (255, 255, 255), (176, 176, 176)


def shown(film: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image (H, W) at the size of display."""
    scale = SIDE / max(film.shape)
    size = max(1, round(film.shape[1] * scale)), max(1, round(film.shape[0] * scale))
    return np.asarray(cv2.resize(film, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC), np.uint8)


def film_tile(film: NDArray[np.uint8], left: str, right: str = "") -> Image.Image:
    """Return a gray (H, W) or color (H, W, 3) image with words below it."""
    height, width = film.shape[:2]
    tile = Image.new("RGB", (max(width, _NARROWEST), height + _CAPTION))
    tile.paste(Image.fromarray(film), ((tile.width - width) // 2, 0))
    middle, taken = height + _CAPTION / 2 + 1, _font().getlength(right) + 12 if right else 0
    _write(tile, (6, middle), left, tile.width - 16 - taken, _INK)
    ImageDraw.Draw(tile).text((tile.width - 6, middle), right, _FAINT, _font(), "rm")
    return tile


def map_tile(film: NDArray[np.uint8], saliency: NDArray[np.float32], finding: str, probability: float) -> Image.Image:
    """Return an image (H, W) under a map, with a cross at the map's peak and finding and probability below.

    The map (H, W) is in [0, 1]; a constant one has no peak.
    """
    picture = tinted(film, saliency)
    if np.ptp(saliency) > 0:
        # The mean of tied places, as in the scores.
        y, x = np.argwhere(saliency == saliency.max()).mean(axis=0).round().astype(int).tolist()
        for gray, weight in ((0, 5), (255, 2)):
            for across, down in ((8, 0), (0, 8)):
                ends = (x - across, y - down), (x + across, y + down)
                cv2.line(picture, *ends, (gray, gray, gray), weight, cv2.LINE_AA)
    return film_tile(picture, finding, in_thousandths(probability))


def sheet(tiles: Sequence[Image.Image], foot: str) -> Image.Image:
    """Return tiles of one size in rows, with a line of words below."""
    across, down = tiles[0].width + _GAP, tiles[0].height + _GAP
    # Wider than high, with few empty places.
    wanted = sqrt(1.4 * len(tiles) * down / across)
    several = range(max(1, round(wanted)), min(len(tiles), round(1.6 * wanted)) + 1)
    columns = min(several, key=lambda count: (-len(tiles) % count, count))
    page = Image.new("RGB", (columns * across + _GAP, ceil(len(tiles) / columns) * down + _GAP + _CAPTION))
    for place, tile in enumerate(tiles):
        page.paste(tile, (_GAP + place % columns * across, _GAP + place // columns * down))
    _write(page, (_GAP + 6, page.height - _CAPTION / 2 - 4), foot, page.width - 4 * _GAP, _FAINT)
    return page


def file_names(names: Iterable[str]) -> list[str]:
    """Return paths without an ending for names of images or findings, all different and safe on any disk.

    Slashes make folders; an image's ending is removed; letters, digits, dots, underscores and hyphens stay.

    >>> file_names(["ward 3/a.dcm", "ward_3/A.png", "../x", "Nodule/Mass"])
    ['ward_3/a', 'ward_3/A_000001', '_/x', 'Nodule/Mass']
    """
    found: list[str] = []
    taken: set[str] = set()
    for place, name in enumerate(names):
        ending = next((ending for ending in IMAGE_SUFFIXES if name.lower().endswith(ending)), "")
        stem = name[: len(name) - len(ending)] or name
        parts = [re.sub(r"[^\w.-]+", "_", part).strip(".")[:60] or "_" for part in stem.split("/")]
        # A folder must not have the name of a picture.
        path = "/".join(re.sub(r"\.png$", "_png", part, flags=re.I) for part in parts)
        # Some disks ignore case.
        while path.casefold() in taken:
            path += f"_{place:06d}"
        taken.add(path.casefold())
        found.append(path)
    return found


def _write(page: Image.Image, place: tuple[float, float], text: str, room: float, ink: tuple[int, int, int]) -> None:
    shown, kept = text, len(text)
    while _font().getlength(shown) > room and kept > 1:
        shown = f"{text[: kept // 2]}\u2026{text[-(kept // 2) :]}"
        kept -= 2
    ImageDraw.Draw(page).text(place, shown, ink, _font(), "lm")


@cache
def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(15)
