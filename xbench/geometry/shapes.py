"""Annotated items: each box, polygon and mask as its reader drew it. A region is the union of such items.

Needs no torch, so that reports start fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from pycocotools import mask as coco

from xbench.runtime.errors import UserError

Kind = Literal["box", "polygon", "mask"]
Mask = NDArray[np.bool_]

UNKNOWN = (0, 0)
"""Size of a shape in pixels of an image that is not read yet."""

FRACTIONS = (1, 1)
"""Size of a box in fractions of the width and height of an image that is not read yet."""


class Shape:
    """One annotated item of a finding on an image. Not a dataclass, for the reason given in `Coverage`.

    Args:
        kind: `box`, `polygon` or `mask`.
        size: Height and width of the image; `UNKNOWN` or `FRACTIONS` until it is read.
        coordinates: float64 in pixels from the upper left corner of the image, x right and y down. Box: left, top,
            right and bottom, half-open, clipped to the image when drawn. Polygon: x and y of each corner in turn. Mask:
            run lengths, pixels off, on, off ... column by column from the upper left, as in COCO.
        reader: Who drew it; empty if unknown.
        outline: Whether a polygon includes the pixels of its outline, as in Pillow, or not, as in COCO's tools.
    """

    __slots__ = ("coordinates", "kind", "outline", "reader", "size")

    def __init__(
        self,
        kind: Kind,
        size: tuple[int, int],
        coordinates: NDArray[np.float64],
        reader: str = "",
        outline: bool = True,
    ) -> None:
        self.kind, self.size, self.coordinates, self.reader, self.outline = kind, size, coordinates, reader, outline

    @classmethod
    def from_corners(cls, x0: float, y0: float, x1: float, y1: float, reader: str = "") -> Shape:
        """Return the box of columns int(x0) to int(x1) - 1 and rows int(y0) to int(y1) - 1, or raise a UserError."""
        if x1 < x0 or y1 < y0:
            raise UserError(f"The box ({x0}, {y0}) to ({x1}, {y1}) ends before it begins.")
        return cls("box", UNKNOWN, np.array([*map(int, _pixels((x0, y0, x1, y1)))], np.float64), reader)

    @classmethod
    def from_corner_and_size(cls, x: float, y: float, width: float, height: float) -> Shape:
        """Return the box of columns int(x) to int(x) + int(width) - 1, and rows alike, as in MedKLIP and MAVL."""
        left, top, across, down = map(int, _pixels((x, y, width, height)))
        if width < 0 or height < 0:
            raise UserError(f"A box of {width} x {height} pixels has a negative side.")
        return cls("box", UNKNOWN, np.array([left, top, left + across, top + down], np.float64))

    @classmethod
    def from_points(cls, points: Iterable[Iterable[float]], outline: bool = True) -> Shape:
        """Return the closed polygon through points (x, y) in fractional pixels; raise a UserError if there are none.

        With its outline it is drawn as in Pillow, LabelMe and the CheXlocalize scripts; without it as in COCO's tools,
        which suits small ones: at radius 10, Pillow's covers 8% more than it encloses.
        """
        numbers = _pixels([number for x, y in points for number in (x, y)])
        if not numbers:
            raise UserError("A polygon has no points.")
        return cls("polygon", UNKNOWN, np.array(numbers, np.float64), outline=outline)

    @classmethod
    def from_mask(cls, mask: Mask) -> Shape:
        """Return a shape with the pixels of a mask (H, W)."""
        height, width = mask.shape
        return cls("mask", (height, width), runs_of(mask))

    @classmethod
    def checked(
        cls, kind: str, size: Sequence[int], coordinates: NDArray[np.float64], reader: str, outline: bool
    ) -> Shape:
        """Return the shape with these values from a file; raise a ValueError if they are impossible."""
        if len(size) != 2 or min(size) < 1 or size[0] * size[1] > 2**31:
            raise ValueError("an annotated item has an impossible size")
        whole = coordinates == np.floor(coordinates)
        count, pixels = len(coordinates), size[0] * size[1]
        sound = np.isfinite(coordinates).all() and {
            "box": count == 4 and whole.all(),
            "polygon": count >= 2 and count % 2 == 0 and bool((abs(coordinates) <= 1e6).all()),
            "mask": count > 0 and whole.all() and bool((coordinates >= 0).all()) and coordinates.sum() == pixels,
        }.get(kind, False)
        if kind not in get_args(Kind) or not sound:
            raise ValueError(f"an annotated item is not a {kind} inside its image")
        return cls(kind, (int(size[0]), int(size[1])), coordinates, reader, outline)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Shape{self._key()}"

    def _key(self) -> tuple[object, ...]:
        return self.kind, self.size, self.reader, self.outline, *self.coordinates.tolist()

    def on(self, height: int, width: int) -> Shape:
        """Return the shape on an image of this size, fractions rounded; raise a UserError if it does not fit."""
        coordinates = self.coordinates
        if self.kind == "box" and self.size == FRACTIONS:
            # Round, because 0.7 of 320 pixels is 223.99999999999997.
            edges = _pixels((coordinates * (width, height, width, height)).tolist())
            coordinates = np.array([*map(round, edges)], np.float64)
        elif self.size not in (UNKNOWN, (height, width)):
            raise UserError(
                f"A {self.kind} on {self.size[1]} x {self.size[0]} pixels does not fit an image of {width} x {height}."
            )
        return Shape(self.kind, (height, width), coordinates, self.reader, self.outline)

    def leaves(self) -> bool:
        """Return whether part of a box or polygon lies outside its image; the far edges are inside."""
        if self.kind == "mask":
            return False
        points = self.coordinates.reshape(-1, 2)
        return bool((points < 0).any() or (points > self.size[::-1]).any())

    def draw(self) -> Mask:
        """Draw the item on its image (H, W), clipped at the edges.

        A polygon of one point is that pixel, one of two points a line. Raises a UserError if a polygon without outline
        extends beyond the image by more than the image's width or height.
        """
        numbers = self.coordinates.tolist()
        if self.kind == "box":
            left, top, right, bottom = (max(int(number), 0) for number in numbers)
            mask = np.zeros(self.size, np.bool_)
            mask[top:bottom, left:right] = True
            return mask
        if self.kind == "mask":
            return mask_of(self.coordinates, *self.size)
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        return (_draw_with_outline if self.outline else _draw_inside)(points, *self.size)

    def box(self) -> tuple[float, float, float, float] | None:
        """Return left, top, right and bottom of its pixels as fractions of its image, or None without pixels."""
        height, width = self.size
        if self.kind == "box":
            left, top, right, bottom = self.coordinates.tolist()
            left, top, right, bottom = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
            if left >= right or top >= bottom:
                return None
        else:
            drawn = self.draw()
            columns, rows = (np.flatnonzero(drawn.any(axis)).tolist() for axis in (0, 1))
            if not rows:
                return None
            left, top, right, bottom = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        return left / width, top / height, right / width, bottom / height


def union(shapes: Iterable[Shape], height: int, width: int) -> Mask:
    """Draw shapes into one mask (H, W); raise a UserError if one does not fit an image of this size."""
    mask = np.zeros((height, width), np.bool_)
    for shape in shapes:
        mask |= shape.on(height, width).draw()
    return mask


def connected_parts(mask: Mask) -> tuple[Shape, ...]:
    """Return each connected part of a mask (H, W) as a shape; all eight neighbors connect."""
    count, labels = cv2.connectedComponents(mask.view(np.uint8), connectivity=8)
    return tuple(Shape.from_mask(labels == part) for part in range(1, count))


def runs_of(mask: Mask) -> NDArray[np.float64]:
    """Return the run lengths of a mask (H, W), see `Shape`."""
    flat = np.asarray(mask, np.bool_).ravel(order="F")
    turns = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    starts = np.concatenate([[0] if flat[0] else [], [0], turns, [flat.size]])
    return np.diff(starts).astype(np.float64)


def mask_of(runs: NDArray[np.float64] | NDArray[np.int64], height: int, width: int) -> Mask:
    """Return the mask (H, W) of run lengths."""
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs.astype(np.int64))
    return np.ascontiguousarray(flat.reshape(width, height).T)


def coco_runs(counts: str, height: int, width: int) -> NDArray[np.int64]:
    """Return the run lengths of COCO's compressed form; raise a UserError if it is malformed.

    pycocotools would read and write past the end of malformed runs. A count is groups of five bits, lowest first, one
    character (0 to o) each, with 0x20 set if more follow; 0x10 in the last one is the sign. From the fourth count on it
    is the difference from the count before last.
    """
    pixels = height * width
    groups = np.frombuffer(counts.encode(), np.uint8).astype(np.int64) - 48
    last = groups < 32
    ends = np.flatnonzero(last)
    if last[-1]:
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = ends - starts + 1
        # Six groups hold more than MAX_PIXELS; seven overflow the sign in pycocotools.
        if lengths.max() <= 6:
            places = np.arange(len(groups)) - np.repeat(starts, lengths)
            runs = np.add.reduceat((groups & 31) << (5 * places), starts)
            runs -= ((groups[ends] & 16) > 0) * (1 << (5 * lengths))
            runs[1::2] = np.cumsum(runs[1::2])
            runs[2::2] = np.cumsum(runs[2::2])
            if runs.min() >= 0 and runs.max() <= pixels and runs.sum() == pixels:
                return runs
    raise UserError(f"The runs of a COCO mask do not add up to its {width} x {height} pixels.")


def _draw_with_outline(points: Sequence[tuple[float, float]], height: int, width: int) -> Mask:
    picture = Image.new("1", (width, height))
    pen = ImageDraw.Draw(picture)
    if len(points) == 1:
        pen.point(points, fill=1)
    else:
        pen.polygon(points, outline=1, fill=1)
    return np.array(picture)


def _draw_inside(points: Sequence[tuple[float, float]], height: int, width: int) -> Mask:
    if any(not (-width <= x <= 2 * width and -height <= y <= 2 * height) for x, y in points):
        raise UserError(f"A polygon lies far outside the image of {width} x {height} pixels.")
    # pycocotools loses parts of polygons that begin outside its frame.
    inside = all(0 <= x <= width and 0 <= y <= height for x, y in points)
    left, top = (0, 0) if inside else (width, height)
    size = height + 2 * top, width + 2 * left
    corners = [number for x, y in points for number in (x + left, y + top)]
    mask: NDArray[np.uint8] = coco.decode(coco.frPyObjects([corners], *size))[..., 0]
    return np.ascontiguousarray(mask[top : top + height, left : left + width], np.bool_)


def _pixels(numbers: Sequence[float]) -> Sequence[float]:
    if {*map(type, numbers)} == {float} and sum(map(abs, numbers)) <= 1e6:  # nearly all; no part exceeds the sum
        return numbers
    # Larger coordinates would overflow or exhaust memory, and come from damaged files.
    for value in numbers:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e6:
            raise UserError(f"The coordinate {str(value)[:40]!r} is not a pixel.")
    return numbers
