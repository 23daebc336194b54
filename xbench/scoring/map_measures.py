"""All measurements of a raw map and its region, in one pass, as integers.

Two implementations give the same bits: `host.py`, compiled by numba, and `kernel.py` for CUDA. No multiply is fused.

1. Positions, in float64: `xbench.geometry.grid.places_on_axis`.
2. Values, in float32, along x in every row of cells, then along y: m(c) + s * (m(c + 1) - m(c)), three operations, each
   rounded to nearest; beyond the last cell m(c + 1) is m(c).
3. Extremes: the least and greatest value in the view; pixels outside the view take the least. Tied maxima are the
   pixels equal to the greatest; tied minima the pixels in the view equal to the least. A map is refused if a cell is
   not finite or greatest - least is beyond float32.
4. Stretching, in float32: (value - least) / (greatest - least), with divisor 1 instead of 0 and no flush to zero.
5. Counts: a pixel reaches t = float32(k / (T - 1)) if t <= its stretched value. The search starts at k = the integer
   part of value * (T - 1) + 0.5 or at the rounded product, and subtracts one if t is above the value.
6. Peaks: tied maxima, those in the region, sums of their rows and columns, whether the first in row-major order is in
   the region, and the least (dx * H)**2 + (dy * W)**2 between a tied maximum and the region.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xbench.geometry.grid import TieRule, Upsampling, View, places_on_grid
from xbench.scoring.sweep import reached

NOT_FINITE, CONSTANT, FIRST_INSIDE = 1, 2, 4
"""Flags: NaN, infinity or a range beyond float32; constant; the first of the tied maxima is in the region."""

FLAGS, TIED, TIED_INSIDE, SUM_Y, SUM_X, DISTANCE, LOWEST, LOWEST_INSIDE = range(8)
"""First columns of the table: flags, number of tied maxima, of those in the region, sums of their rows and columns,
squared `least_distance`, number of tied minima in the view, of those in the region."""

LOGIT, PROBABILITY, MEASURES = 8, 9, 10
"""Next columns: bits of two float64 that share the transfer; then the histograms outside and inside the region, for
`reached`; for maps with their own scale, the same two of raw values."""

_NO_LIMITS = np.empty(0, np.float32)

MOST_THRESHOLDS = 2048  # limit of the kernel, which keeps its histograms in registers


@dataclass(frozen=True)
class Measures:
    """Measurements of N pairs, on the host."""

    table: NDArray[np.int64]  # (N, MEASURES + 2 T + 2 L), in the columns above
    limits: int = 0  # L, thresholds of the maps' own scale; 0 without one

    def __getitem__(self, pairs: NDArray[np.int64]) -> Measures:
        return Measures(self.table[pairs], self.limits)

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Whether all cells of the map and their range are finite (N,)."""
        return np.asarray(self.table[:, FLAGS] & NOT_FINITE == 0)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Whether the map is constant on the grid (N,)."""
        return np.asarray(self.table[:, FLAGS] & CONSTANT != 0)

    @property
    def scores(self) -> NDArray[np.float64]:
        """Logits and probabilities (2, N)."""
        return np.ascontiguousarray(self.table[:, LOGIT : PROBABILITY + 1].T).view(np.float64)

    def counts(self, own: bool = False) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return pixels of masks, overlaps and regions, as in `PixelCounts`, or those at the L thresholds (`own`)."""
        end = self.table.shape[1] - 2 * self.limits
        return reached(self.table[:, end:] if own else self.table[:, MEASURES:end])

    def hits(self, ties: TieRule) -> NDArray[np.float64]:
        """Return the results of `pointing_hits` (N,)."""
        first_inside = self.table[:, FLAGS] & FIRST_INSIDE != 0
        return pointing_game(self.table[:, TIED], self.table[:, TIED_INSIDE], first_inside, ties)

    def minimum_hits(self) -> NDArray[np.float64]:
        """Return the share of tied minima in the view that are in the region (N,)."""
        return np.asarray(self.table[:, LOWEST_INSIDE] / self.table[:, LOWEST])

    def peaks(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return x and y in [0, 1], the mean of tied maxima, and distance to the region, on grids (N, 2): (3, N)."""
        height, width = sizes.T
        y, x, tied, least = self.table[:, [SUM_Y, SUM_X, TIED, DISTANCE]].T
        return np.stack([(x / tied + 0.5) / width, (y / tied + 0.5) / height, np.sqrt(least) / (height * width)])


Measure = Callable[[Tensor, Sequence[Tensor | None], Sequence[View], int, Upsampling, tuple[Tensor, Tensor]], Tensor]
"""Function like `measure_on_host`: raw maps, regions, views, thresholds, upsampling, scores to a table."""


class Measurer:
    """Measures pairs on CUDA with the kernel, and all others on the host.

    The kernel's first pairs are also measured on the host. If it fails or differs, `problem` is the reason, and the
    host is used from then on, with a warning.
    """

    def __init__(self, kernel: Measure | None = None) -> None:
        self._kernel, self._proven = kernel, False
        self.problem: str | None = None

    def __call__(
        self,
        saliency: Tensor,
        regions: Sequence[Tensor | None],
        views: Sequence[View],
        thresholds: int,
        mode: Upsampling = "bilinear",
        scores: tuple[Tensor, Tensor] | None = None,
        limits: NDArray[np.float32] = _NO_LIMITS,
    ) -> Measures:
        """Measure N raw maps (N, h, w) of any floating dtype at T thresholds, from 2 to `MAX_THRESHOLDS`.

        Regions (H, W) bool have any size and are not empty; for None, only the flag and the scores are computed. Scores
        are logits and probabilities (N,). `limits` (L,) come from `own_thresholds`; only the host measures these.
        """
        scores = scores or (saliency.new_zeros(len(saliency)),) * 2
        given = saliency.detach(), regions, views, thresholds, mode, scores
        counted = thresholds <= MOST_THRESHOLDS and not len(limits)
        kernel = (self._kernel or _kernel(saliency.device.type)) if counted else None
        if kernel is None or self.problem is not None or not len(saliency):
            return Measures(measure_on_host(*given, limits).numpy(), len(limits))
        try:
            table = kernel(*given)
        except Exception as error:  # compilers and drivers may raise any exception
            self.problem = f"it failed: {type(error).__name__}: {error}".splitlines()[0]
        if self.problem is None and not self._proven:
            different = int((table != measure_on_host(*given)).any(1).sum())
            self._proven = any(region is not None for region in regions)
            if different:
                self.problem = f"its measures of {different} of the first {len(table)} maps differ from the host's"
        if self.problem is None:
            return Measures(table.numpy())
        warnings.warn(
            f"The metrics' kernel is not used because {self.problem}. Maps are measured on the host instead, to the "
            "same numbers, more slowly.",
            stacklevel=2,
        )
        return Measures(measure_on_host(*given).numpy())


@lru_cache
def _kernel(device: str) -> Measure | None:
    if device != "cuda" or torch.version.hip is not None:
        return None
    try:
        from xbench.scoring.kernel import measure
    except ImportError:
        return None
    return partial(measure, MEASURES)


def measure_on_host(
    saliency: Tensor,
    regions: Sequence[Tensor | None],
    views: Sequence[View],
    thresholds: int,
    mode: Upsampling,
    scores: tuple[Tensor, Tensor],
    limits: NDArray[np.float32] = _NO_LIMITS,
) -> Tensor:
    """Measure on the host, in as many threads as PyTorch uses there; return the table."""
    from xbench.scoring.host import measure

    maps = saliency.to("cpu", torch.float32).contiguous()
    width = MEASURES + 2 * (thresholds + len(limits))
    cells, rows = maps.numpy(), np.zeros((len(maps), width), np.int64)
    for column, score in zip((LOGIT, PROBABILITY), scores, strict=True):
        rows[:, column] = score.to("cpu", torch.float64).numpy().view(np.int64)
    every = cells.reshape(len(cells), cells.shape[1] * cells.shape[2])
    with np.errstate(over="ignore", invalid="ignore"):
        # With NaN, the least and greatest values are NaN, so the comparison is false.
        rows[:, FLAGS] = np.where(every.max(1) - every.min(1) < np.inf, 0, NOT_FINITE)
    wanted = [(pair, region) for pair, region in enumerate(regions) if region is not None and not rows[pair, FLAGS]]
    own = MEASURES + 2 * thresholds
    threads = max(1, min(torch.get_num_threads(), len(wanted)))

    def measure_some(first: int) -> None:
        for pair, region in wanted[first::threads]:
            places = places_on_grid(views[pair], region.shape, cells.shape[1:], mode)
            inside, row = region.cpu().contiguous().numpy(), rows[pair]
            row[:LOGIT] = measure(cells[pair], inside, *places, row[MEASURES:own], limits, row[own:])

    if threads == 1:
        measure_some(0)
    else:
        # These threads end with the call, so that a later fork is safe.
        with ThreadPoolExecutor(threads) as pool:
            [*pool.map(measure_some, range(threads))]
    return torch.from_numpy(rows)


def least_distance(tied: NDArray[np.int64], region: NDArray[np.bool_]) -> int:
    """Return the squared distance from the nearest of the tied maxima (K, 2), rows and columns, to the region (H, W).

    As an integer: (dx H)^2 + (dy W)^2 with dx and dy in pixels. Its root, divided by H W, is the distance between pixel
    centers on the film as a unit square. K is at least 1, the region not empty.

        >>> region = np.array([[False, False, False, True], [False, False, False, False]])
        >>> (least_distance(np.array([[0, 1], [1, 0]]), region) ** 0.5) / (2 * 4)
        0.5
    """
    from xbench.scoring import host

    peak = np.zeros(region.shape, np.bool_)
    peak[tied[:, 0], tied[:, 1]] = True
    return 0 if (peak & region).any() else int(host.least_distance(peak, np.ascontiguousarray(region)))


def pointing_game(
    tied: NDArray[np.int64], inside: NDArray[np.int64], first_inside: NDArray[np.bool_], ties: TieRule
) -> NDArray[np.float64]:
    """Return the pointing game (N,) from numbers of tied maxima, of those in the region, and whether the first is."""
    if ties == "share":
        return np.asarray(inside / tied)
    return (inside > 0 if ties == "any" else first_inside).astype(np.float64)


def pointing_hits(maps: Tensor, regions: Tensor, ties: TieRule = "share") -> Tensor:
    """Score the pointing game of each pair (N,): does the maximum of the raw map lie in the region?

    `ties` is `"share"` for the share of tied pixels in the region, `"any"` for 1 if at least one is (as in MedKLIP's
    scripts), or `"first"` for the first pixel in row-major order (as in CheXlocalize). After Zhang et al., IJCV 2018.

    Maps (N, H, W) are float32 on the evaluation grid, not normalized, regions (N, H, W) bool. ValueError if `ties` is
    invalid, the shapes differ, or a map's maximum is not finite.

    Examples:
        >>> maps = torch.tensor([[[9.0, 1.0], [9.0, 0.0]]])
        >>> regions = torch.tensor([[[False, False], [True, True]]])
        >>> [pointing_hits(maps, regions, ties).item() for ties in ("share", "any", "first")]
        [0.5, 1.0, 0.0]
    """
    check_ties(ties)
    if maps.ndim != 3 or maps.shape != regions.shape:
        raise ValueError(f"maps and regions must both be (N, H, W), not {tuple(maps.shape)} and {tuple(regions.shape)}")
    peak = maps.amax((1, 2), keepdim=True)
    if not peak.isfinite().all():
        raise ValueError(f"the maximum of map {(~peak.isfinite()).nonzero()[0, 0]} is not finite")
    tied, inside = (part.flatten(1).cpu().numpy() for part in (maps == peak, regions))
    first_inside = inside[np.arange(len(inside)), tied.argmax(1)]
    hits = pointing_game(tied.sum(1), (tied & inside).sum(1), first_inside, ties)
    return torch.from_numpy(hits).to(maps.device)


def check_ties(ties: TieRule) -> None:
    """Raise a ValueError unless `ties` is one of the three rules."""
    if ties not in get_args(TieRule):
        raise ValueError(f"ties must be one of {', '.join(map(repr, get_args(TieRule)))}, not {ties!r}")
