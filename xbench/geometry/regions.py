"""Annotated regions on the evaluation grid, stored as exact shares of covered pixels and cut at any gamma.

A region that reaches gamma nowhere keeps the pixels that it covers most, so no region is lost. An annotation that
covers no pixel is dropped with the note `covers_nothing`. Needs no torch, so that reports start fast.
"""

from __future__ import annotations

import hashlib
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray


class Coverage:
    """Share of each grid pixel that a region covers; only the shares of partly covered pixels are stored.

    Not a dataclass, because Lightning searches dataclasses in a batch for tensors and copies them.

    Args:
        shape: (H, W) of the grid.
        whole: Fully covered pixels, one bit each, row by row, most significant bit first (B,) uint8.
        partial: Positions of partly covered pixels, row by row, ascending (P,) uint32.
        share: Their covered shares in (0, 1), (P,) float64.
        kept: Those of them that belong to the region at every gamma, because a connected part of it covers no other
            pixel more, ascending (Q,) uint32.
    """

    __slots__ = ("kept", "partial", "shape", "share", "whole")

    def __init__(
        self,
        shape: tuple[int, int],
        whole: NDArray[np.uint8],
        partial: NDArray[np.uint32],
        share: NDArray[np.float64],
        kept: NDArray[np.uint32],
    ) -> None:
        self.shape, self.whole, self.partial, self.share, self.kept = shape, whole, partial, share, kept

    @classmethod
    def of(cls, region: NDArray[np.bool_], size: tuple[int, int]) -> Self:
        """Measure a region (h, w) bool of an image on a grid of (H, W) pixels; only the last division rounds."""
        if region.shape == size:
            return cls(size, np.packbits(region), np.zeros(0, np.uint32), np.zeros(0), np.zeros(0, np.uint32))
        # A bool array can hold bytes other than 0 and 1, for example `mask.view(bool)` of a mask with 255.
        region = region.view(np.uint8) != 0
        covered = _covered_area(region, size)
        whole, kept = covered == region.size, _best_of_parts(region, covered)
        covered = covered.ravel()
        partial = np.flatnonzero((covered > 0) & (covered < region.size)).astype(np.uint32)
        return cls(size, np.packbits(whole), partial, covered[partial] / region.size, kept)

    def checked(self) -> Self:
        """Return this coverage, read from a file; raise a ValueError if its parts are inconsistent."""
        pixels, partial, share, kept = self.shape[0] * self.shape[1], self.partial, self.share, self.kept
        if min(self.shape) < 1 or len(self.whole) != (pixels + 7) // 8 or partial.shape != share.shape:
            raise ValueError("the parts of a region do not fit together")
        if len(partial) and not (partial.max() < pixels and share.min() > 0 and share.max() < 1):
            raise ValueError("a region covers a pixel or a share that does not exist")
        if not np.isin(kept, partial).all() or (len(partial) and not len(kept) and not self.whole.any()):
            raise ValueError("a region keeps no pixel, or one that it does not cover")
        return self

    def __eq__(self, other: object) -> bool:
        equal = (np.array_equal(getattr(self, part), getattr(other, part)) for part in self.__slots__)
        return isinstance(other, Coverage) and all(equal)

    def at(self, gamma: float) -> NDArray[np.bool_]:
        """Return the region (H, W): the pixels covered by at least the share `gamma`, in (0, 1].

        Each connected part also keeps the pixels that it covers most, so that no lesion is lost.
        """
        region = np.unpackbits(self.whole, count=self.shape[0] * self.shape[1]).view(np.bool_)
        region[self.partial[self.share >= gamma]] = True
        region[self.kept] = True
        return region.reshape(self.shape)


def covers_nothing(finding: str) -> str:
    """Return the note on an annotation of a present finding that leaves no region."""
    return f"the annotation of {finding} covers no pixel, so grounding is not scored on it"


def area_and_centre(region: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return the share of the grid that a nonempty region (H, W) covers, and its center of mass x, y in [0, 1]."""
    height, width = region.shape
    across, down = region.sum(axis=0, dtype=np.int64), region.sum(axis=1, dtype=np.int64)
    pixels = int(across.sum())
    x, y = (int(line @ np.arange(len(line))) / pixels for line in (across, down))
    return pixels / region.size, (x + 0.5) / width, (y + 0.5) / height


def region_digest(region: NDArray[np.bool_]) -> str:
    """Return the digest of a region (H, W): 16 hexadecimal digits.

    The start of the SHA-256 of `H W` in decimal, a newline, and the pixels, one bit each, row by row, most significant
    bit first.
    """
    height, width = region.shape
    return hashlib.sha256(f"{height} {width}\n".encode() + np.packbits(region).tobytes()).hexdigest()[:16]


def _covered_area(region: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.int64]:
    """Return the area of `region` (h, w) in each of H x W equal cells, (H, W) int64; a full cell counts h * w.

    The summed-area table of a mask is bilinear within a pixel. Cell corners lie at multiples of 1 / H and 1 / W, so
    their interpolation weights are integers and the areas exact.
    """
    table = cv2.integral(region.view(np.uint8)).astype(np.int64)
    for axis, count in enumerate(size):
        cells = region.shape[axis]
        whole, part = np.divmod(np.arange(count + 1) * cells, count)
        part = part.reshape(-1, *[1] * (1 - axis))
        upper = table.take(np.minimum(whole + 1, cells), axis)
        table = table.take(whole, axis) * (count - part) + upper * part
    return np.diff(np.diff(table, axis=0), axis=1)


def _best_of_parts(region: NDArray[np.bool_], covered: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the grid pixels that a connected part of `region` (h, w) covers most, except for parts that fill a pixel.

    A filled pixel belongs to the region at any gamma. All eight neighbors connect. `covered` is from `_covered_area`.
    """
    count, labels = cv2.connectedComponents(region.view(np.uint8), connectivity=8)
    small = np.ones(count, np.bool_)
    small[0] = False
    # A fully covered grid pixel lies in one part: the one at its center.
    sides = tuple(zip(region.shape, covered.shape, strict=True))
    centers = ((2 * np.arange(pixels) + 1) * cells // (2 * pixels) for cells, pixels in sides)
    small[labels[np.ix_(*centers)][covered == region.size]] = False
    if not small.any():
        return np.zeros(0, np.uint32)
    places = np.nonzero(small[labels])
    part = labels[places].astype(np.int64)
    rows, columns = (_overlaps(along, *side) for along, side in zip(places, sides, strict=True))
    pairs, areas = [], []
    for row, height in rows:
        for column, width in columns:
            shared = np.flatnonzero((height > 0) & (width > 0))
            pairs.append((part * covered.size + row * covered.shape[1] + column)[shared])
            areas.append((height * width)[shared])
    pair, place = np.unique(np.concatenate(pairs), return_inverse=True)
    # Sums of integers below 2**53 are exact.
    area = np.bincount(place, np.concatenate(areas))
    part, pixel = np.divmod(pair, covered.size)
    most = np.zeros(count)
    np.maximum.at(most, part, area)
    return np.unique(pixel[area == most[part]]).astype(np.uint32)


def _overlaps(places: NDArray[np.int64], cells: int, pixels: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the pixels of one axis that each cell overlaps, and by how much, in 1 / (cells * pixels) of the axis."""
    first, last = places * pixels // cells, ((places + 1) * pixels - 1) // cells
    found = []
    for step in range(int((last - first).max()) + 1):
        pixel = first + step
        ends = np.minimum((places + 1) * pixels, (pixel + 1) * cells)
        found.append((pixel, np.maximum(ends - np.maximum(places * pixels, pixel * cells), 0)))
    return found
