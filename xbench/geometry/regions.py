"""Annotated regions on the evaluation grid as exact shares of covered pixels, from which any gamma is cut.

A region that reaches gamma nowhere keeps the pixels that it covers most, so none is lost. An annotation that covers no
pixel at all is an empty region: `xbench/data/samples.py` drops it, so that grounding is not scored on it, and notes
`covers_nothing`. Needs no torch, so that reports start fast.
"""

from __future__ import annotations

import hashlib
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray


class Coverage:
    """Which share of each grid pixel a region covers.

    Most pixels are covered wholly or not at all, so only the others' shares are kept. (No dataclass, for Lightning
    would go through its parts, and copy them, whenever it looks for tensors in a batch.)

    Args:
        shape: (H, W) of the grid.
        whole: Pixels covered wholly, a bit each, row by row, most significant bit first (B,) uint8.
        partial: Positions of the partly covered pixels, row by row, ascending (P,) uint32.
        share: Their covered shares in (0, 1), (P,) float64.
        kept: Those of them that belong to the region at every gamma, because a connected part of it covers no pixel
            more than them, ascending (Q,) uint32.
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
        """Measure a region (h, w) bool, in the frame of the annotation, on a grid of the same extent of (H, W) pixels.

        Areas are counted in integers and therefore exact: the share of a pixel is the float64 nearest to it.
        """
        if region.shape == size:
            return cls(size, np.packbits(region), np.zeros(0, np.uint32), np.zeros(0), np.zeros(0, np.uint32))
        # numpy lets a bool array hold other bytes than 0 and 1, as `mask.view(bool)` of a mask of 255 does.
        region = region.view(np.uint8) != 0
        covered = _covered_area(region, size)
        whole, kept = covered == region.size, _best_of_parts(region, covered)
        covered = covered.ravel()
        partial = np.flatnonzero((covered > 0) & (covered < region.size)).astype(np.uint32)
        return cls(size, np.packbits(whole), partial, covered[partial] / region.size, kept)

    def checked(self) -> Self:
        """Return the coverage, made of what a file says; ValueError if its parts do not fit together."""
        pixels, partial, share, kept = self.shape[0] * self.shape[1], self.partial, self.share, self.kept
        if min(self.shape) < 1 or len(self.whole) != (pixels + 7) // 8 or partial.shape != share.shape:
            raise ValueError("the parts of a region do not fit together")
        if len(partial) and not (partial.max() < pixels and share.min() > 0 and share.max() < 1):
            raise ValueError("a region covers pixels or shares that there are not")
        if (len(kept) and not np.isin(kept, partial).all()) or (
            len(partial) and not len(kept) and not self.whole.any()
        ):
            raise ValueError("a region keeps pixels that it does not cover, or none")
        return self

    def __eq__(self, other: object) -> bool:
        parts = self.__slots__
        return isinstance(other, Coverage) and all(
            np.array_equal(getattr(self, part), getattr(other, part)) for part in parts
        )

    def at(self, gamma: float) -> NDArray[np.bool_]:
        """Return the region (H, W): the pixels covered by at least the share `gamma`, in (0, 1].

        Each connected part of it also has the pixels that it covers most, so no annotated lesion is lost, however large
        the others are.
        """
        region = np.unpackbits(self.whole, count=self.shape[0] * self.shape[1]).view(np.bool_)
        region[self.partial[self.share >= gamma]] = True
        region[self.kept] = True
        return region.reshape(self.shape)


def covers_nothing(finding: str) -> str:
    """Return the note on an image whose annotation of a finding that is present leaves no region."""
    return f"the annotation of {finding} covers no pixel, so grounding is not scored on it"


def area_and_centre(region: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return the share of the grid that a region (H, W), not empty, covers, and x and y of its centre of mass.

    These go from 0 at the first edge to 1 at the last. Sums of whole numbers, so exact but for the last division.
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


def _best_of_parts(region: NDArray[np.bool_], covered: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the grid pixels that a connected part of `region` (h, w) covers most, of parts that cover none wholly.

    Pixels connect to all eight neighbours. Of a part that covers a grid pixel wholly nothing is returned, for such a
    pixel belongs to the region at any gamma. `covered` is of `_covered_area`.
    """
    count, labels = cv2.connectedComponents(region.view(np.uint8), connectivity=8)
    small = np.ones(count, np.bool_)
    small[0] = False
    # A grid pixel that is covered wholly lies in one part: the one at its centre.
    sides = tuple(zip(region.shape, covered.shape, strict=True))
    centres = ((2 * np.arange(pixels) + 1) * cells // (2 * pixels) for cells, pixels in sides)
    small[labels[np.ix_(*centres)][covered == region.size]] = False
    if not small.any():
        return np.zeros(0, np.uint32)
    # Each of their pixels with every grid pixel that it overlaps, and the area that the two share.
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
    # Sums of whole numbers below 2**53, and so exact.
    area = np.bincount(place, np.concatenate(areas))
    part, pixel = np.divmod(pair, covered.size)
    most = np.zeros(count)
    np.maximum.at(most, part, area)
    return np.unique(pixel[area == most[part]]).astype(np.uint32)


def _overlaps(places: NDArray[np.int64], cells: int, pixels: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the grid pixels of one axis that cells (N,) overlap, the first, second ... of each, and by how much.

    In units of 1 / (cells * pixels) of the axis; 0 where a cell overlaps fewer.
    """
    first, last = places * pixels // cells, ((places + 1) * pixels - 1) // cells
    found = []
    for step in range(int((last - first).max()) + 1):
        pixel = first + step
        ends = np.minimum((places + 1) * pixels, (pixel + 1) * cells)
        found.append((pixel, np.maximum(ends - np.maximum(places * pixels, pixel * cells), 0)))
    return found
