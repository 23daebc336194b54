"""Measures everything and writes `BENCHMARKS.md`: `make bench`.

    python benchmarks/run.py             all parts, each in a new process; half an hour on two cores
    python benchmarks/run.py sweep scale these parts, printed and not written, for a page is of one machine and one day
    python benchmarks/run.py --quick     with tiny amounts, to see that everything runs; printed and not written

A part that fails is named in the page, the others are measured all the same, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from figures import Figure, Measured, missed, summary, table
from measuring import processor

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "BENCHMARKS.md"
PARTS = {
    "sweep": "The threshold sweep",
    "kernel": "The metrics on a GPU",
    "decoding": "Decoding and prepared images",
    "overhead": "The harness beside the network",
    "main_process": "The main process without a network",
    "whole_path": "The whole path against a plain script",
    "scale": "Cost as the work grows",
    "memory": "Memory",
    "start_up": "Start-up",
    "rescoring": "Scoring again without the network",
    "reporting": "Writing a report",
    "scoring": "Scoring a table of probabilities",
    "against": "Against an earlier commit",
}
PATIENCE = 3_600
HEADLINES = {
    "`test` / bare forward, ViT-B/16, bf16-true": "A run of ViT-B/16 takes {} times as long as its network alone.",
    "plain loop / first run, ResNet-50, 10 pairs an image": "A plain script takes {} times as long as `test` where an "
    "image has ten findings to score.",
    "`test --config demo` to its first batch": "`test --config demo` starts in {} seconds.",
}
"""Three figures, and a sentence with each."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny amounts")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.into:
        (part,) = given.parts
        given.into.write_text(importlib.import_module(part).measure(given.quick).to_json())
        return 0
    started = time.perf_counter()
    outcomes: dict[str, Measured | str] = dict.fromkeys(given.parts or PARTS, "it was not measured yet")
    for part in outcomes:
        outcomes[part] = measure(part, given.quick)
        page = render(outcomes, time.perf_counter() - started, details=bool(given.parts or given.quick))
        if not (given.parts or given.quick):
            # After each part, so that what was measured is not lost with what comes after.
            PAGE.write_text(page)
    if given.parts or given.quick:
        print(page)
    else:
        print(f"{PAGE} is written.")
    failed = [part for part, outcome in outcomes.items() if isinstance(outcome, str)]
    if failed:
        print(f"These parts failed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def declared(part: str) -> tuple[Figure, ...]:
    """The figures of a part, not measured yet."""
    return importlib.import_module(part).FIGURES


def measure(part: str, quick: bool) -> Measured | str:
    """Measure a part in a new process; return the end of its complaint if it fails."""
    print(f"{PARTS[part]} ...", end=" ", flush=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        into = Path(place, "measured.json")
        words = [sys.executable, __file__, part, "--into", str(into), *(["--quick"] if quick else [])]
        # Nobody's own prepared images and encoded prompts, no thread but those that a part asks for, no network.
        own = {"XBENCH_CACHE": str(Path(place, "cache")), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        try:
            run = subprocess.run(words, env=os.environ | own, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            outcome: Measured | str = f"not done after {PATIENCE} s"
        else:
            said = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
            outcome = said[-1] if run.returncode else Measured.from_json(into.read_text())
    print(f"{outcome if isinstance(outcome, str) else ''} {time.perf_counter() - started:.0f} s", flush=True)
    return outcome


def render(outcomes: Mapping[str, Measured | str], seconds: float, details: bool) -> str:
    """The page; with details also how each part is measured, and its other tables."""
    figures: dict[str, Sequence[Figure]] = {}
    for part, outcome in outcomes.items():
        values = outcome.values if isinstance(outcome, Measured) else {}
        figures[PARTS[part]] = [replace(figure, value=values.get(figure.name)) for figure in declared(part)]
    sections = []
    for part, outcome in outcomes.items():
        if isinstance(outcome, str):
            sections.append(f"`{part}` failed: {outcome}\n")
        elif details:
            sections.append(f"## {PARTS[part]}\n\n{outcome.text}")
    reasons = missed([figure for of_part in figures.values() for figure in of_part])
    return "\n".join(
        (
            "# Benchmarks\n",
            headlines([figure for of_part in figures.values() for figure in of_part]),
            machine(seconds),
            "## Figures and targets\n",
            "Without a unit: a ratio. L: the time in which numpy reads the same maps and regions once.\n",
            summary(figures),
            *(("Why targets are missed:\n", reasons) if reasons else ()),
            *sections,
            "## How to repeat\n",
            "`make bench` writes this page in half an hour on an idle machine. Ratios carry over to other machines, "
            "seconds do not. `python benchmarks/run.py PART` measures one part, such as `sweep`, and prints details. "
            "`python benchmarks/models.py` measures the speed and memory of models, `python benchmarks/precision.py` "
            "how far half precision and compiling move numbers.\n",
        )
    )


def headlines(figures: Sequence[Figure]) -> str:
    """The three numbers, a line each."""
    shown = {figure.name: figure.row()[1] for figure in figures if figure.value is not None}
    lines = [f"- {words.format(shown[name].split()[0])}\n" for name, words in HEADLINES.items() if name in shown]
    return "".join(lines)


def machine(seconds: float) -> str:
    """Where and when, as a table."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ("torch", "lightning", "torchmetrics", "numpy", "opencv-python-headless", "pydicom")
    rows = (
        ("date", f"{datetime.date.today()}; {seconds / 60:.0f} minutes"),
        ("commit", commit()),
        ("processor", f"{processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB"),
        ("threads", "1 for computing; images are loaded by as many worker processes as there are cores, 4 at most"),
        ("system", f"{platform.system()}, Python {platform.python_version()}"),
        ("packages", ", ".join(f"{package} {version(package)}" for package in packages)),
    )
    return table(("", ""), rows)


def commit() -> str:
    """The commit of the checkout, and whether anything but the page was changed since."""
    words = ["git", "describe", "--always", "--abbrev=12", "--exclude=*"]
    changed = ["git", "status", "--porcelain", "--", ".", f":!{PAGE.name}"]
    try:
        name, changes = (
            subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (words, changed)
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{name} with changes" if changes else name


if __name__ == "__main__":
    sys.exit(main())
