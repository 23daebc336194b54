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

from figures import Curve, Figure, Measured, missed, summary, table
from measuring import processor

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "BENCHMARKS.md", ROOT / "docs" / "assets" / "benchmark-curves.svg"
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
    "`test` / bare forward, ViT-B/16, bf16-true": "times as long as the network alone takes a whole run of ViT-B/16",
    "sweep, pointing game and peaks from 14 x 14 maps": "times as long as reading its pixels once takes all that is "
    "found out about a map",
    "`test --config demo` to its first batch": "seconds pass until the first batch of `test --config demo`",
}
"""The figures for those who want three numbers, and what each says."""


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
        page = render(outcomes, time.perf_counter() - started)
        if not (given.parts or given.quick):
            # After each part, so that what was measured is not lost with what comes after.
            PAGE.write_text(page)
    if given.parts or given.quick:
        print(page)
    else:
        draw([curve for outcome in outcomes.values() if isinstance(outcome, Measured) for curve in outcome.curves])
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


def render(outcomes: Mapping[str, Measured | str], seconds: float) -> str:
    """The page."""
    figures: dict[str, Sequence[Figure]] = {}
    for part, outcome in outcomes.items():
        values = outcome.values if isinstance(outcome, Measured) else {}
        figures[PARTS[part]] = [replace(figure, value=values.get(figure.name)) for figure in declared(part)]
    sections = []
    for part, outcome in outcomes.items():
        text = outcome.text if isinstance(outcome, Measured) else f"This part failed: {outcome}\n"
        if isinstance(outcome, Measured) and outcome.curves:
            text += f"\n![Microseconds an image as the work grows]({PICTURE.relative_to(ROOT)})\n"
        sections.append(f"## {PARTS[part]}\n\n{text}")
    reasons = missed([figure for of_part in figures.values() for figure in of_part])
    return "\n".join(
        (
            "# Benchmarks\n",
            "Written by `make bench`. Ratios (x) carry over to other machines, seconds do not. A verdict is on the "
            "figure as it is shown.\n",
            headlines([figure for of_part in figures.values() for figure in of_part]),
            machine(seconds),
            "## Figures and targets\n",
            summary(figures),
            *(("Why targets are missed, and what would be needed:\n", reasons) if reasons else ()),
            *sections,
            "## What is measured elsewhere\n",
            "`python benchmarks/models.py` measures images a second and memory of each model (half an "
            "hour), `python benchmarks/precision.py` how far half precision and compiling move the numbers.\n",
        )
    )


def headlines(figures: Sequence[Figure]) -> str:
    """The three numbers, a line each."""
    shown = {figure.name: figure.row()[1] for figure in figures if figure.value is not None}
    lines = [f"- **{shown[name].split()[0]}** {words}\n" for name, words in HEADLINES.items() if name in shown]
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
    """The commit of the checkout, and whether anything but what is written here was changed since."""
    words = ["git", "describe", "--always", "--abbrev=12", "--exclude=*"]
    changed = ["git", "status", "--porcelain", "--", ".", f":!{PAGE.name}", f":!{PICTURE.relative_to(ROOT)}"]
    try:
        name, changes = (
            subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (words, changed)
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{name} with changes" if changes else name


def draw(curves: Sequence[Curve]) -> None:
    """Draw microseconds an image along what grows."""
    if not curves:
        return
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "xbench"
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(curves), figsize=(9, 2.8), sharey=True, layout="constrained")
    for panel, curve in zip(panels, curves, strict=True):
        panel.loglog(*zip(*curve.points, strict=True), marker="o")
        panel.set_xlabel(curve.along)
        panel.set_xticks([x for x, _ in curve.points], [f"{x:,}" for x, _ in curve.points])
        costs = [y for one in curves for _, y in one.points]
        ticks = [
            step * 10**k for k in range(1, 7) for step in (1, 2, 5) if min(costs) / 2 < step * 10**k < 2 * max(costs)
        ]
        panel.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("µs an image")
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
