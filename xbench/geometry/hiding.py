"""Hide a region of a radiograph, or a control of the same shape, in its 8-bit gray pixels.

Both are filled by the same rule, so the difference in score is due to the content of the region and not to the hole.
Blur and inpainting use floats, so another build of OpenCV may round a gray level differently.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

Fill = Literal["mean", "blur", "inpaint", "noise", "black"]
"""What replaces hidden pixels; `Hiding.fill` defines each."""

Image = NDArray[np.uint8]
Mask = NDArray[np.bool_]


def dilated(region: Mask) -> Mask:
    """Return the pixels within 2% of the shorter side of a region (H, W) bool, not empty; exact, in integers."""
    side, result = min(region.shape), np.zeros_like(region)
    box = _box(region, side // 50)
    distance = cv2.distanceTransform((~region[box]).view(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    result[box] = np.rint(np.square(distance, dtype=np.float64)) * 2500 <= side**2
    return result


def control_of(hidden: Mask, forbidden: Mask, name: str) -> Mask | None:
    """Return the control (H, W) of a hidden region, or None if it fits nowhere.

    Mirror the region at the vertical midline of the image, then apply the nearest integer shift that keeps it inside
    the image and apart from `hidden` and `forbidden`: least |dx|, then least |dy|. The SHA-256 of the name breaks ties:
    its first bit prefers right (1) or left (0), its second down (1) or up (0).

    Args:
        hidden: The dilated region (H, W) bool, not empty.
        forbidden: Union of all annotated regions of the image (H, W) bool.
        name: The image's name.
    """
    (height, width), mirrored, blocked = hidden.shape, hidden[:, ::-1], hidden | forbidden
    if not (mirrored & blocked).any():
        return mirrored.copy()
    first = hashlib.sha256(name.encode()).digest()[0]
    right, down = (1 if first & bit else -1 for bit in (128, 64))
    column, start, end = _runs(mirrored)
    low, high = -int(start.min()), height - int(end.max())
    # The blocked runs of each column, padded with runs that no shift can reach.
    places, starts, ends = _runs(blocked)
    count = np.bincount(places, minlength=width)
    nth = np.arange(len(places)) - (np.cumsum(count) - count)[places]
    run_start, run_end = np.full((2, int(count.max()), width), 2 * height)
    run_start[nth, places], run_end[nth, places] = starts, ends
    nearest: tuple[int, int] | None = None
    for dx in sorted(range(-int(column.min()), width - int(column.max())), key=lambda dx: (abs(dx), dx * right < 0)):
        if nearest and abs(dx) > abs(nearest[0]):
            break
        # Rows s to e - 1, moved by dy, meet S to E - 1 if S - e < dy < E - s.
        bounds = run_start[:, column + dx] - end + 1, run_end[:, column + dx] - start
        begun, ended = (np.bincount((np.clip(at, low, high + 1) - low).ravel(), None, high - low + 2) for at in bounds)
        free = np.flatnonzero(np.cumsum(begun - ended)[:-1] == 0) + low
        if len(free):
            dy = min(free.tolist(), key=lambda dy: (abs(dy), dy * down < 0))
            if nearest is None or abs(dy) < abs(nearest[1]):
                nearest = dx, dy
    return None if nearest is None else np.roll(mirrored, nearest, (1, 0))


def image_digest(image: Image) -> str:
    """Return 16 hexadecimal digits: the start of the SHA-256 of `H W`, a newline and the pixels (H, W) row by row."""
    return hashlib.sha256("{} {}\n".format(*image.shape).encode() + image.tobytes()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Hiding:
    """Changed versions of one radiograph (H, W) uint8, whose name seeds the noise.

    All pixels of the mask count as hidden, whatever the fill.
    """

    image: Image
    name: str

    def fill(self, mask: Mask, hidden: Mask, fill: Fill) -> Image:
        """Return the image (H, W) with the pixels of a mask (H, W) bool replaced.

        - `mean`: mean gray outside `hidden`.
        - `blur`: the image blurred with a sigma of 1/20 of its shorter side, blended in through the mask softened with
          a sigma of 1% of that side and cut off at `dilated(mask)`, so a control's blur ends before the region.
        - `inpaint`: Telea's method (https://doi.org/10.1080/10867651.2004.10487596) with a radius of 3 pixels.
        - `noise`: gray levels drawn with replacement from `dilated(mask)` outside `hidden` and the mask; from all
          pixels outside if there are none.
        - `black`: 0.

        If no pixel is outside, `inpaint` and `noise` equal `mean`, the mean gray of the whole image. The mask is the
        dilated region `hidden` or its control.
        """
        result, outside = self.image.copy(), ~(hidden | mask)
        if fill == "black":
            result[mask] = 0
        elif fill == "blur":
            reach, margin = dilated(mask), min(mask.shape) // 50
            box = _box(reach, margin)
            soft = cv2.GaussianBlur(mask[box].astype(np.float64), [2 * margin + 1] * 2, min(mask.shape) / 100)
            change = soft * reach[box] * (self._blurred[box].astype(np.float64) - self.image[box])
            result[box] = np.rint(self.image[box] + change)
        elif fill == "mean" or not outside.any():
            result[mask] = self._mean(~hidden)
        elif fill == "inpaint":
            box = _box(mask, 12)  # Telea's method reads pixels up to 4 from the mask
            result[box] = cv2.inpaint(self.image[box], mask[box].view(np.uint8), 3, cv2.INPAINT_TELEA)
        else:
            ring = dilated(mask) & outside
            values = self.image[ring if ring.any() else outside]
            # NumPy keeps a generator's raw bits stable across versions, but not its distributions.
            generator = np.random.PCG64(int.from_bytes(hashlib.sha256(self.name.encode()).digest()))
            result[mask] = values[generator.random_raw(int(mask.sum())) % np.uint64(len(values))]
        return result

    def keep(self, hidden: Mask) -> Image:
        """Return the image (H, W) with all pixels outside `hidden` at their mean gray."""
        return np.where(hidden, self.image, self._mean(~hidden))

    def no_image(self) -> Image:
        """Return an image (H, W) filled with the radiograph's mean gray."""
        return np.full_like(self.image, self._mean(np.ones(self.image.shape, np.bool_)))

    def _mean(self, where: Mask) -> np.uint8:
        values = self.image[where] if where.any() else self.image
        return np.uint8(round(Fraction(int(values.sum(dtype=np.int64)), values.size)))

    @cached_property
    def _blurred(self) -> Image:
        """Blur at 240 pixels on the shorter side: within half a gray level of the blur at full size."""
        sides = self.image.shape[::-1]
        small = [round(side * min(1.0, 240 / min(sides))) for side in sides]
        blurred = cv2.resize(self.image.astype(np.float64), small, interpolation=cv2.INTER_AREA)
        blurred = cv2.GaussianBlur(blurred, (0, 0), min(small) / 20, borderType=cv2.BORDER_REFLECT)
        return np.asarray(np.rint(cv2.resize(blurred, sides, interpolation=cv2.INTER_LINEAR)), np.uint8)


def _box(mask: Mask, margin: int) -> tuple[slice, slice]:
    spans = [np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0)]
    rows, columns = (slice(max(0, span[0] - margin), span[-1] + margin + 1) for span in spans)
    return rows, columns


def _runs(mask: Mask) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return column, first row and end row (exclusive) of each vertical run of pixels, column by column."""
    edges = np.diff(np.pad(mask.T, ((0, 0), (1, 1))).view(np.int8), axis=1)
    column, start = np.nonzero(edges == 1)
    return column, start, np.nonzero(edges == -1)[1]
