"""Pictures in the page: lines and outlines as SVG paths, names beside points, films and maps as text."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from xbench.report.charts import Scatter, apart, named_places

_LABEL, _TALL = 17.0, 400
"""Pixels between the names in a scatter, and its height."""


def path_of(points: Iterable[tuple[float, float]]) -> str:
    """Draw a line through points, shares of width and height, in a square of 100, y downwards."""
    text = "L".join(f"{100 * x:.2f} {100 - 100 * y:.2f}" for x, y in points)
    return f"M{text}" if text else ""


def band_of(ends: Sequence[tuple[float, float, float]]) -> str:
    """Draw the intervals along a line, each x, low and high, as a closed path."""
    return f"{path_of([*((x, high) for x, _, high in ends), *((x, low) for x, low, _ in reversed(ends))])}Z"


def names_of(scatter: Scatter) -> Iterator[tuple[str, float, float, float, bool]]:
    """Place names beside points, pushed apart: the text, the point, by how much it is higher, if it is at the right."""
    places = named_places(sorted(scatter.points, key=lambda point: point.y.value or 0.0), in_turn=True)
    heights = [_TALL * y for _, y, _ in places]
    # The lowest and the highest stay readable.
    moved = apart(heights, [_LABEL] * len(places), 4 - _LABEL / 2, _TALL - 3 + _LABEL / 2)
    for (x, y, text), height, place in zip(places, heights, moved, strict=True):
        yield text, x, y, place - height, x < 0.68


def outline_of(region: NDArray[np.bool_], scale: tuple[float, float] = (1, 1)) -> str:
    """Draw the border of a region (H, W) along the edges of its pixels, as a path in pixels of it times a scale."""
    # OpenCV draws through the centres of pixels. At twice the size, with a border, halving leads to the nearest edge.
    twice = np.pad(region.astype(np.uint8).repeat(2, axis=0).repeat(2, axis=1), 1)
    contours, _ = cv2.findContours(twice, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    # Half a pixel is less than a screen shows, and most of what a ragged outline weighs.
    tolerance = max(1.0, max(region.shape) / 224) / 2
    smooth = [cv2.approxPolyDP(contour // 2, tolerance, True)[:, 0] for contour in contours]
    return "".join(
        "M" + "L".join(f"{x * scale[0]:.5g} {y * scale[1]:.5g}" for x, y in points) + "Z" for points in smooth
    )


def encoded(ending: str, image: NDArray[np.uint8], options: tuple[int, int]) -> str:
    """Return a picture encoded by the ending of its format, in base64."""
    _, data = cv2.imencode(ending, image, options)
    return base64.b64encode(data.tobytes()).decode("ascii")
