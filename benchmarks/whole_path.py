"""A whole evaluation by `test` against the same by a plain script, `plain_loop.py`, with equal numbers.

python benchmarks/run.py whole_path
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plain_loop
import torch
from figures import Figure, Measured, table
from workload import (
    MEAN,
    STAGES,
    STD,
    Timing,
    build,
    evaluate,
    prepared,
    resnet,
    undecoded,
    vit,
    warm_up,
    write_radiographs,
)

SIDE, TOLERANCE = 1024, 1e-4
FIGURES = (
    Figure("plain loop / first run, ViT-B/16, 2 pairs an image"),
    Figure("plain loop / repeated run, ViT-B/16, 2 pairs an image"),
    Figure("plain loop / first run, ResNet-50, 10 pairs an image"),
    Figure("plain loop / repeated run, ResNet-50, 10 pairs an image"),
)


@dataclass(frozen=True)
class Compared:
    """Rounds of the plain loop and of both kinds of run.

    Attributes:
        plain: Seconds.
        parts: Seconds of the plain loop by what they went to, in its last round.
        first: Runs that decode.
        repeated: Runs that read prepared images.
    """

    plain: list[float]
    parts: dict[str, float]
    first: list[Timing]
    repeated: list[Timing]

    def ratio(self, runs: list[Timing]) -> float:
        return float(np.median([plain / _seconds(run) for plain, run in zip(self.plain, runs, strict=True)]))


def measure(quick: bool = False) -> Measured:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        size, rounds = (8, 1) if quick else (16, 2)
        transformer = resnet() if quick else vit(folder / "vit")
        warm_up(folder / "warm-up")
        first = compare(transformer, folder / "2", 4, size, rounds)
        second = compare(resnet(), folder / "10", 20, size, rounds)
    found = [one.ratio(runs) for one in (first, second) for runs in (one.first, one.repeated)]
    labels = ("ViT-B/16, 2 pairs", "ResNet-50, 10 pairs")
    plain_parts = list(first.parts)
    run_parts = (*STAGES, "end of the run")
    shares = table(
        ("plain loop, % of its time", *plain_parts),
        [
            (label, *(f"{100 * one.parts[part] / sum(one.parts.values()):.0f}" for part in plain_parts))
            for label, one in zip(labels, (first, second), strict=True)
        ],
    )
    ours = table(
        ("`test`, % of its time", *run_parts),
        [
            (f"{label}, {kind}", *(f"{share:.0f}" for share in _shares(runs)))
            for label, one in zip(labels, (first, second), strict=True)
            for kind, runs in (("first run", one.first), ("repeated run", one.repeated))
        ],
    )
    text = (
        f"`benchmarks/plain_loop.py` evaluates as a researcher would write it, on PNG files of {SIDE} x {SIDE} pixels, "
        "with as many workers, the same batches, weights and one thread. Its numbers (pointing game, Dice and IoU at "
        f"0.5 and at the best of 101 thresholds, AUROC; macro) agree with those of `results.json` to {TOLERANCE:g}, or "
        "this part fails. The first run of `test` decodes every image, the repeated one reads prepared ones; a "
        "researcher prepares nothing. Both sides are timed from the first wait for images until the numbers are there, "
        "in `test` with all files written. Wall time, interleaved, medians. Where the network dominates there is "
        "little to win, and where pairs are many the thresholds are what the plain loop spends its time on.\n\n"
        f"{shares}\n{ours}"
    )
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=True)}, text)


def compare(model: Mapping[str, Any], folder: Path, number: int, images: int, rounds: int) -> Compared:
    """Let both take turns.

    Raises:
        ValueError: Their numbers differ.
    """
    write_radiographs(folder, images, number, SIDE)
    findings = tuple(f"Finding {finding + 1}" for finding in range(number))
    network = build(model, findings)
    data = prepared(folder, number, network.preprocessing)
    compared = Compared([], {}, [], [])
    for _ in range(rounds):
        started = time.perf_counter()
        numbers, parts = plain_loop.evaluate(network, network.queries, folder, findings, MEAN, STD)
        compared.plain.append(time.perf_counter() - started)
        compared.parts.update(parts)
        compared.first.append(evaluate(model, undecoded(data)))
        compared.repeated.append(evaluate(model, data))
        for run in (compared.first[-1], compared.repeated[-1]):
            agree(numbers, run.results)
    return compared


def agree(numbers: Mapping[str, float], results: Mapping[str, Any]) -> None:
    """Refuse numbers of the plain loop that are not those of a run.

    Raises:
        ValueError: They differ.
    """
    ours = results["grounding"]["macro"] | results["classification"]["macro"]
    for name, value in numbers.items():
        if abs(value - ours[name]) > TOLERANCE:
            raise ValueError(f"{name}: the plain loop finds {value}, the run {ours[name]}.")


def _seconds(run: Timing) -> float:
    return run.moments["end"] - run.moments["text"]


def _shares(runs: list[Timing]) -> list[float]:
    parts = [float(np.median([run.stages[name] for run in runs])) for name in STAGES]
    whole = float(np.median([_seconds(run) for run in runs]))
    return [100 * part / whole for part in (*parts, whole - sum(parts))]
