"""What a model answered to one query about one radiograph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Status = Literal["answered", "abstained", "unparsable", "truncated"]
Finish = Literal["stop", "length"]


class Size(NamedTuple):
    """Width and height of a radiograph in pixels, as the dataset delivers it."""

    width: int
    height: int


class Point(NamedTuple):
    """A place as fractions of the whole radiograph, from 0 at its left and top edge to 1 at its right and bottom."""

    x: float
    y: float


class Box(NamedTuple):
    """A rectangle as fractions of the whole radiograph, with x0 < x1 and y0 < y1."""

    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True)
class Counts:
    """What the reader did to the numbers of an answer, in boxes and points."""

    clipped: int = 0  # reached beyond the radiograph and were cut off at its edge
    reordered: int = 0  # had their corners the wrong way round
    dropped: int = 0  # could not be read as a box, or had no area
    duplicates: int = 0  # repeated one that was there already


@dataclass(frozen=True)
class Answer:
    """What a model answered to one query about one radiograph, whether it can be read or not.

    It is `answered` if there are boxes or points, `abstained` if the model says that there is nothing, or declines,
    `truncated` if the end is missing, with the complete boxes, and `unparsable` otherwise.
    """

    status: Status
    raw: str  # the text as received
    boxes: tuple[Box, ...] = ()  # in their order in the text, no two alike
    points: tuple[Point, ...] = ()  # in their order in the text, no two alike
    confidence: tuple[float | None, ...] = ()  # per box as stated or scored, in [0, 1]; None where it was not
    finish: Finish | None = None  # why generation ended: by itself, or at the limit; None where nobody knows
    counts: Counts = field(default_factory=Counts)  # what the reader did to the numbers
    suspect_frame: bool = False  # whether the numbers look like another convention; they are read as declared


def outline_boxes(region: NDArray[np.bool_]) -> list[Box]:
    """Return a box around each part of a region (H, W), whose pixels may be connected through corners."""
    from scipy import ndimage

    height, width = region.shape
    return [
        Box(columns.start / width, rows.start / height, columns.stop / width, rows.stop / height)
        for rows, columns in ndimage.find_objects(ndimage.label(region, np.ones((3, 3)))[0])
    ]
