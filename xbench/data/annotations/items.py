"""Annotations as published, in the pixels of their own frame; masks are decoded when their image is loaded."""

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
    """A run-length encoded mask: COCO's compressed text with a size (height, width), or SIIM-ACR's pairs without."""

    text: str
    size: tuple[int, int] | None = None

    @classmethod
    def of_coco(cls, counts: object, height: object, width: object) -> RunLengths:
        """Return the mask for COCO's counts, compressed or a list of pixels off, on, off ... column by column.

        Raise a UserError for an impossible size, invalid characters, or a list that does not add up to the pixels.
        """
        size = height, width = image_size(height, width)
        if isinstance(counts, list):
            if not all(type(run) is int and run >= 0 for run in counts) or sum(counts) != height * width:
                raise UserError(
                    f"The counts of a run-length encoding are not whole numbers >= 0 that add up to the "
                    f"{height * width} pixels of a mask of {width} x {height}."
                )
            counts = coco.frPyObjects({"counts": counts, "size": [*size]}, *size)["counts"].decode()
        # COCO's decoder accepts any character; valid ones hold six bits, starting at "0".
        if not isinstance(counts, str) or not counts or re.search(r"[^0-o]", counts):
            raise UserError(f"{str(counts)[:40]!r} is not a COCO run-length encoding.")
        return cls(counts, size)

    @property
    def empty(self) -> bool:
        """Whether a COCO mask has no pixel. A malformed mask is not empty: decoding it raises an error."""
        with suppress(UserError):
            return self.size is not None and not coco_runs(self.text, *self.size)[1::2].any()
        return False

    def decode(self, height: int, width: int) -> Mask:
        """Return the mask (H, W); UserError if it is malformed or does not fit an image of this size."""
        if self.size is None:
            return mask_of(_siim_runs(self.text, height * width), height, width)
        if self.size != (height, width):
            raise UserError(
                f"A mask of {self.size[1]} x {self.size[0]} pixels does not fit an image of {width} x {height}."
            )
        return mask_of(coco_runs(self.text, height, width), height, width)


Drawn = Shape | tuple[Shape, ...] | RunLengths | Path
"""An annotated item: a shape; several shapes of one item, such as a lesion interrupted in the middle; a run-length
encoded mask; or the path of a mask image, whose pixels above 0 belong to the item."""


@dataclass(frozen=True)
class Annotation:
    """One item as one reader drew it; `finding` is the canonical name."""

    finding: str
    drawn: Drawn

    def parts(self, height: int, width: int) -> Sequence[Shape]:
        """Return the item as shapes on an image of this size; UserError if it is malformed or does not fit."""
        if isinstance(self.drawn, RunLengths):
            return [Shape.from_mask(self.drawn.decode(height, width))]
        if isinstance(self.drawn, Path):
            return [Shape.from_mask(_read_mask(self.drawn, height, width))]
        shapes = self.drawn if isinstance(self.drawn, tuple) else (self.drawn,)
        return [shape.on(height, width) for shape in shapes]


def one_item(parts: Sequence[Shape]) -> Shape:
    """Return the union of the parts as one shape, a mask if there are several."""
    return parts[0] if len(parts) == 1 else Shape.from_mask(union(parts, *parts[0].size))


def image_size(height: object, width: object) -> tuple[int, int]:
    """Return the height and width stated in an annotation file; UserError if they are impossible."""
    if type(height) is not int or type(width) is not int or min(height, width) < 1 or height * width > MAX_PIXELS:
        raise UserError(f"An image of {width!r:.20} x {height!r:.20} pixels is not possible.")
    return height, width


def reader_agreement(items: Iterable[Shape]) -> tuple[float, float] | None:
    """Return the mean Dice and IoU between any two readers' regions; None with fewer than two readers."""
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
            f"{path} is {mask.shape[1]} x {mask.shape[0]} pixels, but its image is {width} x {height}: one "
            "of them was resized. Use both in their original size."
        )
    return mask


def _siim_runs(row: str, pixels: int) -> NDArray[np.int64]:
    """Return the run lengths of SIIM-ACR: pairs of pixels off since the previous run, and pixels on, by columns.

    With the rest of the image appended, these are COCO's counts. (Absolute starts, as in other Kaggle competitions,
    would be decoded into a wrong mask without an error.)
    """
    numbers = row.split()
    said = f"The run-length encoding {row if len(row) <= 40 else f'{row[:40]}...'!r}"
    # `int` raises ValueError for numbers with thousands of digits.
    if not numbers or not all(number.isascii() and number.isdecimal() and len(number) < 20 for number in numbers):
        raise UserError(f"{said} is not a list of whole numbers >= 0.")
    if len(numbers) % 2:
        raise UserError(f"{said} has {len(numbers)} numbers, which are not pairs of an offset and a length.")
    counts = [int(number) for number in numbers]
    end = sum(counts)
    if end > pixels:
        raise UserError(f"{said} runs to pixel {end} of an image of {pixels}.")
    if 0 in counts[1::2]:
        raise UserError(f"{said} has a run of no pixels.")
    return np.array([*counts, pixels - end])
