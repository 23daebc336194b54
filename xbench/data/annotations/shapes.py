"""Annotations as their owners publish them: boxes, polygons, run lengths and mask images, each drawn in its own frame.

Nothing is resized or merged while files are parsed; a shape becomes a mask only when its image is loaded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco

from xbench.data.decoding import MAX_PIXELS, decode_image
from xbench.geometry.instances import Instance, draw_box, draw_inside, draw_polygon, runs_of
from xbench.runtime.errors import UserError

Mask = NDArray[np.bool_]


class Shape(Protocol):
    """Part of an image, in the pixels of some frame: x right, y down, origin at the corner of the first pixel."""

    def draw(self, height: int, width: int) -> Mask:
        """Draw the shape in a frame, (H, W) bool, cut off at its edges; UserError if malformed or unfit."""

    def leaves(self, height: int, width: int) -> bool:
        """Tell whether part of the shape lies outside the frame: never of a mask, which is as large as its frame."""
        return False

    def instance(self, height: int, width: int, reader: str = "") -> Instance:
        """Return what a run keeps of the shape, which draws the same pixels: unless a shape has better, its mask."""
        return Instance("mask", (height, width), runs_of(self.draw(height, width)), reader)


@dataclass(frozen=True)
class Annotation:
    """One lesion as one reader drew it; `finding` is the canonical name, `label` what the annotation file writes."""

    finding: str
    shape: Shape
    label: str
    reader: str = ""


@dataclass(frozen=True)
class Box(Shape):
    """A rectangle of whole pixels, half-open: columns left to right - 1 and rows top to bottom - 1."""

    left: int
    top: int
    right: int
    bottom: int

    @classmethod
    def from_corner_and_size(cls, x: float, y: float, width: float, height: float) -> Box:
        """Return columns int(x) to int(x) + int(width) - 1 and rows int(y) to int(y) + int(height) - 1.

        So do the scripts of MedKLIP and MAVL. Raises a UserError where a number is not in the range of pixels or a
        side is negative.
        """
        left, top, across, down = _whole(x), _whole(y), _whole(width), _whole(height)
        if width < 0 or height < 0:
            raise UserError(f"A box of {width} x {height} pixels has a negative side.")
        return cls(left, top, left + across, top + down)

    @classmethod
    def from_corners(cls, x0: float, y0: float, x1: float, y1: float) -> Box:
        """Return columns int(x0) to int(x1) - 1 and rows int(y0) to int(y1) - 1.

        Raises a UserError where a number is not in the range of pixels or the box ends before it begins.
        """
        if x1 < x0 or y1 < y0:
            raise UserError(f"The box ({x0}, {y0}) to ({x1}, {y1}) ends before it begins.")
        return cls(_whole(x0), _whole(y0), _whole(x1), _whole(y1))

    def draw(self, height: int, width: int) -> Mask:
        """Draw the part of the box that lies in the frame."""
        return draw_box(self.left, self.top, self.right, self.bottom, height, width)

    def instance(self, height: int, width: int, reader: str = "") -> Instance:
        """Return what a run keeps of the box: its corners."""
        corners = np.array([self.left, self.top, self.right, self.bottom], np.float64)
        return Instance("box", (height, width), corners, reader)

    def leaves(self, height: int, width: int) -> bool:
        """Tell whether the box reaches over an edge of the frame."""
        return min(self.left, self.top) < 0 or self.right > width or self.bottom > height


@dataclass(frozen=True)
class FractionBox(Shape):
    """A rectangle whose edges are fractions of the image's width and height, at the nearest edges of pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def draw(self, height: int, width: int) -> Mask:
        """Draw the part of the box that lies in the frame."""
        return self._in(height, width).draw(height, width)

    def instance(self, height: int, width: int, reader: str = "") -> Instance:
        """Return what a run keeps of the box: its corners in pixels."""
        return self._in(height, width).instance(height, width, reader)

    def leaves(self, height: int, width: int) -> bool:
        """Tell whether the box reaches over an edge of the frame."""
        return self._in(height, width).leaves(height, width)

    def _in(self, height: int, width: int) -> Box:
        # To the nearest: 0.7 of 320 pixels is 223.99999999999997.
        edges = self.left * width, self.top * height, self.right * width, self.bottom * height
        return Box(*(round(_finite(edge)) for edge in edges))


