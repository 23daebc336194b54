"""Hide a region of a radiograph, or a control of the same shape, in the radiograph's own 8-bit grey pixels.

Both are filled by the same rule, so what a score loses for the region alone is due to what the region shows, not to the
hole. Blur and inpainting compute with floats, so another build of OpenCV may round a grey level the other way.
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
    """Return the pixels at most 2 % of the shorter side away from a region (H, W) bool, which may not be empty.

    Squared distances are whole numbers, so nothing is rounded. A radius below 1 pixel (a side below 50) adds nothing.
    """
    side, result = min(region.shape), np.zeros_like(region)
    box = _box(region, side // 50)
    # OpenCV measures the distance to the nearest zero.
    distance = cv2.distanceTransform((~region[box]).view(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    result[box] = np.rint(np.square(distance, dtype=np.float64)) * 2500 <= side**2
    return result


def control_of(hidden: Mask, forbidden: Mask, name: str) -> Mask | None:
    """Return the control (H, W) of a hidden region, or None if there is no place for one.

    The region is mirrored at the vertical midline of the image, then moved by the nearest whole shift at which it lies
    inside the image and shares no pixel with `hidden` or `forbidden`: the least |dx|, then the least |dy|. Between
    equals the SHA-256 of the name decides: its first bit prefers right (1) or left, its second down (1) or up.

    Args:
        hidden: The dilated region (H, W) bool, not empty.
        forbidden: All annotated regions of the image together (H, W) bool.
        name: The image's name.
    """
    (height, width), mirrored, blocked = hidden.shape, hidden[:, ::-1], hidden | forbidden
    if not (mirrored & blocked).any():
        return mirrored.copy()
    first = hashlib.sha256(name.encode()).digest()[0]
    right, down = (1 if first & bit else -1 for bit in (128, 64))
    column, start, end = _runs(mirrored)
    low, high = -int(start.min()), height - int(end.max())
    # The blocked runs of each column, padded with runs that no shift can meet.
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
    """Return the first 16 hexadecimal digits of the SHA-256 of `H W`, a line break and the pixels (H, W) in rows."""
    return hashlib.sha256("{} {}\n".format(*image.shape).encode() + image.tobytes()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Hiding:
    """Changed versions of one radiograph. The mask counts as hidden, whole, whatever the fill.

    Args:
        image: The radiograph (H, W) uint8.
        name: The image's name, which seeds the noise.
    """

    image: Image
    name: str

    def fill(self, mask: Mask, hidden: Mask, fill: Fill) -> Image:
        """Return the image (H, W) with the pixels of a mask replaced.

        - `mean`: the mean grey outside `hidden`.
        - `blur`: the image, blurred by a Gaussian with a sigma of 1/20 of the shorter side, through the mask softened
          by a Gaussian with a sigma of 1 % of it. It ends where `dilated(mask)` does: a control's before the region.
        - `inpaint`: Telea's method (https://doi.org/10.1080/10867651.2004.10487596) with a radius of 3 pixels.
        - `noise`: grey levels drawn with replacement from the pixels of `dilated(mask)` outside `hidden` and the mask;
          from all pixels outside if it has none.
        - `black`: 0.

        If no pixel is left outside, `inpaint` and `noise` are `mean`, and that is the mean grey of the whole image.

        Args:
            mask: The pixels to hide (H, W) bool: `hidden` or its control.
            hidden: The dilated region (H, W) bool, not empty.
            fill: What replaces the pixels.
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
            # NumPy promises the raw bits of a generator for all versions, but not its distributions.
            generator = np.random.PCG64(int.from_bytes(hashlib.sha256(self.name.encode()).digest()))
            result[mask] = values[generator.random_raw(int(mask.sum())) % np.uint64(len(values))]
        return result

    def keep(self, hidden: Mask) -> Image:
        """Return the image (H, W) with all pixels but those of `hidden` at the mean grey outside `hidden`."""
        return np.where(hidden, self.image, self._mean(~hidden))

    def no_image(self) -> Image:
        """Return an image (H, W) of the radiograph's mean grey."""
        return np.full_like(self.image, self._mean(np.ones(self.image.shape, np.bool_)))

    def _mean(self, where: Mask) -> np.uint8:
        """Return the mean grey of some pixels, or of all if there are none: a whole level, half to even."""
        values = self.image[where] if where.any() else self.image
        return np.uint8(round(Fraction(int(values.sum(dtype=np.int64)), values.size)))

    @cached_property
    def _blurred(self) -> Image:
        """Blur at 240 pixels on the shorter side, which is within half a grey level of the blur at full size."""
        sides = self.image.shape[::-1]
        small = [round(side * min(1.0, 240 / min(sides))) for side in sides]
        blurred = cv2.resize(self.image.astype(np.float64), small, interpolation=cv2.INTER_AREA)
        blurred = cv2.GaussianBlur(blurred, (0, 0), min(small) / 20, borderType=cv2.BORDER_REFLECT)
        return np.asarray(np.rint(cv2.resize(blurred, sides, interpolation=cv2.INTER_LINEAR)), np.uint8)


def _box(mask: Mask, margin: int) -> tuple[slice, slice]:
    """Return the smallest box that has all pixels of a mask, and a margin around it inside the image."""
    spans = [np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0)]
    rows, columns = (slice(max(0, span[0] - margin), span[-1] + margin + 1) for span in spans)
    return rows, columns


def _runs(mask: Mask) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the column, the first row and the row after the last of each vertical run of pixels, column by column."""
    edges = np.diff(np.pad(mask.T, ((0, 0), (1, 1))).view(np.int8), axis=1)
    column, start = np.nonzero(edges == 1)
    return column, start, np.nonzero(edges == -1)[1]
