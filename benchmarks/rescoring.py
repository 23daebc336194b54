"""What a run keeps so that it can be scored again without the network, and how long scoring again takes.

python benchmarks/run.py rescoring
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from pathlib import Path

import torch
from figures import Figure, Measured, table
from workload import Tiny, evaluate, prepared, tiny, write_radiographs

from xbench.cli import main

FINDINGS, SIDE, WHOLE = 10, 512, 12_600
KEPT = ("predictions.parquet", "truth.parquet", "pictures.parquet", "pairs.parquet")
RULES = ("--ties any", "--thresholds 1001", "--gamma 0.25", "--ties any --workers 0")
FIGURES = (
    Figure(f"maps and regions on disk, {FINDINGS} findings, an image", "kB"),
    *(Figure(f"`rescore {rule}` of {WHOLE:,} images, {FINDINGS} findings", "s") for rule in RULES),
)


def measure(quick: bool = False) -> Measured:
    torch.set_num_threads(1)
    images = 16 if quick else 1_000
    with tempfile.TemporaryDirectory() as place:
        kept, seconds = score_again(Path(place), images)
    whole = {rule: taken / images * WHOLE for rule, taken in seconds.items()}
    found = ((kept["predictions.parquet"] + kept["truth.parquet"]) / images / 1e3, *whole.values())
    text = (
        f"Raw maps of 14 x 14 of {FINDINGS} findings and the regions of half of them on every image, drawn in files of "
        f"{SIDE} x {SIDE} pixels. A run of {images:,} images is scored again, on as many processes as there are "
        "cores or, with `--workers 0`, on one; wall time without imports; "
        f"{WHOLE:,} images are extrapolated from it in proportion.\n\n"
        + table(
            ("seconds", f"{images:,} images", f"{WHOLE:,} images"),
            [(f"`{rule}`", seconds[rule], whole[rule]) for rule in RULES],
        )
        + "\n"
        + table(
            ("file", "kB an image", f"MB of {WHOLE:,} images"),
            [(f"`{name}`", kept[name] / images / 1e3, kept[name] / images * WHOLE / 1e6) for name in KEPT],
        )
    )
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=True)}, text)


def score_again(folder: Path, images: int) -> tuple[dict[str, int], dict[str, float]]:
    """Bytes of a run's files by name, and seconds of scoring it again by rule."""
    root = write_radiographs(folder / "radiographs", images, FINDINGS, SIDE)
    run = evaluate(tiny(), prepared(root, FINDINGS, Tiny().preprocessing), keep=folder / "runs")
    (results,) = (folder / "runs").glob("*/*/results.json")
    seconds = {}
    for number, rule in enumerate(RULES):
        started = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(["rescore", str(results.parent), *rule.split(), "--out", str(folder / f"again{number}")])
        seconds[rule] = time.perf_counter() - started
    return run.files, seconds