@dataclass(frozen=True)
class Polygon(Shape):
    """A closed polygon, outline included, with corners (x, y) in fractional pixels; rasterised as Pillow does.

    That is how LabelMe and the CheXlocalize scripts turn polygons into masks; other rasterisers differ along the edge.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, points: Iterable[Iterable[float]]) -> Self:
        """Return the polygon through points; UserError unless there are some, each of two numbers that pixels have."""
        corners = []
        for point in points:
            x, y = point
            _whole(x), _whole(y)
            corners.append((float(x), float(y)))
        if not corners:
            raise UserError("A polygon has no points.")
        return cls(tuple(corners))

    def draw(self, height: int, width: int) -> Mask:
        """Draw the polygon; one of a single point is that pixel, one of two points a line."""
        return draw_polygon(self.points, height, width)

    def instance(self, height: int, width: int, reader: str = "") -> Instance:
        """Return what a run keeps of the polygon: its corners."""
        outline = not isinstance(self, CocoPolygon)
        return Instance("polygon", (height, width), np.array(self.points, np.float64).ravel(), reader, outline)

    def leaves(self, height: int, width: int) -> bool:
        """Tell whether a corner lies outside the frame, the far edges not counted as outside."""
        return any(not (0 <= x <= width and 0 <= y <= height) for x, y in self.points)


@dataclass(frozen=True)
class CocoPolygon(Polygon):
    """A closed polygon, rasterised as COCO's tools do: without its outline, so that small ones do not grow.

    One around a box of whole pixels is that box; of radius 10, Pillow's covers 8 % more than it encloses.
    """

    def draw(self, height: int, width: int) -> Mask:
        """Draw the polygon; UserError if it reaches further out of the frame than the frame is wide and high."""
        if any(not (-width <= x <= 2 * width and -height <= y <= 2 * height) for x, y in self.points):
            raise UserError(f"A polygon lies far outside of the image of {width} x {height} pixels.")
        return draw_inside(self.points, height, width)


@dataclass(frozen=True)
class Parts(Shape):
    """Shapes that are one item together, such as a lesion that something hides in the middle."""

    shapes: tuple[Shape, ...]

    def draw(self, height: int, width: int) -> Mask:
        """Draw the union of the parts."""
        return union(self.shapes, height, width)

    def leaves(self, height: int, width: int) -> bool:
        """Tell whether one of the parts lies outside the frame to some part."""
        return any(shape.leaves(height, width) for shape in self.shapes)


@dataclass(frozen=True)
class RelativeRLE(Shape):
    """A mask in the relative run-length encoding of SIIM-ACR."""

    row: str

    def draw(self, height: int, width: int) -> Mask:
        """Decode the mask.

        The row is pairs `offset length`: so many pixels off since the end of the previous run, then so many on, over
        the image read column by column, each from top to bottom. Followed by the remainder of the image, these numbers
        are the uncompressed counts of COCO, whose tools draw the mask. (They are not the absolute, 1-based starts of
        other Kaggle competitions, which decode without an error into a wrong mask.)

        Raises:
            UserError: The row is not pairs of whole numbers >= 0, has an empty run, or runs past the end of the image.

        Examples:
            Two runs of a 3 x 3 image: the middle of the first column, and the last pixel.

            >>> RelativeRLE("1 1 6 1").draw(3, 3).astype(int)
            array([[0, 0, 0],
                   [1, 0, 0],
                   [0, 0, 1]])
        """
        numbers, pixels = self.row.split(), height * width
        said = f"The run-length encoding {self.row if len(self.row) <= 40 else f'{self.row[:40]}...'!r}"
        # Python refuses to read numbers of thousands of digits with an error of its own.
        if not numbers or not all(number.isascii() and number.isdecimal() and len(number) < 20 for number in numbers):
            raise UserError(f"{said} is not a list of whole numbers >= 0.")
        if len(numbers) % 2:
            raise UserError(f"{said} has {len(numbers)} numbers; pairs of an offset and a length would be even.")
        counts = [int(number) for number in numbers]
        end = sum(counts)
        if end > pixels:
            raise UserError(f"{said} runs to pixel {end} of an image of {pixels}.")
        if 0 in counts[1::2]:
            raise UserError(f"{said} has a run of no pixels.")
        # They must add up: pycocotools does not check, and fills what is missing with whatever lies in memory.
        runs = {"counts": [*counts, pixels - end], "size": [height, width]}
        mask: NDArray[np.uint8] = coco.decode(coco.frPyObjects(runs, height, width))
        return np.ascontiguousarray(mask, np.bool_)


@dataclass(frozen=True)
class CocoRLE(Shape):
    """A mask in COCO's compressed run lengths, and height and width of the frame that it was made for."""

    counts: str
    height: int
    width: int

    def __post_init__(self) -> None:
        """Refuse a size and counts that pycocotools would take without a check."""
        frame_of(self.height, self.width)
        # Six bits to a character from 0 on; whatever else stands there would be read as some count all the same.
        if not isinstance(self.counts, str) or not self.counts or re.search(r"[^0-o]", self.counts):
            raise UserError(f"{str(self.counts)[:40]!r} is not a COCO run-length encoding.")

    @classmethod
    def of_counts(cls, counts: Iterable[int], height: int, width: int) -> CocoRLE:
        """Return the mask of uncompressed counts: pixels off, on, off ... column by column, from the upper left.

        Raises a UserError unless they are whole numbers >= 0 that add up to the pixels of the frame.
        """
        frame_of(height, width)
        runs = [*counts]
        if not all(type(run) is int and run >= 0 for run in runs) or sum(runs) != height * width:
            raise UserError(
                f"The counts of a run-length encoding are not whole numbers >= 0 that add up to the {height * width} "
                f"pixels of a mask of {width} x {height}."
            )
        encoded = coco.frPyObjects({"counts": runs, "size": [height, width]}, height, width)
        return cls(encoded["counts"].decode(), height, width)

    @property
    def complete(self) -> bool:
        """Whether the runs are well-formed and fill the frame; of others `draw` fails."""
        return _runs(self.counts, self.height * self.width) is not None

    @property
    def empty(self) -> bool:
        """Whether no pixel is set. A malformed mask is not empty: to draw it fails."""
        runs = _runs(self.counts, self.height * self.width)
        return runs is not None and not runs[1::2].any()

    def draw(self, height: int, width: int) -> Mask:
        """Decode the mask; UserError if it was made for another frame, or its runs do not fill it."""
        if (height, width) != (self.height, self.width):
            raise UserError(
                f"A mask of {self.width} x {self.height} pixels does not fit a frame of {width} x {height}."
            )
        # pycocotools looks at none of this: it reads and writes past the end.
        if _runs(self.counts, height * width) is None:
            raise UserError(f"The runs of a COCO mask do not add up to its {width} x {height} pixels.")
        mask: NDArray[np.uint8] = coco.decode({"size": [height, width], "counts": self.counts.encode()})
        return mask.astype(np.bool_)


