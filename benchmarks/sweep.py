"""What the threshold sweep costs: multiples of reading the same pixels once, and of the usual loops.

Seconds differ from machine to machine and with what else runs there, ratios less. So the methods take turns, every
ratio is the median of those within a round, and time is that of the processor, not of the wall: everything runs in
one thread, and on a shared machine long methods would else pay for their interruptions while short ones escape. Most
ratios are multiples of L, the time in which numpy reads the maps (float32) and the regions (uint8) once to find their
maxima: the least that any method must do.

The loops and the sort are slow enough to be timed on a part of the pairs; their time is scaled to all of them. Extra
memory is the growth of the peak resident size of a process that holds the inputs already, results included.

    python benchmarks/run.py sweep
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from figures import Figure, Measured, at_least, at_most, table
from measuring import alone, peak, resident, take_turns
from torch import Tensor

from xbench.geometry.grid import FULL_VIEW
from xbench.metrics import normalise, upsample
from xbench.scoring import host
from xbench.scoring.map_measures import Measurer, Measures
from xbench.scoring.sweep import PixelCounts, count_pixels, reached, threshold_values

PAIRS, SMALL, GRID = 256, 14, 224
LOOP_PAIRS = 16
ROUNDS = 7

FIGURES = (
    Figure(
        "torch loop over thresholds, batch of 16 / counting",
        target=at_least(80),
        note="See the next ones: what makes counting slower makes this ratio smaller.",
    ),
    Figure(
        "numpy loop with `count_nonzero` / counting",
        target=at_least(8),
        note="numpy's masks of bytes stay in the cache and are counted in vector code.",
    ),
    Figure(
        "counting at 1,001 thresholds / at 11",
        target=at_most(1.10),
        note="What grows is adding up the counts of thresholds, once a pair; counting pixels costs the same.",
    ),
    Figure(
        "counting in multiples of reading once",
        "L",
        at_most(10),
        note="Adding to a count waits for the addition before, where that was to the same one.",
    ),
    Figure(
        "sweep, pointing game and peaks from 14 x 14 maps",
        "L",
        at_most(22),
        note="Beyond counting, interpolation and min-max pass over the pixels again.",
    ),
    Figure(
        "the same / counting alone in chunks of tensors, as before numba",
        target=at_most(2.0),
        note="See the one before.",
    ),
    Figure(
        "extra memory of the sweep",
        "MB",
        at_most(20),
        note="Nothing but a row of pixels, the tied maxima and the counts is to be held.",
    ),
)


def inputs(pairs: int = PAIRS, grid: int = GRID) -> tuple[Tensor, Tensor, Tensor]:
    """Raw maps (N, 1, 14, 14), the same normalized on the grid (N, H, W) and regions (N, H, W), about 10 % of it."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(pairs, 1, SMALL, SMALL, generator=generator)
    blobs = upsample(torch.randn(pairs, 7, 7, generator=generator), (grid, grid))
    return raw, normalise(upsample(raw[:, 0], (grid, grid))), blobs > 0.8


def count(maps: Tensor, regions: Tensor, thresholds: int) -> PixelCounts:
    """What the metric does to maps that it has normalized itself: `count_pixels` without the look at their range."""
    histograms = torch.zeros(len(maps), 2 * thresholds, dtype=torch.int64)
    for given in zip(maps.numpy(), regions.numpy(), histograms.numpy(), strict=True):
        host.count(*given)
    return counted(histograms)


def counted(histograms: Tensor) -> PixelCounts:
    return PixelCounts(*(torch.from_numpy(part.copy()) for part in reached(histograms.numpy())))


