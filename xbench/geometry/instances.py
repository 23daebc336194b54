"""Annotated items one by one: each box, outline and mask as its reader drew it, of which a region is the union.

Needs no torch, so that reports start fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from pycocotools import mask as coco

Kind = Literal["box", "polygon", "mask"]


class Instance:
    """One annotated item of a finding on an image. (No dataclass, for the reason that `Coverage` is none.)

    Args:
        kind: `box`, `polygon` or `mask`.
        frame: Height and width in pixels of the frame that the coordinates refer to, which shows the whole image.
        coordinates: float64 in pixels of the frame, from the corner of its first pixel, x right and y down. Of a box
            left, top, right and bottom, half-open, perhaps beyond the frame, at which it is cut off; of a polygon x and
            y of each corner in turn; of a mask run lengths: pixels off, on, off ... column by column from the upper
            left, as COCO counts them.
        reader: Who drew it; empty where the dataset does not say.
        outline: Whether a polygon has the pixels of its outline, as Pillow draws it, or not, as COCO's tools do.
    """

    __slots__ = ("coordinates", "frame", "kind", "outline", "reader")

    def __init__(
        self,
        kind: Kind,
        frame: tuple[int, int],
        coordinates: NDArray[np.float64],
        reader: str = "",
        outline: bool = True,
    ) -> None:
        self.coordinates = coordinates
        self.frame = frame
        self.kind = kind
        self.outline = outline
        self.reader = reader

    @classmethod
    def checked(
        cls, kind: str, frame: Sequence[int], coordinates: NDArray[np.float64], reader: str, outline: bool
    ) -> Instance:
        """Make an instance of what a file says; raise a ValueError for what no run writes."""
        if len(frame) != 2 or min(frame) < 1 or frame[0] * frame[1] > 2**31:
            raise ValueError("an annotated item has an impossible frame")
        whole = coordinates == np.floor(coordinates)
        count, pixels = len(coordinates), frame[0] * frame[1]
        sound = np.isfinite(coordinates).all() and {
            "box": count == 4 and whole.all(),
            "polygon": count >= 2 and count % 2 == 0 and bool((abs(coordinates) <= 1e6).all()),
            "mask": count > 0 and whole.all() and bool((coordinates >= 0).all()) and coordinates.sum() == pixels,
        }.get(kind, False)
        if kind not in get_args(Kind) or not sound:
            raise ValueError(f"an annotated item is no {kind} in its frame")
        return cls(kind, (int(frame[0]), int(frame[1])), coordinates, reader, outline)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        """Tell whether another instance is the same, to the bit."""
        if not isinstance(other, Instance):
            return False
        told = [(one.kind, one.frame, one.reader, one.outline) for one in (self, other)]
        return told[0] == told[1] and np.array_equal(self.coordinates, other.coordinates)

    __hash__ = None  # type: ignore[assignment]

    def draw(self) -> NDArray[np.bool_]:
        """Draw the item in its frame (H, W), as the union of its finding's region has it."""
        numbers = self.coordinates.tolist()
        if self.kind == "box":
            left, top, right, bottom = map(int, numbers)
            return draw_box(left, top, right, bottom, *self.frame)
        if self.kind == "mask":
            runs = np.repeat(np.arange(len(numbers)) % 2 == 1, self.coordinates.astype(np.int64))
            return np.ascontiguousarray(runs.reshape(self.frame[::-1]).T)
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        return (draw_polygon if self.outline else draw_inside)(points, *self.frame)

    def box(self) -> tuple[float, float, float, float] | None:
        """Return the box around the item, left, top, right and bottom in fractions of its frame; None if it is empty.

        A box itself is cut off at the frame.
        """
        height, width = self.frame
        if self.kind == "box":
            left, top, right, bottom = self.coordinates.tolist()
            left, top, right, bottom = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
        else:
            drawn = self.draw()
            columns, rows = (np.flatnonzero(drawn.any(axis)) for axis in (0, 1))
            if not len(rows):
                return None
            left, top, right, bottom = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        if left >= right or top >= bottom:
            return None
        return float(left / width), float(top / height), float(right / width), float(bottom / height)


def connected_parts(mask: NDArray[np.bool_]) -> tuple[Instance, ...]:
    """Return each part of a mask (H, W) as an instance, in the order of their first pixels; all eight neighbours count.

    For a dataset that knows the lesions of a finding only together.
    """
    count, labels = cv2.connectedComponents(mask.view(np.uint8), connectivity=8)
    height, width = mask.shape
    return tuple(Instance("mask", (height, width), runs_of(labels == part)) for part in range(1, count))


def runs_of(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the run lengths of a mask (H, W): pixels off, on, off ... column by column, from the upper left."""
    flat = np.asarray(mask, np.bool_).ravel(order="F")
    turns = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    starts = np.concatenate([[0] if flat[0] else [], [0], turns, [flat.size]])
    return np.diff(starts).astype(np.float64)


def draw_box(left: int, top: int, right: int, bottom: int, height: int, width: int) -> NDArray[np.bool_]:
    """Draw the part of a half-open box that lies in a frame, (H, W) bool."""
    mask = np.zeros((height, width), np.bool_)
    mask[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = True
    return mask


def draw_polygon(points: Sequence[tuple[float, float]], height: int, width: int) -> NDArray[np.bool_]:
    """Draw a polygon with its outline as Pillow does; one of a single point is that pixel, one of two a line."""
    picture = Image.new("1", (width, height))
    pen = ImageDraw.Draw(picture)
    if len(points) == 1:
        pen.point(points, fill=1)
    else:
        pen.polygon(points, outline=1, fill=1)
    return np.array(picture)


def draw_inside(points: Sequence[tuple[float, float]], height: int, width: int) -> NDArray[np.bool_]:
    """Draw a polygon as COCO's tools do, without its outline, none of it further out than the frame is long."""
    # pycocotools loses parts of what begins outside of its frame.
    inside = all(0 <= x <= width and 0 <= y <= height for x, y in points)
    left, top = (0, 0) if inside else (width, height)
    size = height + 2 * top, width + 2 * left
    corners = [number for x, y in points for number in (x + left, y + top)]
    mask: NDArray[np.uint8] = coco.decode(coco.frPyObjects([corners], *size))[..., 0]
    return np.ascontiguousarray(mask[top : top + height, left : left + width], np.bool_)