@dataclass(frozen=True)
class MaskImage(Shape):
    """A mask in an image file: every pixel above 0 belongs to it."""

    path: Path

    def draw(self, height: int, width: int) -> Mask:
        """Read the mask; UserError if the file cannot be read, or shows another frame."""
        mask = decode_image(self.path) > 0
        if mask.shape != (height, width):
            raise UserError(
                f"{self.path} is {mask.shape[1]} x {mask.shape[0]} pixels, the image that it annotates {width} x "
                f"{height}: one of the two was resized. Take both in their original size."
            )
        return mask


def frame_of(height: object, width: object) -> tuple[int, int]:
    """Return height and width of the frame that an annotation file states; UserError if no image has such a size."""
    if type(height) is not int or type(width) is not int or min(height, width) < 1 or height * width > MAX_PIXELS:
        raise UserError(f"A frame of {width!r:.20} x {height!r:.20} pixels is not possible.")
    return height, width


def union(shapes: Iterable[Shape], height: int, width: int) -> Mask:
    """Draw shapes into one mask (H, W)."""
    mask = np.zeros((height, width), np.bool_)
    for shape in shapes:
        mask |= shape.draw(height, width)
    return mask


def draw_each(annotations: Iterable[Annotation], height: int, width: int) -> tuple[Mask, tuple[Instance, ...]]:
    """Draw annotations into one mask (H, W), and return those of them that have a pixel in the frame one by one."""
    mask, instances = np.zeros((height, width), np.bool_), []
    for annotation in annotations:
        drawn = annotation.shape.draw(height, width)
        if drawn.any():
            mask |= drawn
            instances.append(annotation.shape.instance(height, width, annotation.reader))
    return mask, tuple(instances)


def reader_agreement(annotations: Iterable[Annotation], height: int, width: int) -> tuple[float, float] | None:
    """Return how well the readers of one finding agree: the mean Dice and IoU between the regions of any two.

    A reader's region is the union of what that reader drew; readers who drew nothing are left aside. None unless
    several drew something.
    """
    shapes: defaultdict[str, list[Shape]] = defaultdict(list)
    for annotation in annotations:
        if annotation.reader:
            shapes[annotation.reader].append(annotation.shape)
    several = shapes.values() if len(shapes) > 1 else ()
    drawn = [mask for drawings in several if (mask := union(drawings, height, width)).any()]
    if len(drawn) < 2:
        return None
    scores = []
    for one, other in combinations(drawn, 2):
        overlap, total = np.count_nonzero(one & other), np.count_nonzero(one) + np.count_nonzero(other)
        scores.append((2 * overlap / total, overlap / (total - overlap)))
    dice, iou = np.mean(scores, axis=0).tolist()
    return dice, iou


def _finite(value: float) -> float:
    # Drawing beyond what a pixel can be takes memory and overflows; such a number is a damaged file.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e6:
        raise UserError(f"The coordinate {str(value)[:40]!r} is not a pixel.")
    return value


def _whole(value: float) -> int:
    return int(_finite(value))


def _runs(counts: str, pixels: int) -> NDArray[np.int64] | None:
    """Run lengths in COCO's compressed form; None if it is malformed or they do not add up to so many pixels.

    A count takes groups of five bits, the lowest first, each in a character with 0x20 set where more follow; 0x10 in
    the last one is its sign. From the fourth on it is the difference to the count before last.
    """
    groups = np.frombuffer(counts.encode(), np.uint8).astype(np.int64) - 48
    last = groups < 32
    ends = np.flatnonzero(last)
    if not last[-1]:
        return None
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    # Six hold more than MAX_PIXELS; seven overflow the sign in pycocotools.
    if lengths.max() > 6:
        return None
    places = np.arange(len(groups)) - np.repeat(starts, lengths)
    runs = np.add.reduceat((groups & 31) << (5 * places), starts)
    runs -= ((groups[ends] & 16) > 0) * (1 << (5 * lengths))
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    return runs if runs.min() >= 0 and runs.max() <= pixels and runs.sum() == pixels else None
