"""Answer of a model to one query about one radiograph."""

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
    """A point as fractions of the whole radiograph; (0, 0) is the top left corner."""

    x: float
    y: float


class Box(NamedTuple):
    """A box as fractions of the whole radiograph, with x0 < x1 and y0 < y1."""

    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True)
class Counts:
    """Corrections that the reader made to boxes and points."""

    clipped: int = 0  # beyond the radiograph; cut off at its edge
    reordered: int = 0  # with swapped corners
    dropped: int = 0  # not readable as a box, or without area
    duplicates: int = 0  # repeated


@dataclass(frozen=True)
class Answer:
    """Answer to one query, readable or not.

    The status is `answered` if there are boxes or points, `abstained` if the model denies the finding or declines,
    `truncated` if the end is missing (complete boxes are kept), and `unparsable` otherwise.
    """

    status: Status
    raw: str  # the text as received
    boxes: tuple[Box, ...] = ()  # in the order of the text, without duplicates
    points: tuple[Point, ...] = ()  # the same
    confidence: tuple[float | None, ...] = ()  # one per box, in [0, 1]; None if not stated
    finish: Finish | None = None  # stopped by itself or at the limit; None if unknown
    counts: Counts = field(default_factory=Counts)
    suspect_frame: bool = False  # the numbers look like another convention; they are read as declared


def outline_boxes(region: NDArray[np.bool_]) -> list[Box]:
    """Return a box around each connected part of a region (H, W); corners connect."""
    from scipy import ndimage

    height, width = region.shape
    return [
        Box(columns.start / width, rows.start / height, columns.stop / width, rows.stop / height)
        for rows, columns in ndimage.find_objects(ndimage.label(region, np.ones((3, 3)))[0])
    ]
