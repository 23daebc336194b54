"""Cost and memory as images, findings and thresholds grow, with a network so small that the harness is all there is.

python benchmarks/run.py scale
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from figures import Figure, Measured, at_most, table
from measuring import alone, peak
from workload import Tiny, evaluate, prepared, tiny, warm_up, write_radiographs

SIDE = 224
IMAGES, FINDINGS, THRESHOLDS = (100, 1_000, 5_000), (1, 10, 36), (11, 101, 1_001)
FEW = 300

FIGURES = (
    Figure(
        "cost of an image among 5,000 / among 1,000",
        target=at_most(1.1),
        note="Something grows faster than the images; profile the longer run.",
    ),
    Figure(
        "cost of a further pair, from 10 to 36 findings / from 1 to 10",
        target=at_most(1.1),
        note="Something grows faster than the pairs; profile the run of 36 findings.",
    ),
    Figure(
        "whole loop at 1,001 thresholds / at 11",
        target=at_most(1.15),
        note="A run keeps the counts of every pair at every threshold, so that it can be verified.",
    ),
    Figure(
        "memory of the main process, among 5,000 images / among 1,000",
        target=at_most(1.1),
        note="Something is kept of every image; look at the run's largest objects.",
    ),
    Figure("memory of the main process, growth an image", "kB"),
)


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds of the loop, and peak bytes of its process."""

    loop: float
    peak: int


def measure(quick: bool = False) -> Measured:
    images, few = ((8, 16, 32), 16) if quick else (IMAGES, FEW)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        by_images, by_findings, by_thresholds = {}, {}, {}
        for number in images:
            data = written(folder / f"images{number}", number, 2)
            by_images[number] = cost(data) if quick else alone(cost, data)
        warm_up(folder / "warm-up")
        for number in FINDINGS:
            data = written(folder / f"findings{number}", few, number)
            by_findings[number] = cost(data)
        data = written(folder / "thresholds", few, 10)
        for number in THRESHOLDS:
            by_thresholds[number] = cost(data, number)
    _, middle, large = images
    further = [(by_findings[b].loop - by_findings[a].loop) / (few * (b - a) / 2) for a, b in pairwise(FINDINGS)]
    found = (
        by_images[large].loop / large / (by_images[middle].loop / middle),
        further[1] / further[0],
        by_thresholds[1_001].loop / by_thresholds[11].loop,
        by_images[large].peak / by_images[middle].peak,
        (by_images[large].peak - by_images[middle].peak) / (large - middle) / 1e3,
    )
    along = (("images", by_images, None), ("findings", by_findings, few), ("thresholds", by_thresholds, few))
    tables = "\n".join(
        table(
            (name, "seconds", "µs an image", "peak of the main process, MB"),
            [
                (f"{n:,}", run.loop, run.loop / (fixed or n) * 1e6, run.peak / 1e6 if fixed is None else "")
                for n, run in runs.items()
            ],
        )
        for name, runs, fixed in along
    )
    text = (
        f"Prepared images of {SIDE} x {SIDE} pixels in batches of 8, with one layer for a network; from the first "
        "batch until the results are written, wall time. Images: 2 findings, 1 scored pair each, a new process for "
        f"each run. Findings: {few} images, of which each has half of the findings. Thresholds: {few} images with 10 "
        f"findings.\n\n{tables}\nThe end of a run (provenance, files) costs partly the same for any number of images, "
        "so an image of a short run costs more.\n"
    )
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=True)}, text)


def written(root: Path, images: int, findings: int) -> dict[str, Any]:
    write_radiographs(root, images, findings, SIDE)
    return prepared(root, findings, Tiny().preprocessing)


def cost(data: dict[str, Any], thresholds: int = 101) -> Cost:
    """What a run costs; its peak is true in a new process alone."""
    torch.set_num_threads(1)
    return Cost(evaluate(tiny(), data, thresholds=thresholds).loop, peak())
