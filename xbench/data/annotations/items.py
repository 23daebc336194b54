"""Annotations as their owners publish them, each drawn in the pixels that it refers to.

Nothing is resized or merged while files are parsed; masks are decoded only when their image is loaded, so that a
malformed one fails with its image.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco

from xbench.data.decoding import MAX_PIXELS, decode_image
from xbench.geometry.shapes import Mask, Shape, coco_runs, mask_of, union
from xbench.runtime.errors import UserError
from xbench.scoring import numbers


@dataclass(frozen=True)
class RunLengths:
    """A mask in run lengths, as text.

    With a size (height, width) it is COCO's compressed form; without one the pairs of SIIM-ACR, for the image at hand.
    """

    text: str
    size: tuple[int, int] | None = None

    @classmethod
    def of_coco(cls, counts: object, height: object, width: object) -> RunLengths:
        """Return the mask of COCO's counts: compressed, or a list of pixels off, on, off ... column by column.

        Raises a UserError for an impossible size, a text that is not COCO's, and a list unless it holds whole numbers
        >= 0 that add up to the pixels.
        """
        size = height, width = image_size(height, width)
        if isinstance(counts, list):
            if not all(type(run) is int and run >= 0 for run in counts) or sum(counts) != height * width:
                raise UserError(
                    f"The counts of a run-length encoding are not whole numbers >= 0 that add up to the "
                    f"{height * width} pixels of a mask of {width} x {height}."
                )
            counts = coco.frPyObjects({"counts": counts, "size": [*size]}, *size)["counts"].decode()
        # Six bits to a character from 0 on; whatever else stands there would be read as some count all the same.
        if not isinstance(counts, str) or not counts or re.search(r"[^0-o]", counts):
            raise UserError(f"{str(counts)[:40]!r} is not a COCO run-length encoding.")
        return cls(counts, size)

    @property
    def empty(self) -> bool:
        """Whether no pixel of a mask of COCO's is set. A malformed mask is not empty: to decode it fails."""
        with suppress(UserError):
            return self.size is not None and not coco_runs(self.text, *self.size)[1::2].any()
        return False

    def decode(self, height: int, width: int) -> Mask:
        """Decode the mask (H, W); UserError if it is malformed, or does not fit an image of this size."""
        if self.size is None:
            return mask_of(_siim_runs(self.text, height * width), height, width)
        if self.size != (height, width):
            raise UserError(
                f"A mask of {self.size[1]} x {self.size[0]} pixels does not fit an image of {width} x {height}."
            )
        return mask_of(coco_runs(self.text, height, width), height, width)


Drawn = Shape | tuple[Shape, ...] | RunLengths | Path
"""An annotated item: a shape; several that are one item, such as a lesion that something hides in the middle; a mask in
run lengths; or the path of a mask image, whose pixels above 0 belong to the item."""


@dataclass(frozen=True)
class Annotation:
    """One item as one reader drew it; `finding` is the canonical name."""

    finding: str
    drawn: Drawn

    def parts(self, height: int, width: int) -> Sequence[Shape]:
        """Return what is drawn on an image of this size; UserError if it is malformed or does not fit."""
        if isinstance(self.drawn, RunLengths):
            return [Shape.from_mask(self.drawn.decode(height, width))]
        if isinstance(self.drawn, Path):
            return [Shape.from_mask(_read_mask(self.drawn, height, width))]
        shapes = self.drawn if isinstance(self.drawn, tuple) else (self.drawn,)
        return [shape.on(height, width) for shape in shapes]


def one_item(parts: Sequence[Shape]) -> Shape:
    """Return a shape of the pixels of all parts: their mask if there are several."""
    return parts[0] if len(parts) == 1 else Shape.from_mask(union(parts, *parts[0].size))


def image_size(height: object, width: object) -> tuple[int, int]:
    """Return height and width that an annotation file states; UserError if no image has such a size."""
    if type(height) is not int or type(width) is not int or min(height, width) < 1 or height * width > MAX_PIXELS:
        raise UserError(f"An image of {width!r:.20} x {height!r:.20} pixels is not possible.")
    return height, width


def reader_agreement(items: Iterable[Shape]) -> tuple[float, float] | None:
    """Return how well the readers of one finding agree: the mean Dice and IoU between the regions of any two.

    A reader's region is the union of what that reader drew. None unless several drew something.
    """
    by_reader: defaultdict[str, list[Shape]] = defaultdict(list)
    for item in items:
        if item.reader:
            by_reader[item.reader].append(item)
    drawn = [union(mine, *mine[0].size) for mine in by_reader.values()] if len(by_reader) > 1 else []
    scores = []
    for one, other in combinations(drawn, 2):
        pixels = [np.array(np.count_nonzero(part)) for part in (one, one & other, other)]
        scores.append((numbers.dice(*pixels), numbers.iou(*pixels)))
    if not scores:
        return None
    dice, iou = np.mean(scores, axis=0).tolist()
    return dice, iou


def _read_mask(path: Path, height: int, width: int) -> Mask:
    mask = decode_image(path) > 0
    if mask.shape != (height, width):
        raise UserError(
            f"{path} is {mask.shape[1]} x {mask.shape[0]} pixels, the image that it annotates {width} x {height}: one "
            "of the two was resized. Take both in their original size."
        )
    return mask


def _siim_runs(row: str, pixels: int) -> NDArray[np.int64]:
    """Run lengths of SIIM-ACR's relative encoding; UserError if malformed.

    The row is pairs `offset length`: so many pixels off since the end of the previous run, then so many on, over the
    image read column by column, each from top to bottom. Followed by the remainder of the image, these numbers are the
    uncompressed counts of COCO. (They are not the absolute, 1-based starts of other Kaggle competitions, which decode
    without an error into a wrong mask.)
    """
    numbers = row.split()
    said = f"The run-length encoding {row if len(row) <= 40 else f'{row[:40]}...'!r}"
    # `int` raises its own ValueError for numbers of thousands of digits.
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
    return np.array([*counts, pixels - end])