def count_in_chunks(maps: Tensor, regions: Tensor, thresholds: int) -> PixelCounts:
    """The yardstick: counting as it was up to b0a9617, in eager PyTorch, as many pixels at a time as a cache holds."""
    counts = torch.zeros(len(maps), 2 * thresholds, dtype=torch.int64)
    short = torch.int16 if 2 * thresholds <= 2**15 else torch.int32
    narrow = torch.uint8 if 2 * thresholds <= 2**8 else short
    maps, regions = maps.flatten(1), regions.view(torch.uint8).flatten(1)
    pixels, steps = 2 * 224**2, torch.tensor(thresholds - 1.0)
    step = max(1, pixels // maps.shape[1])
    for rows, some, insides in zip(counts.split(step), maps.split(step), regions.split(step), strict=True):
        for piece, inside in zip(some.split(pixels, 1), insides.split(pixels, 1), strict=True):
            index = (piece * steps).round_()
            index.sub_((index / steps).gt_(piece))
            key = index.to(short).to(narrow).add_(inside, alpha=thresholds)
            for row, one in zip(rows, key, strict=True):
                row += torch.bincount(one, minlength=2 * thresholds)
    return counted(counts)


def everything(raw: Tensor, regions: Tensor) -> Measures:
    """All that a run finds out about raw maps: counts at 101 thresholds, the pointing game, peaks and minima."""
    return Measurer()(raw, list(regions), [FULL_VIEW] * len(raw), 101)


def torch_loop(maps: Tensor, regions: Tensor, values: Tensor) -> None:
    """A comparison for each threshold over a whole batch of maps."""
    for value in values:
        mask = maps >= value
        mask.sum((1, 2)), (mask & regions).sum((1, 2))


def numpy_loop(maps: np.ndarray, regions: np.ndarray, values: np.ndarray) -> None:
    """A comparison for each map and threshold, with the fastest count that numpy has."""
    for one, region in zip(maps, regions, strict=True):
        for value in values:
            mask = one >= value
            np.count_nonzero(mask), np.count_nonzero(mask & region)


def sorting(maps: Tensor, regions: Tensor, values: Tensor) -> None:
    """Sorted pixels and a binary search for each threshold."""
    for one, region in zip(maps, regions, strict=True):
        for pixels in (one.flatten(), one[region]):
            len(pixels) - torch.searchsorted(pixels.sort().values, values)


def whole_batch(raw: Tensor, regions: Tensor, thresholds: int) -> None:
    """The same steps without chunks, each over all pairs, with PyTorch's interpolation."""
    maps = F.interpolate(raw, regions.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = (maps - low) / (high - low)
    steps = thresholds - 1
    index = (maps * steps).round_()
    key = index.sub_((index / steps).gt_(maps)).to(torch.int32).add_(regions, alpha=thresholds)
    key += 2 * thresholds * torch.arange(len(maps), dtype=torch.int32)[:, None, None]
    torch.bincount(key.flatten(), minlength=2 * thresholds * len(maps))


def on_grid(size: int) -> float:
    """Counting alone in multiples of L on another grid, with about the same number of pixels in all."""
    _, maps, regions = inputs(PAIRS * GRID**2 // size**2, size)
    seconds = take_turns(
        {
            "L": lambda: (maps.numpy().max(), regions.numpy().view(np.uint8).max()),
            "counting": lambda: count(maps, regions, 101),
        },
        ROUNDS,
    )
    return float(np.median(seconds["counting"] / seconds["L"]))


def extra_memory() -> dict[str, float]:
    """Growth of the peak resident size in MB while each method runs on all pairs, the smallest first."""
    torch.set_num_threads(1)
    raw, maps, regions = inputs()
    work: dict[str, Callable[[int], object]] = {
        "counting": lambda number: count(maps[:number], regions[:number], 101),
        "with upsampling": lambda number: everything(raw[:number, 0], regions[:number]),
        "whole batch": lambda number: whole_batch(raw[:number], regions[:number], 101),
    }
    growth = {}
    for name, method in work.items():
        method(1)
        # What ran before has left a higher peak behind: fill memory up to it, so that any growth shows.
        filler = np.ones(max(0, peak() - resident()), dtype=np.uint8)
        before = peak()
        method(PAIRS)
        growth[name] = (peak() - before) / 1e6
        del filler
    return growth


def measure(quick: bool = False) -> Measured:
    torch.set_num_threads(1)
    pairs, rounds = (LOOP_PAIRS, 1) if quick else (PAIRS, ROUNDS)
    raw, maps, regions = inputs(pairs)
    values = threshold_values(101)
    array, mask = maps.numpy(), regions.numpy()
    few = slice(0, LOOP_PAIRS)
    methods: dict[str, Callable[[], object]] = {
        "read once (L)": lambda: (array.max(), mask.view(np.uint8).max()),
        "counting alone": lambda: count(maps, regions, 101),
        "counting alone in chunks of tensors, as before numba": lambda: count_in_chunks(maps, regions, 101),
        "counting alone, 11 thresholds": lambda: count(maps, regions, 11),
        "counting alone, 1,001 thresholds": lambda: count(maps, regions, 1001),
        "`count_pixels` (checks its input)": lambda: count_pixels(maps, regions),
        "from raw maps on the grid": lambda: everything(maps, regions),
        "from raw 14 x 14 maps": lambda: everything(raw[:, 0], regions),
        "the same without chunks": lambda: whole_batch(raw, regions, 101),
        "numpy loop, `count_nonzero`": lambda: numpy_loop(array[few], mask[few], values.numpy()),
        "torch loop, batch of 16": lambda: torch_loop(maps[few], regions[few], values),
        "sort and searchsorted": lambda: sorting(maps[few], regions[few], values),
    }
    loops = list(methods)[-3:]
    scale = dict.fromkeys(loops, pairs / LOOP_PAIRS)
    seconds = {name: value * scale.get(name, 1) for name, value in take_turns(methods, rounds).items()}

    def ratio(name: str, to: str = "read once (L)") -> float:
        return float(np.median(seconds[name] / seconds[to]))

    lines = [(name, float(np.median(taken) * 1e3), ratio(name)) for name, taken in seconds.items()]
    sizes = [] if quick else [(f"counting alone, {size} x {size}", "", on_grid(size)) for size in (512, 1024)]
    memory = alone(extra_memory) if sys.platform == "linux" else {}
    found = (
        ratio("torch loop, batch of 16", "counting alone"),
        ratio("numpy loop, `count_nonzero`", "counting alone"),
        ratio("counting alone, 1,001 thresholds", "counting alone, 11 thresholds"),
        ratio("counting alone"),
        ratio("from raw 14 x 14 maps"),
        ratio("from raw 14 x 14 maps", "counting alone in chunks of tensors, as before numba"),
        *([memory["with upsampling"]] if memory else []),
    )
    text = (
        f"{pairs} pairs of image and finding on {GRID} x {GRID} pixels, 101 thresholds unless said otherwise; one "
        f"thread, processor time, medians of {rounds} interleaved rounds. L is the time in which numpy reads maps "
        "(float32) and regions (uint8) once to find their maxima. The loops and the sort are timed on "
        f"{LOOP_PAIRS} pairs.\n\n{table(('method', 'ms', 'L'), [*lines, *sizes])}\n"
    )
    if memory:
        text += "Growth of the peak resident size over all pairs, in MB: "
        text += ", ".join(f"{name} {grown:.1f}" for name, grown in memory.items()) + ".\n"
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=False)}, text)
