"""How much less time people wait than at an earlier commit: both run the same commands on the same inputs, in turns.

    python benchmarks/run.py against            what make bench measures; half an hour, most of it the earlier commit's
    python benchmarks/against.py report score   rows whose names contain one of these words, printed

The earlier commit is checked out into a temporary folder and runs in this environment, with its own code.
"""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from figures import Figure, Measured, at_most, table

ROOT = Path(__file__).resolve().parents[1]
EARLIER = "b0a9617"
FINDINGS = tuple(f"Finding {number}" for number in range(1, 9))


@dataclass(frozen=True)
class Side:
    """A checkout of xbench and a folder for its runs; inputs are shared by both sides."""

    checkout: Path
    work: Path
    inputs: Path
    quick: bool

    def run(self, *commands: str, status: int = 0) -> None:
        """Run commands of xbench one after another in one new interpreter.

        `{inputs}` is the folder of inputs, `{run}` the only run so far.
        """
        run = next(self.work.glob("runs/*/*/results.json"), self.work).parent
        lines = [command.format(inputs=self.inputs, run=run).split() for command in commands]
        script = f"import sys, xbench.cli\nsys.exit(max(xbench.cli.main(words) or 0 for words in {lines!r}))"
        own = {"PYTHONPATH": str(self.checkout), "XBENCH_CACHE": str(self.work / "cache"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=self.work,
            env=os.environ | own | {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode != status:
            raise RuntimeError(f"{commands[-1]!r} at {self.checkout}: {done.stdout[-500:]} {done.stderr[-1500:]}")


@dataclass(frozen=True)
class Row:
    """A command that people wait for.

    Attributes:
        name: What is shown.
        target: Largest share of the earlier commit's time.
        note: Why it is missed.
        inputs: Write what both sides read.
        prepare: Commands that are not timed, once a side.
        command: What is timed.
        earlier: The earlier commit's command, where it has no such option.
        rounds: How often each side is timed.
        status: The command's exit status.
    """

    name: str
    target: float
    command: str
    prepare: Callable[[bool], Sequence[str]] = lambda quick: ()
    inputs: Callable[[Path, bool], None] = lambda folder, quick: None
    rounds: int = 1
    status: int = 0
    earlier: str = ""
    note: str = "See where its time goes with `python -m cProfile -m xbench.cli`."


def films(folder: Path, images: int, findings: int, shape: tuple[int, int]) -> None:
    """Write a dataset of one's own: PNG files, labels, boxes of half of the pairs, and its configuration."""
    from PIL import Image

    from xbench.data.phantom import draw_phantom

    (folder / "images").mkdir(parents=True)
    random, names = np.random.default_rng(0), FINDINGS[:findings]
    with (folder / "labels.csv").open("w", newline="") as labels, (folder / "boxes.csv").open("w", newline="") as boxes:
        label, box = csv.writer(labels), csv.writer(boxes)
        label.writerow(("image", *names))
        box.writerow(("image", "finding", "x", "y", "width", "height"))
        for number in range(images):
            path = folder / "images" / f"{number:05d}.png"
            if number < 8:
                drawn = Image.fromarray(draw_phantom(0, number, 320, 320).image)
                drawn.resize(shape[::-1], Image.Resampling.BICUBIC).save(path)
            else:
                path.hardlink_to(folder / "images" / f"{number % 8:05d}.png")
            present = random.integers(0, 2, findings)
            label.writerow((path.name, *present))
            for name in np.array(names)[present == 1]:
                height, width = (int(side * random.uniform(0.1, 0.3)) for side in shape)
                y, x = (
                    int(random.integers(0, side - extent)) for side, extent in zip(shape, (height, width), strict=True)
                )
                box.writerow((path.name, name, x, y, width, height))
    own = "".join(f"    {name}: {name}\n" for name in names)
    (folder / "own.yaml").write_text(
        f"data:\n  root: {folder}/images\n  labels: {folder}/labels.csv\n  annotations: {folder}/boxes.csv\n"
        f"  name: own\n  findings:\n{own}"
    )


def table_of_scores(path: Path, images: int, findings: int, seed: int = 0) -> None:
    """Write a CSV file with a column of probabilities for each finding."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("image", *FINDINGS[:findings]))
        drawn = np.random.default_rng(seed).random((images, findings))
        rows.writerows((f"{number:05d}", *row) for number, row in enumerate(drawn.tolist()))


def one_large_run(folder: Path, quick: bool) -> None:
    films(folder, 24 if quick else 3_000, 3, (320, 320))


def thirty_models(folder: Path, quick: bool) -> None:
    """Write maps and scores of thirty models on 24 films."""
    films(folder, 24, 3, (320, 320))
    for model in range(3 if quick else 30):
        table_of_scores(folder / f"scores{model}.csv", 24, 3, model)
        random = np.random.default_rng(model)
        for number in range(24):
            maps = folder / f"maps{model}" / f"{number:05d}"
            maps.mkdir(parents=True)
            for finding in FINDINGS[:3]:
                np.save(maps / f"{finding}.npy", random.random((14, 14), np.float32))


def probabilities(folder: Path, quick: bool) -> None:
    images = 24 if quick else 10_000
    films(folder, images, 8, (320, 320))
    table_of_scores(folder / "scores.csv", images, 8)


def demo(quick: bool) -> Sequence[str]:
    few = " --data.limit 16" if quick else ""
    return f"test --config demo{few}", f"bench --config demo --report false{few}"


PAGE = "report runs --figures false"
OWN = "--config csv --config {inputs}/own.yaml"
ROWS = (
    Row("page of the demo's six runs", 1 / 3, PAGE, demo, rounds=3, earlier="report runs"),
    Row(
        "page of one run of 3,000 images",
        1 / 4,
        PAGE,
        lambda quick: ("test --config centre_csv --config {inputs}/own.yaml --trainer.logger false",),
        one_large_run,
        earlier="report runs",
        note="Most of it is start-up and the floor `Random`, a histogram over every region.",
    ),
    Row(
        "page of 30 runs of 24 images",
        1 / 4,
        PAGE,
        lambda quick: [
            f"score {OWN} --predictions {{inputs}}/maps{model} --scores {{inputs}}/scores{model}.csv "
            f"--name model{model} --frame whole --trainer.logger false"
            for model in range(3 if quick else 30)
        ],
        thirty_models,
        earlier="report runs",
    ),
    Row(
        "`score` of a table of 10,000 x 8 probabilities",
        1 / 10,
        f"score {OWN} --predictions {{inputs}}/scores.csv --name mine --trainer.logger false",
        inputs=probabilities,
        note="Half of it is importing libraries.",
    ),
    Row("`bench` of six runs of 8 images", 1 / 2, "bench --config demo --report false --data.limit 8", rounds=2),
    Row("a misspelled option", 1 / 10, "test --config demo --data.limti 8", rounds=3, status=2),
    Row("`test --config carzero_vindr` without data", 1 / 10, "test --config carzero_vindr", rounds=3, status=2),
    Row(
        "`rescore --protocol chexlocalize` of 24 films of 2,500 x 3,000 pixels",
        1 / 3,
        "rescore {run} --protocol chexlocalize",
        lambda quick: ("test --config demo_csv --config {inputs}/own.yaml --data.grid native --trainer.logger false",),
        lambda folder, quick: films(folder, 24, 3, (320, 384) if quick else (2_500, 3_000)),
        note="Loading numba and its compiled loops is a fifth of it, and does not grow with the films.",
    ),
)
FIGURES = tuple(Figure(f"{row.name} / at {EARLIER}", "x", at_most(round(row.target, 3)), row.note) for row in ROWS)


def measure(quick: bool = False, rows: Sequence[Row] = ROWS) -> Measured:
    found, lines = {}, []
    with earlier_checkout() as checkout:
        for row, figure in zip(ROWS, FIGURES, strict=True):
            if row in rows:
                wall, processor = compare(row, checkout, quick)
                found[figure.name] = wall[1] / wall[0]
                lines.append((row.name, *wall, *processor, processor[1] / processor[0]))
    head = (
        "command",
        f"{EARLIER}, s",
        "now, s",
        f"{EARLIER}, processor s",
        "now, processor s",
        "ratio of processor time",
    )
    text = (
        "Whole commands, start-up and all, in new interpreters of the same environment, one after the other; medians "
        "of one to three rounds. The figures above are ratios of wall time. A page is written without the figures for "
        "papers, which the earlier commit always draws.\n\n"
    )
    return Measured(found, text + table(head, lines))


def compare(row: Row, checkout: Path, quick: bool) -> tuple[list[float], list[float]]:
    """Seconds and processor seconds of the earlier commit and of this one."""
    with tempfile.TemporaryDirectory() as place:
        inputs = Path(place, "inputs")
        row.inputs(inputs, quick)
        sides = []
        for name, code in (("earlier", checkout), ("now", ROOT)):
            work = Path(place, name)
            work.mkdir()
            sides.append(Side(code, work, inputs, quick))
            if commands := row.prepare(quick):
                sides[-1].run(*commands)
        seconds = np.array([[timed(side, row) for side in sides] for _ in range(1 if quick else row.rounds)])
    wall, processor = np.median(seconds, 0).T.tolist()
    return wall, processor


def timed(side: Side, row: Row) -> tuple[float, float]:
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    side.run((side.checkout != ROOT and row.earlier) or row.command, status=row.status)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def earlier_checkout() -> Iterator[Path]:
    """Check the earlier commit out, with its callbacks and configurations where an installed package has them."""
    with tempfile.TemporaryDirectory() as place:
        checkout = Path(place, "checkout")
        subprocess.run(
            ["git", "worktree", "add", "--detach", checkout, EARLIER], cwd=ROOT, check=True, capture_output=True
        )
        try:
            for folder in ("callbacks", "configs"):
                (checkout / "xbench" / folder).symlink_to(checkout / folder)
            yield checkout
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True, capture_output=True
            )


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--quick"]
    chosen = [row for row in ROWS if not words or any(word in row.name for word in words)]
    print(measure("--quick" in sys.argv, chosen).text)
