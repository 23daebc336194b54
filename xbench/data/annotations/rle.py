"""The run-length encoding of the SIIM-ACR pneumothorax masks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco

from xbench.errors import UserError


def decode_relative_rle(rows: Iterable[str], height: int, width: int) -> NDArray[np.bool_]:
    """Union of masks in the relative run-length encoding of SIIM-ACR.

    A row is pairs `offset length`: so many pixels off since the end of the previous run, then so many on, over the
    image read column by column, each from top to bottom. Followed by the remainder of the image, these numbers are the
    uncompressed counts of COCO, whose tools draw the mask. (They are not the absolute, 1-based starts of other Kaggle
    competitions, which decode without an error into a wrong mask.)

    Args:
        rows: Encoded masks of one image, at least one.
        height: Rows of the image.
        width: Columns of the image.

    Returns:
        (H, W) bool.

    Raises:
        UserError: A row is not pairs of whole numbers >= 0, has an empty run, or runs past the end of the image.

    Example:
        Two runs of a 3 x 3 image: the middle of the first column, and the last pixel.

        >>> decode_relative_rle(["1 1 6 1"], 3, 3).astype(int)
        array([[0, 0, 0],
               [1, 0, 0],
               [0, 0, 1]])
    """
    masks = [{"counts": _counts(row, height * width), "size": [height, width]} for row in rows]
    # Not coco.merge: it never returns, or corrupts memory, when a count is 0 (two runs that touch).
    drawn = coco.decode(coco.frPyObjects(masks, height, width))
    return np.ascontiguousarray(drawn.any(axis=2))


def _counts(row: str, pixels: int) -> list[int]:
    """COCO's uncompressed counts: lengths of the runs, off and on in turn, that add up to the whole image.

    They must add up: pycocotools does not check, and fills what is missing with whatever lies in memory.
    """
    numbers = row.split()
    # Python refuses to read numbers of thousands of digits with an error of its own.
    if not numbers or not all(number.isascii() and number.isdecimal() and len(number) < 20 for number in numbers):
        raise UserError(f"The run-length encoding {_quote(row)} is not a list of whole numbers >= 0.")
    if len(numbers) % 2:
        raise UserError(
            f"The run-length encoding {_quote(row)} has {len(numbers)} numbers; pairs of an offset and a length would "
            "be even."
        )
    counts = [int(number) for number in numbers]
    end = sum(counts)
    if end > pixels:
        raise UserError(f"The run-length encoding {_quote(row)} runs to pixel {end} of an image of {pixels}.")
    if 0 in counts[1::2]:
        raise UserError(f"The run-length encoding {_quote(row)} has a run of no pixels.")
    return [*counts, pixels - end]


def _quote(row: str) -> str:
    return repr(row if len(row) <= 40 else f"{row[:40]}...")
