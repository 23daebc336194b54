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
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from pycocotools import mask as coco

from xbench.data.annotations.rle import decode_relative_rle
from xbench.data.decoding import MAX_PIXELS, decode_image
from xbench.errors import UserError

Mask = NDArray[np.bool_]


class Shape(Protocol):
    """Part of an image, in the pixels of some frame: x right, y down, origin at the corner of the first pixel."""

    def draw(self, height: int, width: int) -> Mask:
        """Draw the shape in a frame, (H, W) bool; what lies outside is cut off.

        Raises:
            UserError: The shape is malformed or made for another frame.
        """

    def leaves(self, height: int, width: int) -> bool:
        """Tell whether part of the shape lies outside the frame."""


@dataclass(frozen=True)
class Annotation:
    """One lesion as one reader drew it.

    Attributes:
        finding: Canonical name of the finding.
        shape: Where it is.
        label: The finding as the annotation file writes it.
        reader: Who drew it, where the file says so.
    """

    finding: str
    shape: Shape
    label: str
    reader: str = ""


@dataclass(frozen=True)
class Box:
    """A rectangle of whole pixels, half-open: columns left to right - 1 and rows top to bottom - 1.

    Attributes:
        left: First column.
        top: First row.
        right: First column after the box.
        bottom: First row after the box.
    """

    left: int
    top: int
    right: int
    bottom: int

    @classmethod
    def from_corner_and_size(cls, x: float, y: float, width: float, height: float) -> Box:
        """Return columns int(x) to int(x) + int(width) - 1 and rows likewise, as the scripts of MedKLIP and MAVL do.

        Raises:
            UserError: A number is not finite or not in the range of pixels, or a side is negative.
        """
        left, top, across, down = _whole(x), _whole(y), _whole(width), _whole(height)
        if width < 0 or height < 0:
            raise UserError(f"A box of {width} x {height} pixels has a negative side.")
        return cls(left, top, left + across, top + down)

    @classmethod
    def from_corners(cls, x0: float, y0: float, x1: float, y1: float) -> Box:
        """Return columns int(x0) to int(x1) - 1 and rows likewise.

        Raises:
            UserError: A number is not finite or not in the range of pixels, or the second corner lies before the first.
        """
        if x1 < x0 or y1 < y0:
            raise UserError(f"The box ({x0}, {y0}) to ({x1}, {y1}) ends before it begins.")
        return cls(_whole(x0), _whole(y0), _whole(x1), _whole(y1))

    def draw(self, height: int, width: int) -> Mask:
        """Draw the part of the box that lies in the frame."""
        mask = np.zeros((height, width), np.bool_)
        mask[max(self.top, 0) : max(self.bottom, 0), max(self.left, 0) : max(self.right, 0)] = True
        return mask

    def leaves(self, height: int, width: int) -> bool:
        """Tell whether the box reaches over an edge of the frame."""
        return min(self.left, self.top) < 0 or self.right > width or self.bottom > height


