"""Annotated regions on the evaluation grid as exact shares of covered pixels, from which any gamma is cut.

Needs no torch, so that reports start fast.
"""

from __future__ import annotations

import hashlib
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

__all__ = ["Coverage", "area_and_centre", "region_digest"]


class Coverage:
    """Which share of each grid pixel a region covers.

    Most pixels are covered wholly or not at all, so only the others' shares are kept. (No dataclass, for Lightning
    would go through its parts, and copy them, whenever it looks for tensors in a batch.)

    Args:
        shape: (H, W) of the grid.
        whole: Pixels covered wholly, a bit each, row by row, most significant bit first (B,) uint8.
        partial: Positions of the partly covered pixels, row by row, ascending (P,) uint32.
        share: Their covered shares in (0, 1), (P,) float64.
    """

    __slots__ = ("partial", "shape", "share", "whole")

    def __init__(
        self,
        shape: tuple[int, int],
        whole: NDArray[np.uint8],
        partial: NDArray[np.uint32],
        share: NDArray[np.float64],
    ) -> None:
        self.shape = shape
        self.whole = whole
        self.partial = partial
        self.share = share

    @classmethod
    def of(cls, region: NDArray[np.bool_], size: tuple[int, int]) -> Self:
        """Measure a region.

        Areas are counted in integers and therefore exact: the share of a pixel is the float64 nearest to it.

        Args:
            region: (h, w) bool, in the frame of the annotation, which shows the same extent as the grid.
            size: (H, W) of the grid.
        """
        if region.shape == size:
            return cls(size, np.packbits(region), np.zeros(0, np.uint32), np.zeros(0))
        covered = _covered_area(region, size).ravel()
        partial = np.flatnonzero((covered > 0) & (covered < region.size)).astype(np.uint32)
        return cls(size, np.packbits(covered == region.size), partial, covered[partial] / region.size)

    @classmethod
    def checked(
        cls, shape: tuple[int, int], whole: NDArray[np.uint8], partial: NDArray[np.uint32], share: NDArray[np.float64]
    ) -> Self:
        """Make a coverage of what a file says.

        Raises:
            ValueError: The parts do not fit together.
        """
        pixels = shape[0] * shape[1]
        if min(shape) < 1 or len(whole) != (pixels + 7) // 8 or partial.shape != share.shape:
            raise ValueError("the parts of a region do not fit together")
        if len(partial) and not (partial.max() < pixels and share.min() > 0 and share.max() < 1):
            raise ValueError("a region covers pixels or shares that there are not")
        return cls(shape, whole, partial, share)

    def __eq__(self, other: object) -> bool:
        """Tell whether another coverage is the same, to the bit."""
        if not isinstance(other, Coverage) or self.shape != other.shape:
            return False
        parts = ((self.whole, other.whole), (self.partial, other.partial), (self.share, other.share))
        return all(np.array_equal(one, another) for one, another in parts)

    def at(self, gamma: float) -> NDArray[np.bool_]:
        """Return the region (H, W): the pixels covered by at least the share `gamma`.

        A region too small to reach that anywhere keeps the pixels that it covers most, so no annotated lesion is lost.

        Args:
            gamma: In (0, 1].
        """
        region = np.unpackbits(self.whole, count=self.shape[0] * self.shape[1]).view(np.bool_)
        region[self.partial[self.share >= gamma]] = True
        if len(self.share) and not region.any():
            region[self.partial[self.share == self.share.max()]] = True
        return region.reshape(self.shape)


def area_and_centre(region: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return the share of the grid that a region covers and its centre of mass.

    Args:
        region: (H, W), not empty.

    Returns:
        The share, and x and y from 0 at the first edge to 1 at the last. Sums of whole numbers, so exact but for the
        last division.
    """
    height, width = region.shape
    across, down = region.sum(axis=0, dtype=np.int64), region.sum(axis=1, dtype=np.int64)
    pixels = int(across.sum())
    x, y = (int(line @ np.arange(len(line))) / pixels for line in (across, down))
    return pixels / region.size, (x + 0.5) / width, (y + 0.5) / height


def region_digest(region: NDArray[np.bool_]) -> str:
    """Return the digest by which a region (H, W) on the evaluation grid is known: 16 hexadecimal digits.

    They are the first of the SHA-256 of `H W` in decimal with a line break, followed by the pixels, a bit each, row by
    row, most significant bit first.
    """
    height, width = region.shape
    return hashlib.sha256(f"{height} {width}\n".encode() + np.packbits(region).tobytes()).hexdigest()[:16]


def _covered_area(region: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.int64]:
    """Count the area of `region` (h, w) in each of H x W equal cells, in units of 1 / (H W) pixel: (H, W) int64.

    The summed-area table of a mask is bilinear within a pixel, so reading it at the corners of the cells, which lie at
    whole multiples of 1 / H and 1 / W, takes integer weights and is exact. A full cell counts h * w.
    """
    table = cv2.integral(region.view(np.uint8)).astype(np.int64)
    for axis, count in enumerate(size):
        cells = region.shape[axis]
        whole, part = np.divmod(np.arange(count + 1) * cells, count)
        part = part.reshape(-1, *[1] * (1 - axis))
        upper = table.take(np.minimum(whole + 1, cells), axis)
        table = table.take(whole, axis) * (count - part) + upper * part
    return np.diff(np.diff(table, axis=0), axis=1)
