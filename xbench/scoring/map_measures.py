"""Everything that the metrics need to know about a raw map and its region, found in one pass, in whole numbers.

docs/numbers.md has the arithmetic, operation by operation. It is implemented twice, to the bit alike: here in PyTorch,
on the host, and in `kernel.py` for CUDA.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.geometry.grid import Upsampling, View, chunk_pixels, runs_of_views, saliency_on_grid, seen_on_grid
from xbench.scoring.pointing_game import places_of, pointing_game, tally
from xbench.scoring.sweep import PixelCounts, histograms, reached
from xbench.types import TieRule

NOT_FINITE, CONSTANT, FIRST_INSIDE = 1, 2, 4
"""Flags: NaN, infinity or a range beyond float32; the same everywhere; the first of tied maxima lies in the region."""

FLAGS, TIED, TIED_INSIDE, SUM_Y, SUM_X, DISTANCE, LOWEST, LOWEST_INSIDE = range(8)
"""What a row of the table begins with: flags, number of tied maxima, of those in the region, sums of their rows and
columns, square of the least distance as in `least_distance`, number of tied minima that the view shows, of those in the
region."""

LOGIT, PROBABILITY, MEASURES = 8, 9, 10
"""Then the bits of two float64 that only travel along, so that all comes back at once; then the histogram outside the
region and the one inside, as of `histograms`."""

MOST_THRESHOLDS = 2048
"""That the kernel counts; its histograms lie in registers."""


@dataclass(frozen=True)
class Measures:
    """Of N pairs, on the host."""

    table: Tensor  # (N, MEASURES + 2 T) int64, as the names above say

    def __getitem__(self, pairs: Tensor) -> Measures:
        return Measures(self.table[pairs])

    @property
    def finite(self) -> Tensor:
        """Whether all cells of the map are finite, and so is their range (N,) bool."""
        return self.table[:, FLAGS] & NOT_FINITE == 0

    @property
    def constant(self) -> Tensor:
        """Whether the map is the same everywhere on the grid (N,) bool."""
        return self.table[:, FLAGS] & CONSTANT != 0

    @property
    def scores(self) -> Tensor:
        """Logits and probabilities (2, N) float64."""
        return self.table[:, LOGIT : PROBABILITY + 1].T.contiguous().view(torch.float64)

    def counts(self) -> PixelCounts:
        """Return the pixels at each threshold."""
        return reached(self.table[:, MEASURES:])

    def hits(self, ties: TieRule) -> Tensor:
        """Return what `pointing_hits` does (N,) float64."""
        first_inside = self.table[:, FLAGS] & FIRST_INSIDE != 0
        return pointing_game(self.table[:, TIED], self.table[:, TIED_INSIDE], first_inside, ties)

    def minimum_hits(self) -> Tensor:
        """Return the share of the tied minima in the region (N,) float64; pixels that no model saw are none."""
        return self.table[:, LOWEST_INSIDE].to(torch.float64) / self.table[:, LOWEST]

    def peaks(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return where maps are highest on grids of height and width (N, 2): x, y and distance to the region (3, N).

        x and y are from 0 at the first edge to 1 at the last, the mean of tied places.
        """
        height, width = sizes.T
        y, x, tied, least = self.table[:, [SUM_Y, SUM_X, TIED, DISTANCE]].numpy().T
        return np.stack([(x / tied + 0.5) / width, (y / tied + 0.5) / height, np.sqrt(least) / (height * width)])


Measure = Callable[[Tensor, Sequence[Tensor | None], Sequence[View], int, Upsampling, tuple[Tensor, Tensor]], Tensor]
"""Raw maps, regions, views, thresholds, upsampling, logits and probabilities to a table, as `measure_plain` does."""


