"""What the threshold sweep costs: multiples of reading the same pixels once, and of the usual loops.

Seconds differ from machine to machine and with what else runs there, ratios less. So the methods take turns, every
ratio is the median of those within a round, and time is that of the processor, not of the wall: everything runs in
one thread, and on a shared machine long methods would else pay for their interruptions while short ones escape. Most
ratios are multiples of L, the time in which numpy reads the maps (float32) and the regions (uint8) once to find their
maxima: the least that any method must do.

The loops and the sort are slow enough to be timed on a part of the pairs; their time is scaled to all of them. Extra
memory is the growth of the peak resident size of a process that holds the inputs already, results included.

    python benchmarks/sweep.py
"""

from __future__ import annotations

import multiprocessing
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xbench.metrics.functional import normalise, upsample
from xbench.metrics.sweep import PixelCounts, _histograms, _reached, count_pixels, sweep_pairs, threshold_values

PAIRS, SMALL, GRID = 256, 14, 224
LOOP_PAIRS = 16
ROUNDS = 7


def inputs(pairs: int = PAIRS, grid: int = GRID) -> tuple[Tensor, Tensor, Tensor]:
    """Raw maps (N, 1, 14, 14), the same normalised on the grid (N, H, W) and regions (N, H, W), about 10 % of it."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(pairs, 1, SMALL, SMALL, generator=generator)
    blobs = upsample(torch.randn(pairs, 7, 7, generator=generator), (grid, grid))
    return raw, normalise(upsample(raw[:, 0], (grid, grid))), blobs > 0.8


def count(maps: Tensor, regions: Tensor, thresholds: int) -> PixelCounts:
    """What the metric does to maps that it has normalised itself: `count_pixels` without the look at their range."""
    return _reached(_histograms(maps, regions, threshold_values(thresholds)))


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
    """The same arithmetic without chunks: every step over all pairs."""
    maps = F.interpolate(raw, regions.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = (maps - low) / (high - low)
    steps = thresholds - 1
    index = (maps * steps).round_()
    key = index.sub_((index / steps).gt_(maps)).to(torch.int32).add_(regions, alpha=thresholds)
    key += 2 * thresholds * torch.arange(len(maps), dtype=torch.int32)[:, None, None]
    torch.bincount(key.flatten(), minlength=2 * thresholds * len(maps))


def take_turns(methods: dict[str, Callable[[], object]]) -> dict[str, np.ndarray]:
    """Processor seconds of each method in interleaved rounds, a warm-up left out."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(ROUNDS + 1):
        for name, method in methods.items():
            start = time.process_time()
            method()
            seconds[name].append(time.process_time() - start)
    return {name: np.array(rounds[1:]) for name, rounds in seconds.items()}


def on_grid(size: int) -> float:
    """Counting alone in multiples of L on another grid, with about the same number of pixels in all."""
    _, maps, regions = inputs(PAIRS * GRID**2 // size**2, size)
    seconds = take_turns(
        {
            "L": lambda: (maps.numpy().max(), regions.numpy().view(np.uint8).max()),
            "counting": lambda: count(maps, regions, 101),
        }
    )
    return float(np.median(seconds["counting"] / seconds["L"]))


def extra_memory() -> dict[str, float]:
    """Growth of the peak resident size in MB while each method runs on all pairs, the smallest first."""
    torch.set_num_threads(1)
    raw, maps, regions = inputs()
    rows, classes = torch.arange(PAIRS), torch.zeros(PAIRS, dtype=torch.int64)
    work: dict[str, Callable[[int], object]] = {
        "counting": lambda number: count(maps[:number], regions[:number], 101),
        "with upsampling": lambda number: sweep_pairs(raw, regions[:, None], rows[:number], classes[:number], 101),
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


def peak() -> int:
    """Most bytes of this process in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    return names[0].split(":")[1].strip() if names else platform.processor()


def main() -> None:
    torch.set_num_threads(1)
    print(f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, one thread; torch {torch.__version__}")
    print(f"{PAIRS} pairs, {GRID} x {GRID}, 101 thresholds unless said; medians of {ROUNDS} interleaved rounds\n")

    raw, maps, regions = inputs()
    rows, classes = torch.arange(PAIRS), torch.zeros(PAIRS, dtype=torch.int64)
    values = threshold_values(101)
    array, mask = maps.numpy(), regions.numpy()
    grid, truth = maps[:, None], regions[:, None]
    few = slice(0, LOOP_PAIRS)
    methods: dict[str, Callable[[], object]] = {
        "read once (L)": lambda: (array.max(), mask.view(np.uint8).max()),
        "counting alone": lambda: count(maps, regions, 101),
        "counting alone, 11 thresholds": lambda: count(maps, regions, 11),
        "counting alone, 1,001 thresholds": lambda: count(maps, regions, 1001),
        "count_pixels (checks its input)": lambda: count_pixels(maps, regions),
        "from raw maps on the grid": lambda: sweep_pairs(grid, truth, rows, classes, 101),
        "from raw 14 x 14 maps": lambda: sweep_pairs(raw, truth, rows, classes, 101),
        "the same without chunks": lambda: whole_batch(raw, regions, 101),
        "numpy loop, count_nonzero": lambda: numpy_loop(array[few], mask[few], values.numpy()),
        "torch loop, batch of 16": lambda: torch_loop(maps[few], regions[few], values),
        "sort and searchsorted": lambda: sorting(maps[few], regions[few], values),
    }
    scale = dict.fromkeys(list(methods)[-3:], PAIRS / LOOP_PAIRS)
    seconds = {name: value * scale.get(name, 1) for name, value in take_turns(methods).items()}

    def ratio(name: str, to: str) -> float:
        return float(np.median(seconds[name] / seconds[to]))

    for name, rounds in seconds.items():
        print(f"{name:36}{np.median(rounds) * 1e3:10.1f} ms{ratio(name, 'read once (L)'):10.1f} L")
    for size in (512, 1024):
        print(f"{f'counting alone, {size} x {size}':36}{'':13}{on_grid(size):10.1f} L")

    targets = (
        ("torch loop, batch of 16", "counting alone", "at least 80"),
        ("numpy loop, count_nonzero", "counting alone", "at least 8"),
        ("counting alone, 1,001 thresholds", "counting alone, 11 thresholds", "at most 1.15"),
        ("counting alone", "read once (L)", "at most 10"),
        ("from raw 14 x 14 maps", "read once (L)", "at most 26"),
    )
    print()
    for name, to, wanted in targets:
        print(f"{name + ' / ' + to:66}{ratio(name, to):8.2f} (wanted: {wanted})")
    if sys.platform == "linux":
        # In a new interpreter, because this one's peak is far above what it holds now.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for name, growth in pool.apply(extra_memory).items():
                print(f"extra memory, {name:16}{growth:8.1f} MB{'' if 'whole' in name else ' (wanted: at most 20)'}")


if __name__ == "__main__":
    main()
