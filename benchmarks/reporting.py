"""How much processor time a report takes, in units of what importing PyTorch takes.

python benchmarks/run.py reporting
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from figures import Figure, Measured, at_most, table

# Drawn runs that the tests have already.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from synthetic import write_run

FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Edema", "Fracture"),
    *("Mass", "Nodule", "Pleural Effusion", "Pneumothorax"),
)
RUNS = {
    "six runs of 200 images": (6, 200, 3.0),
    "a run of 3,000 images": (1, 3_000, 3.0),
    "30 runs of 24 images": (30, 24, 12.0),
}
UNIT = "importing PyTorch"
FIGURES = tuple(
    Figure(
        f"`report` of {name} to the page / {UNIT}",
        target=at_most(limit),
        note="See where the time goes with `python -m cProfile -s cumulative -m xbench report RUNS --figures false`.",
    )
    for name, (_, _, limit) in RUNS.items()
)


def measure(quick: bool = False) -> Measured:
    with tempfile.TemporaryDirectory() as place:
        commands = {UNIT: ["-c", "import torch"]}
        for number, (name, (runs, images, _)) in enumerate(RUNS.items()):
            folder = Path(place, str(number))
            for run in range(2 if quick else runs):
                skill = 0.4 + run / 60
                write_run(folder, f"model{run:02d}", skill=skill, images=16 if quick else images, findings=FINDINGS)
            commands[name] = ["-m", "xbench", "report", str(folder), "--figures", "false"]
            commands[f"{name}, with figures for papers"] = commands[name][:-2]
        taken = {name: [] for name in commands}
        for _ in range(1 if quick else 3):
            for name, words in commands.items():
                taken[name].append(processor_seconds(words))
    seconds = {name: float(np.median(values)) for name, values in taken.items()}
    found = [seconds[name] / seconds[UNIT] for name in RUNS]
    text = (
        f"Runs with {len(FINDINGS)} findings, drawn. User and system time, that of the process that draws figures "
        "included, in interleaved rounds, medians.\n\n"
        + table(("", "s", f"/ {UNIT}"), [(name, value, value / seconds[UNIT]) for name, value in seconds.items()])
    )
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=True)}, text)


def processor_seconds(words: list[str]) -> float:
    """User and system time of Python with these arguments, its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