class Measurer:
    """Measures pairs: those on CUDA by the kernel, which has to prove itself first, all others on the host.

    The first pairs that the kernel measures are measured on the host as well. If it fails, or the tables differ by a
    bit, that is warned of, and the host measures from then on; `problem` says why.
    """

    def __init__(self, kernel: Measure | None = None) -> None:
        self._kernel = kernel
        self._proven = False
        self.problem: str | None = None

    def __call__(
        self,
        saliency: Tensor,
        regions: Sequence[Tensor | None],
        views: Sequence[View],
        thresholds: int,
        mode: Upsampling = "bilinear",
        scores: tuple[Tensor, Tensor] | None = None,
    ) -> Measures:
        """Measure N raw maps (N, h, w) of any floating dtype at T thresholds, from 2 to `MAX_THRESHOLDS`.

        Regions (H, W) bool are not empty, of any size, and None where only the flag of what is not finite and the
        scores are wanted: logits and probabilities (N,), which come back with the rest as float64.
        """
        scores = scores or (saliency.new_zeros(len(saliency)),) * 2
        given = saliency.detach(), regions, views, thresholds, mode, scores
        kernel = (self._kernel or _kernel(saliency.device.type)) if thresholds <= MOST_THRESHOLDS else None
        if kernel is None or self.problem is not None or not len(saliency):
            return Measures(measure_plain(*given))
        try:
            table = kernel(*given)
        except Exception as error:  # compilers and drivers raise what they like
            self.problem = f"it failed: {type(error).__name__}: {error}".splitlines()[0]
        if self.problem is None and not self._proven:
            expected = measure_plain(*given)
            different = int((table != expected).any(1).sum())
            self._proven = any(region is not None for region in regions)
            if different:
                self.problem = f"its measures of {different} of the first {len(table)} maps are not those of the host"
        if self.problem is None:
            return Measures(table)
        warnings.warn(
            f"The metrics' kernel is not used, for {self.problem}. Maps are measured on the host instead, to the same "
            "numbers, more slowly.",
            stacklevel=2,
        )
        return Measures(measure_plain(*given))


@lru_cache
def _kernel(device: str) -> Measure | None:
    """The kernel for a kind of device; None where there is none."""
    if device != "cuda" or torch.version.hip is not None:
        return None
    try:
        from xbench.scoring.kernel import measure
    except ImportError:
        return None
    return partial(measure, MEASURES)


def measure_plain(
    saliency: Tensor,
    regions: Sequence[Tensor | None],
    views: Sequence[View],
    thresholds: int,
    mode: Upsampling,
    scores: tuple[Tensor, Tensor],
) -> Tensor:
    """Measure on the host, as many pairs at a time as its cache holds; return the table."""
    maps = saliency.to("cpu", torch.float32)
    table = torch.zeros(len(maps), MEASURES + 2 * thresholds, dtype=torch.int64)
    for column, score in zip((LOGIT, PROBABILITY), scores, strict=True):
        table[:, column] = score.to("cpu", torch.float64).view(torch.int64)
    # Of a map with NaN the least and the greatest value are NaN, which compares as false.
    finite = torch.cat([part.amax((1, 2)) - part.amin((1, 2)) for part in maps.split(64)] or [maps]) < torch.inf
    table[:, FLAGS] = torch.where(finite, 0, NOT_FINITE)
    for pairs, inside in _portions(regions, finite.tolist()):
        first = pairs[0]
        together = pairs == list(range(first, first + len(pairs)))
        some = maps[first : first + len(pairs)] if together else maps[pairs]
        rows = _measure(some, inside, [views[pair] for pair in pairs], thresholds, mode)
        rows[:, LOGIT : PROBABILITY + 1] = table[pairs, LOGIT : PROBABILITY + 1]
        table[pairs] = rows
    return table


