"""Scoring a table of probabilities against reading it once.

python benchmarks/run.py scoring
"""

from __future__ import annotations

import csv
import resource
import tempfile
from pathlib import Path

import numpy as np
import torch
from figures import Figure, Measured
from measuring import take_turns
from workload import evaluate, prepared, warm_up, write_radiographs

from xbench.predictions.declared import preprocessing_of

FINDINGS, IMAGES, SIDE = 8, 10_000, 64
FIGURES = (
    Figure(f"`score` / reading a table of {IMAGES:,} x {FINDINGS} probabilities once"),
    Figure(f"`score` of a table of {IMAGES:,} x {FINDINGS} probabilities, an image", "ms"),
)


def measure(quick: bool = False) -> Measured:
    torch.set_num_threads(1)
    images = 64 if quick else IMAGES
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        warm_up(folder / "warm-up")
        root = write_radiographs(folder / "radiographs", images, FINDINGS, SIDE)
        data = prepared(root, FINDINGS, preprocessing_of("whole"))
        table = write_table(folder / "table.csv", images)
        options = {"predictions": str(table), "label": "table"}
        model = {"class_path": "xbench.models.external.External", "init_args": options}
        methods = {"score": lambda: evaluate(model, data), "read": lambda: read(table)}
        seconds = take_turns(methods, 1 if quick else 3, processor_time)
    score, once = (float(np.median(seconds[name])) for name in methods)
    text = (
        "The whole command but for imports, which decodes no image, and a loop over the rows "
        "of Python's `csv` with a number in each. Processor time of all processes, interleaved, medians.\n"
    )
    return Measured(
        {figure.name: value for figure, value in zip(FIGURES, (score / once, 1e3 * score / images), strict=True)}, text
    )


def write_table(path: Path, images: int) -> Path:
    draw = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("image", "finding", "probability"))
        for number in range(images):
            for finding in range(FINDINGS):
                rows.writerow((f"{number:05d}.png", f"Finding {finding + 1}", float(draw.random())))
    return path


def read(path: Path) -> dict[tuple[str, str], float]:
    with path.open(newline="") as file:
        return {(row["image"], row["finding"]): float(row["probability"]) for row in csv.DictReader(file)}


def processor_time() -> float:
    """Seconds of this process and of the children that have ended."""
    spent = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)