@dataclass(frozen=True)
class Polygon:
    """A closed polygon, outline included, rasterised as Pillow does.

    That is how LabelMe and the CheXlocalize scripts turn polygons into masks; other rasterisers differ along the edge.

    Attributes:
        points: Corners (x, y), fractional pixels.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, points: Iterable[Iterable[float]]) -> Polygon:
        """Return the polygon through points.

        Raises:
            UserError: There are none, or a point is not two finite numbers in the range of pixels.
        """
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
        picture = Image.new("1", (width, height))
        pen = ImageDraw.Draw(picture)
        if len(self.points) == 1:
            pen.point(self.points, fill=1)
        else:
            pen.polygon(self.points, outline=1, fill=1)
        return np.array(picture)

    def leaves(self, height: int, width: int) -> bool:
        """Tell whether a corner lies outside the frame, the far edges not counted as outside."""
        return any(not (0 <= x <= width and 0 <= y <= height) for x, y in self.points)


@dataclass(frozen=True)
class RelativeRLE:
    """A mask of SIIM-ACR; see `xbench.data.annotations.rle`.

    Attributes:
        row: Pairs of an offset and a length, in text.
    """

    row: str

    def draw(self, height: int, width: int) -> Mask:
        """Decode the mask.

        Raises:
            UserError: It is malformed or longer than the image.
        """
        return decode_relative_rle([self.row], height, width)

    def leaves(self, height: int, width: int) -> bool:
        """Return False: run lengths that leave the image are malformed."""
        return False


@dataclass(frozen=True)
class CocoRLE:
    """A mask in COCO's compressed run lengths.

    Attributes:
        counts: The compressed counts.
        height: Rows of the frame that it was made for.
        width: Columns of that frame.
    """

    counts: str
    height: int
    width: int

    def __post_init__(self) -> None:
        """Refuse counts that pycocotools would take without a check.

        Raises:
            UserError: The size or a character of the counts is not possible.
        """
        frame_of(self.height, self.width)
        # Six bits to a character from 0 on; whatever else stands there would be read as some count all the same.
        if not isinstance(self.counts, str) or not self.counts or re.search(r"[^0-o]", self.counts):
            raise UserError(f"{str(self.counts)[:40]!r} is not a COCO run-length encoding.")

    @property
    def empty(self) -> bool:
        """Whether no pixel is set. A malformed mask is not empty: to draw it fails."""
        runs = _runs(self.counts, self.height * self.width)
        return runs is not None and not runs[1::2].any()

    def draw(self, height: int, width: int) -> Mask:
        """Decode the mask.

        Raises:
            UserError: It was made for another frame, or its runs do not fill it.
        """
        if (height, width) != (self.height, self.width):
            raise UserError(
                f"A mask of {self.width} x {self.height} pixels does not fit a frame of {width} x {height}."
            )
        # pycocotools looks at none of this: it reads and writes past the end.
        if _runs(self.counts, height * width) is None:
            raise UserError(f"The runs of a COCO mask do not add up to its {width} x {height} pixels.")
        mask: NDArray[np.uint8] = coco.decode({"size": [height, width], "counts": self.counts.encode()})
        return mask.astype(np.bool_)

    def leaves(self, height: int, width: int) -> bool:
        """Return False: a mask is as large as its frame."""
        return False


@dataclass(frozen=True)
class MaskImage:
    """A mask in an image file: every pixel above 0 belongs to it.

    Attributes:
        path: The file.
    """

    path: Path

    def draw(self, height: int, width: int) -> Mask:
        """Read the mask.

        Raises:
            UserError: The file cannot be read, or shows another frame.
        """
        mask = decode_image(self.path) > 0
        if mask.shape != (height, width):
            raise UserError(
                f"{self.path} is {mask.shape[1]} x {mask.shape[0]} pixels, the image that it annotates {width} x "
                f"{height}: one of the two was resized. Take both from the original download."
            )
        return mask

    def leaves(self, height: int, width: int) -> bool:
        """Return False: a mask of another size is refused."""
        return False


def frame_of(height: object, width: object) -> tuple[int, int]:
    """Return height and width of the frame that an annotation file states.

    Raises:
        UserError: They are not whole numbers, or no image has so few or so many pixels.
    """
    if type(height) is not int or type(width) is not int or min(height, width) < 1 or height * width > MAX_PIXELS:
        raise UserError(f"A frame of {width!r:.20} x {height!r:.20} pixels is not possible.")
    return height, width


def union(shapes: Iterable[Shape], height: int, width: int) -> Mask:
    """Draw shapes into one mask (H, W).

    Raises:
        UserError: A shape is malformed or made for another frame.
    """
    mask = np.zeros((height, width), np.bool_)
    for shape in shapes:
        mask |= shape.draw(height, width)
    return mask


def reader_agreement(annotations: Iterable[Annotation], height: int, width: int) -> tuple[float, float] | None:
    """Return how well the readers of one finding agree: the mean Dice and IoU between the regions of any two.

    A reader's region is the union of what that reader drew; readers who drew nothing are left aside. None unless
    several drew something.

    Raises:
        UserError: A shape is malformed or made for another frame.
    """
    shapes: defaultdict[str, list[Shape]] = defaultdict(list)
    for annotation in annotations:
        if annotation.reader:
            shapes[annotation.reader].append(annotation.shape)
    if len(shapes) < 2:
        return None
    drawn = [mask for drawings in shapes.values() if (mask := union(drawings, height, width)).any()]
    if len(drawn) < 2:
        return None
    scores = []
    for one, other in combinations(drawn, 2):
        overlap, total = np.count_nonzero(one & other), np.count_nonzero(one) + np.count_nonzero(other)
        scores.append((2 * overlap / total, overlap / (total - overlap)))
    dice, iou = np.mean(scores, axis=0).tolist()
    return dice, iou


def _whole(value: float) -> int:
    # Drawing beyond what a pixel can be takes memory and overflows; such a number is a damaged file.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e6:
        raise UserError(f"The coordinate {str(value)[:40]!r} is not a pixel.")
    return int(value)


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