def _portions(regions: Sequence[Tensor | None], wanted: list[bool]) -> Iterator[tuple[list[int], Tensor]]:
    """Pairs with a region, a cache full at a time: their places, and their regions (n, H, W) bool on the host."""
    scored = [(pair, region) for pair, region in enumerate(regions) if region is not None and wanted[pair]]
    for size, group in groupby(scored, lambda one: one[1].shape):
        same = list(group)
        # A few times what counting holds in the cache: what happens once a portion costs less.
        step = max(1, 3 * chunk_pixels(torch.device("cpu")) // size.numel())
        for start in range(0, len(same), step):
            some = same[start : start + step]
            yield [pair for pair, _ in some], torch.stack([region for _, region in some]).cpu()


def _measure(maps: Tensor, inside: Tensor, views: Sequence[View], thresholds: int, mode: Upsampling) -> Tensor:
    """Rows of the table for maps (n, h, w) float32, all finite, and regions (n, H, W) bool, on the host."""
    size = (inside.shape[1], inside.shape[2])
    rows = torch.zeros(len(maps), MEASURES + 2 * thresholds, dtype=torch.int64)
    on_grid = saliency_on_grid(maps, views, size, mode)

    row_peak = on_grid.amax(2)
    high = row_peak.amax(1, keepdim=True)
    tied = places_of(on_grid, row_peak, high)
    rows[:, TIED], rows[:, TIED_INSIDE], first_inside = tally(tied, inside)
    for column, place in ((SUM_Y, tied[1]), (SUM_X, tied[2])):
        rows[:, column].index_add_(0, tied[0], place)

    low = torch.empty_like(high)
    for view, same in runs_of_views(views):
        seen = (same, *seen_on_grid(view, size))
        row_least = on_grid[seen].amin(2)
        low[same] = row_least.amin(1, keepdim=True)
        lowest = places_of(on_grid[seen], row_least, low[same])
        rows[same, LOWEST], rows[same, LOWEST_INSIDE], _ = tally(lowest, inside[seen])

    span = high - low
    rows[:, FLAGS] = torch.where(span[:, 0] == 0, CONSTANT, 0) + torch.where(first_inside, FIRST_INSIDE, 0)
    stretched = on_grid.sub_(low[..., None]).div_(span.masked_fill(span == 0, 1.0)[..., None])
    rows[:, MEASURES:] = counted = histograms(stretched, inside, thresholds)

    missed = (rows[:, TIED_INSIDE] == 0) & (counted[:, thresholds:].sum(1) > 0)
    places, ends = torch.stack(tied[1:], 1).numpy(), rows[:, TIED].cumsum(0).tolist()
    for pair in missed.nonzero()[:, 0].tolist():
        mine = places[ends[pair] - int(rows[pair, TIED]) : ends[pair]]
        rows[pair, DISTANCE] = least_distance(mine, inside[pair].numpy())
    return rows


_DISTANCES = 2**22
"""Distances in memory: 100 MB with what they are made of."""
_FEW = 64
"""Tied maxima whose distances cost less than finding their border."""


def least_distance(tied: NDArray[np.int64], region: NDArray[np.bool_]) -> int:
    """Return the square of the distance from the nearest of the tied maxima to the nearest pixel of the region.

    It lies between the centres of pixels on the film taken as a unit square, in whole numbers: (dx H)^2 + (dy W)^2 with
    dx and dy in pixels. The root, over H W, is the distance; 0 where a tied maximum lies in the region. `tied` are rows
    and columns (K, 2), at least one; the region (H, W) is not empty.

        >>> region = np.array([[False, False, False, True], [False, False, False, False]])
        >>> (least_distance(np.array([[0, 1], [1, 0]]), region) ** 0.5) / (2 * 4)
        0.5
    """
    height, width = region.shape
    if region[tied[:, 0], tied[:, 1]].any():
        return 0
    # Between sets of pixels that do not meet, the nearest pixels lie on the borders of both.
    down, across = _border(region)
    if len(tied) > _FEW:
        peak = np.zeros_like(region)
        peak[tied[:, 0], tied[:, 1]] = True
        tied = np.stack(_border(peak), 1)
    step = max(1, _DISTANCES // len(down))
    parts = (tied[start : start + step, :, None] for start in range(0, len(tied), step))
    return min(
        int((((part[:, 0] - down) * width) ** 2 + ((part[:, 1] - across) * height) ** 2).min()) for part in parts
    )


def _border(pixels: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the pixels (H, W) with a neighbour left, right, above or below that is not one of them."""
    left, top, width, height = cv2.boundingRect(pixels.view(np.uint8))
    box = pixels[top : top + height, left : left + width]
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    within = cv2.erode(box.view(np.uint8), cross, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    down, across = np.divmod(np.flatnonzero(box & (within == 0)), width)
    return down + top, across + left
