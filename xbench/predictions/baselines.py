"""Boxes of instruments, the floors and ceilings of answers: what scores without looking, and the most that can."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xbench.predictions.answer import Answer, Box
from xbench.predictions.conventions import Frame
from xbench.predictions.families import Family

WHOLE_IMAGE = Box(0.0, 0.0, 1.0, 1.0)

_DEFAULT = Box(0.3, 0.3, 0.7, 0.7)  # for its sides, where no boxes are given
_CELLS = 224


def centre_box(elsewhere: Sequence[Box] = ()) -> Box:
    """Return a box in the middle of the image, its width and height the means of a finding's boxes.

    Args:
        elsewhere: The finding's boxes in another split or source than the one that is scored; without any, the box is
            0.4 wide and high.

    Examples:
        >>> centre_box([Box(0, 0, 0.25, 0.5), Box(0, 0, 0.75, 0.5)])
        Box(x0=0.25, y0=0.25, x1=0.75, y1=0.75)
    """
    corners = np.asarray(elsewhere or [_DEFAULT], np.float64)
    width, height = (corners[:, 2:] - corners[:, :2]).mean(axis=0).tolist()
    return Box((1 - width) / 2, (1 - height) / 2, (1 + width) / 2, (1 + height) / 2)


def random_box(seed: int, image_id: str, finding: str, elsewhere: Sequence[Box] = ()) -> Box:
    """Return a box of the size of one of a finding's boxes elsewhere, anywhere in the image.

    It depends on these arguments only, and not on what was drawn before.

    Args:
        seed: Other seeds give other boxes.
        image_id: The image.
        finding: The finding.
        elsewhere: As for `centre_box`.
    """
    digest = hashlib.sha256(f"{seed}\0{image_id}\0{finding}".encode("utf-8", "surrogatepass")).digest()
    random = np.random.default_rng(int.from_bytes(digest))
    sizes = elsewhere or [_DEFAULT]
    box = sizes[int(random.integers(len(sizes)))]
    width, height = box.x1 - box.x0, box.y1 - box.y0
    x, y = random.random() * (1 - width), random.random() * (1 - height)
    return Box(x, y, min(x + width, 1.0), min(y + height, 1.0))


def prior_box(elsewhere: Sequence[Box]) -> Box:
    """Return where a finding usually lies: around what boxes cover at least half as often as what they cover most.

    The image is cut into 224 x 224 cells, and a box covers those whose centres it holds.

    Args:
        elsewhere: As for `centre_box`, at least one that covers a cell.

    Raises:
        ValueError: No box covers a cell.

    Examples:
        >>> prior_box([Box(0, 0, 0.5, 0.5), Box(0.25, 0.25, 0.5, 1), Box(0.25, 0.25, 0.5, 0.5)])
        Box(x0=0.25, y0=0.25, x1=0.5, y1=0.5)
    """
    covered = np.zeros((_CELLS, _CELLS), np.int64)
    for box in elsewhere:
        x0, y0, x1, y1 = np.ceil(np.asarray(box) * _CELLS - 0.5).astype(int)
        covered[y0:y1, x0:x1] += 1
    if not covered.any():
        raise ValueError("no box covers a cell")
    return outline_boxes(2 * covered >= covered.max(), parts=False)[0]


def outline_boxes(region: NDArray[np.bool_], parts: bool = True) -> list[Box]:
    """Return the boxes around the parts of a region, the most that boxes can score on an outline or a mask.

    Args:
        region: (H, W) of the whole radiograph, not empty.
        parts: Whether each connected part, through corners too, gets a box of its own.
    """
    from scipy import ndimage

    labels = ndimage.label(region, np.ones((3, 3)))[0] if parts else region.astype(np.int64)
    height, width = region.shape
    return [
        Box(columns.start / width, rows.start / height, columns.stop / width, rows.stop / height)
        for rows, columns in ndimage.find_objects(labels)
    ]


def oracle_answer(family: Family, boxes: Sequence[Box], finding: str, frame: Frame, size: tuple[int, int]) -> Answer:
    """Write the true boxes as a model of the family would, and read them back: what rounding, crop and padding cost.

    Args:
        family: Of the model.
        boxes: The true boxes.
        finding: What they show.
        frame: Of the model.
        size: Width and height of the radiograph in pixels.
    """
    return family.read(family.write(boxes, finding, frame, size), "stop", frame, size)
