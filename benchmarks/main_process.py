"""What the main process of `test` costs beside the network: everything but loading images and forward passes.

python benchmarks/run.py main_process
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import Figure, Measured, at_most, table
from measuring import take_turns
from sweep import GRID, inputs
from torch import Tensor
from workload import Clock, Tiny, evaluate, prepared, warm_up, write_radiographs

from xbench.scoring.map_measures import Measurer
from xbench.types import ModelOutput

BATCH, PAIRS, ROUNDS = 8, (1, 10), 3
FIGURES = (
    Figure(
        "main process of `test` without its network, an image with one pair",
        "ms",
        at_most(0.5),
        "Each batch arrives from a worker and runs Lightning's hooks. Larger batches help.",
    ),
    Figure(
        "the same, over reading the map and its region once",
        note="A multiple carries over to other machines.",
    ),
    Figure(
        "a further pair, beyond measuring it",
        "ms",
        at_most(0.06),
        "Rows, regions and maps of each pair are handed over, written to the journal and read from there.",
    ),
)


class Held(Tiny):
    """A model that returns tensors which it already holds."""

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        if not hasattr(self, "held") or len(self.held) != len(images):
            generator = torch.Generator().manual_seed(0)
            self.held = torch.randn(len(images), len(queries), 14, 14, generator=generator, dtype=torch.float32)
        logits = self.held[:, :, 0, 0]
        return ModelOutput(logits=logits, probabilities=logits.sigmoid(), saliency=self.held)


def measure(quick: bool = False) -> Measured:
    torch.set_num_threads(1)
    # The first batches are scored one by one.
    few, many = (8, 16) if quick else (128, 1280)
    model = {"class_path": f"{Held.__module__}.Held"}
    with tempfile.TemporaryDirectory() as place:
        warm_up(Path(place, "warm-up"))
        data = {(pairs, n): written(Path(place, f"{pairs}-{n}"), n, pairs) for pairs in PAIRS for n in (few, many)}
        runs: dict[Any, list[float]] = {key: [] for key in data}
        for _ in range(1 if quick else ROUNDS):
            for key, of_key in data.items():
                evaluate(model, of_key)
                runs[key].append(Clock.processor["end"] - Clock.processor["first batch"])
    # What a run costs once, such as its provenance, is in neither.
    cost = {pairs: (min(runs[pairs, many]) - min(runs[pairs, few])) / (many - few) * 1e3 for pairs in PAIRS}
    raw, on_grid, regions = inputs(BATCH)
    array, mask, views = on_grid.numpy(), regions.numpy().view(np.uint8), [(0.0, 0.0, 1.0, 1.0)] * BATCH
    methods = {
        "reading": lambda: (array.max(), mask.max()),
        "measuring": lambda: Measurer()(raw[:, 0], [*regions], views, 101),
    }
    alone = {name: float(np.median(s)) / BATCH * 1e3 for name, s in take_turns(methods, 50, time.process_time).items()}
    further = (cost[10] - cost[1]) / 9
    text = (
        f"Processor time of the main process, without its workers: prepared images of {GRID} x {GRID} pixels in "
        f"batches of {BATCH}, a model that returns maps of 14 x 14 which it holds, the callbacks and the journal of "
        f"every run. A run of {many} images less one of {few}, by their number; the least of {ROUNDS} runs each.\n\n"
        + table(
            ("ms", ""),
            [*((f"an image, pairs: {n}", cost[n]) for n in PAIRS), *alone.items(), ("a further pair", further)],
        )
    )
    found = (cost[1], cost[1] / alone["reading"], further - alone["measuring"])
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=True)}, text)


def written(root: Path, images: int, pairs: int) -> dict[str, Any]:
    return prepared(write_radiographs(root, images, pairs, GRID, every=1), pairs, Tiny().preprocessing)
