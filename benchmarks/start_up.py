"""How long commands take to start, and where the time goes.

python benchmarks/run.py start_up
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter

import numpy as np
from figures import Figure, Measured, at_most, table
from measuring import alone

FIGURES = (
    Figure(
        "`--help`",
        "s",
        at_most(1),
        note="Python itself takes most of it; see which modules are imported with `python -X importtime`.",
    ),
    Figure(
        "`list`",
        "s",
        at_most(1),
        note="See which modules are imported with `python -X importtime -m xbench.cli list`.",
    ),
    Figure(
        "modules of PyTorch, Lightning and other heavy packages that `--help` and `list` import",
        "modules",
        at_most(0),
        note="The command's own module must import them only where it needs them.",
    ),
    Figure("`test --config demo` to its first batch", "s"),
)
HEAVY = ("torch", "torchvision", "torchmetrics", "lightning", "open_clip", "transformers", "timm", "wandb", "pandas")


def measure(quick: bool = False) -> Measured:
    rounds = 1 if quick else 5
    seconds: dict[str, list[float]] = {"--help": [], "list": []}
    for _ in range(rounds):
        for word, taken in seconds.items():
            started = time.perf_counter()
            command(word)
            taken.append(time.perf_counter() - started)
    heavy = sum(
        count
        for word in seconds
        for package, (count, _) in imports("-m", "xbench.cli", word).items()
        if package in HEAVY
    )
    phases = [alone(first_batch) for _ in range(1 if quick else 3)]
    of_test = {phase: float(np.median([one[phase] for one in phases])) for phase in phases[0]}
    packages = imports("-c", "import xbench.commands.run")
    largest = sorted(packages.items(), key=lambda item: -item[1][1])[:10]
    found = (*(float(np.median(taken)) for taken in seconds.values()), float(heavy), sum(of_test.values()))
    text = (
        f"Wall time of new processes, medians of {rounds}; files are in the page cache. The first batch of "
        "`test --config demo --trainer.logger false` is that of eight phantoms, drawn in worker processes.\n\n"
        + table(("`test` until its first batch", "seconds"), list(of_test.items()))
        + "\nWhat importing `xbench.commands.run` costs, by package and without what each imports in turn (measured "
        "with `-X importtime`, which itself takes time):\n\n"
        + table(("package", "modules", "seconds"), [(package, n, taken) for package, (n, taken) in largest])
    )
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=True)}, text)


def command(word: str, *flags: str) -> str:
    """Run a command of xbench, and return what it says on its error stream."""
    words = [sys.executable, *flags, "-m", "xbench.cli", word]
    return subprocess.run(words, capture_output=True, text=True, check=True).stderr


def imports(*words: str) -> dict[str, tuple[int, float]]:
    """Modules and seconds of their own, by package, that a new interpreter imports."""
    report = subprocess.run([sys.executable, "-X", "importtime", *words], capture_output=True, text=True, check=True)
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for own, name in re.findall(r"import time: +(\d+) \| +\d+ \| +(\S+)", report.stderr):
        counts[name.partition(".")[0]] += 1
        seconds[name.partition(".")[0]] += int(own)
    return {package: (counts[package], seconds[package] / 1e6) for package in counts}


def first_batch() -> dict[str, float]:
    """Seconds of `test` until its first batch, by phase. Runs in a process of its own."""
    started = time.perf_counter()
    from workload import evaluate

    imported = time.perf_counter() - started
    model = {"class_path": "xbench.models.Demo"}
    data = {"class_path": "xbench.data.PhantomCXR", "init_args": {"images": 8}}
    moments = evaluate(model, data).moments
    steps = np.diff([moments[what] for what in ("built", "set up", "text", "first batch")], prepend=0.0).tolist()
    phases = ("imports", "options, model, data and trainer", "set-up", "text", "wait for the first batch")
    return dict(zip(phases, (imported, *steps), strict=True))
