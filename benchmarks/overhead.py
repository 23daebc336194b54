"""What the harness costs: `test` on prepared images over the bare forward passes of the same network.

python benchmarks/run.py overhead
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import Figure, Measured, at_most, table
from workload import STAGES, Timing, build, evaluate, prepared, resnet, vit, warm_up, write_radiographs

from xbench.models.base import VLM

BATCH, SIDE, WHOLE = 8, 512, 12_600
_REST = "Workers share the cores with the network; the rest is scoring and writing."
FIGURES = (
    Figure(
        "`test` / bare forward, ViT-B/16, float32",
        target=at_most(1.05),
        note=_REST,
    ),
    Figure(
        "`test` / bare forward, ViT-B/16, bf16-true",
        target=at_most(1.05),
        note="The network takes a quarter of its time in float32, so the rest weighs four times as much.",
    ),
    Figure(
        "`test` / bare forward, ResNet-50, 2 pairs an image",
        target=at_most(1.10),
        note=_REST,
    ),
    Figure(
        "`test` / bare forward, ResNet-50, 10 pairs an image",
        target=at_most(1.15),
        note=_REST + " Scoring grows with the pairs.",
    ),
    Figure(
        f"whole command / bare forward, ViT-B/16, bf16-true, {WHOLE:,} images",
        target=at_most(1.05),
        note="See the row on bf16-true.",
    ),
)


@dataclass(frozen=True)
class Work:
    """One comparison.

    Attributes:
        label: In the tables.
        model: For `evaluate`.
        findings: Every image has half of them.
        images: How many.
        precision: Of the trainer.
    """

    label: str
    model: Mapping[str, Any]
    findings: int
    images: int
    precision: str = "32-true"


@dataclass(frozen=True)
class Compared:
    """Seconds of both sides, by round."""

    work: Work
    runs: list[Timing]
    bare: list[float]

    @property
    def ratio(self) -> float:
        """Median over the rounds of the loop, from the first batch to the written results, over the bare forward."""
        return float(np.median([run.loop / bare for run, bare in zip(self.runs, self.bare, strict=True)]))

    @property
    def start_up(self) -> float:
        return float(np.median([run.start_up for run in self.runs]))

    def stages(self) -> tuple[object, ...]:
        """Milliseconds an image: bare forward, the loop, and the stages of the loop."""
        loop = float(np.median([run.loop for run in self.runs]))
        parts = [float(np.median([run.stages[name] for run in self.runs])) for name in STAGES]
        # The wait for the first batch is start-up.
        waited = float(np.median([run.moments["first batch"] - run.moments["text"] for run in self.runs]))
        parts[0] = max(0.0, parts[0] - waited)
        rest = loop - sum(parts)
        per_image = 1e3 / self.work.images
        return (self.work.label, *(x * per_image for x in (float(np.median(self.bare)), loop, *parts, rest)))


def measure(quick: bool = False) -> Measured:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        transformer = resnet() if quick else vit(folder / "vit")
        few, more, many = (BATCH, BATCH, BATCH) if quick else (3 * BATCH, 4 * BATCH, 12 * BATCH)
        works = (
            Work("ViT-B/16, float32", transformer, 4, few),
            Work("ViT-B/16, bf16-true", transformer, 4, many, "bf16-true"),
            Work("ResNet-50, 2 pairs", resnet(), 4, more),
            Work("ResNet-50, 10 pairs", resnet(), 20, more),
        )
        warm_up(folder / "warm-up")
        compared = [compare(work, folder / str(number), 1 if quick else 3) for number, work in enumerate(works)]
    half = compared[1]
    bare = float(np.median(half.bare)) / half.work.images * WHOLE
    whole = (half.start_up + half.ratio * bare) / bare
    found = (*(one.ratio for one in compared), whole)
    head = ("ms an image", "bare forward", "loop", *STAGES, "end of the run")
    start_up = table(
        ("start-up of a run, seconds", "options, model, data", "set-up and text", "first batch"),
        [(one.work.label, *_start_up(one.runs)) for one in compared],
    )
    text = (
        f"`test` through the command line's own code: PNG files of {SIDE} x {SIDE} pixels, prepared; batches of "
        f"{BATCH}; "
        "the callbacks and the journal of every run, no logger and no progress bar; `--threads 1` and the default "
        "number of workers. The loop runs from the first batch until `results.json` is written. Bare is `model(images, "
        "queries)` over as many batches of tensors in memory, in inference mode, with the same weights and precision "
        "and one thread. Wall time; the two take turns, and each ratio is the median of those within a round.\n\n"
        f"{table(head, [one.stages() for one in compared])}\n"
        "The end of a run (reducing, provenance, writing files) is partly the same for any number of images, so in "
        "these short runs it weighs more than in long ones.\n\n"
        f"{start_up}\n"
        f"The whole command at {WHOLE:,} images is extrapolated: the start-up above, and the loop at its ratio. "
        "Imports are in the part on start-up; a run of eight images before all others pays for those that come later.\n"
    )
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=True)}, text)


def compare(work: Work, folder: Path, rounds: int) -> Compared:
    """Let `test` and the bare forward take turns."""
    write_radiographs(folder, work.images, work.findings, SIDE)
    findings = tuple(f"Finding {number + 1}" for number in range(work.findings))
    network = build(work.model, findings)
    data = prepared(folder, work.findings, network.preprocessing)
    dtype = torch.bfloat16 if work.precision == "bf16-true" else torch.float32
    forward = bare_forward(network.to(dtype), work.images, dtype)
    forward(1)
    runs, bare = [], []
    for _ in range(rounds):
        runs.append(evaluate(work.model, data, work.precision))
        started = time.perf_counter()
        forward(work.images // BATCH)
        bare.append(time.perf_counter() - started)
    return Compared(work, runs, bare)


def bare_forward(network: VLM, images: int, dtype: torch.dtype) -> Callable[[int], None]:
    batch = torch.randn(BATCH, 3, 224, 224, generator=torch.Generator().manual_seed(0)).to(dtype)

    def forward(batches: int) -> None:
        with torch.inference_mode():
            for _ in range(batches):
                network(batch, network.queries)

    return forward


def _start_up(runs: list[Timing]) -> tuple[float, float, float]:
    marks = np.median([[run.moments[what] for what in ("built", "text", "first batch")] for run in runs], axis=0)
    built, text, first = np.diff(marks, prepend=0.0).tolist()
    return built, text, first
