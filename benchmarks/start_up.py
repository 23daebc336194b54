"""How long commands take to start, and where the time goes.

python benchmarks/run.py start_up
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from figures import Figure, Measured, at_least, at_most, table
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
    Figure("a misspelled option, or data that is not there", "s", at_most(0.5), note="PyTorch is imported too early."),
    Figure(
        "a run of `bench` to its first batch, from the second run on",
        "s",
        at_most(1),
        note="Something that every run imports is not in the process that it is forked from.",
    ),
    Figure("the same in a new interpreter / forked", target=at_least(4), note="See the figure above."),
)
COMMANDS = (
    "--help",
    "list",
    "test --help",
    "test --config demo --model.thresold 1",
    "test --config carzero_vindr.yaml",
)
# As every command does before it imports anything else.
LEAN = "from xbench.runtime.start_up import import_lean_torchmetrics as lean; lean()"
HEAVY = ("torch", "torchvision", "torchmetrics", "lightning", "open_clip", "transformers", "timm", "wandb", "pandas")


def measure(quick: bool = False) -> Measured:
    rounds = 1 if quick else 3
    seconds: dict[str, list[float]] = {words: [] for words in COMMANDS}
    for _ in range(rounds):
        for words, taken in seconds.items():
            started = time.perf_counter()
            command(words)
            taken.append(time.perf_counter() - started)
    heavy = sum(
        count
        for words in seconds
        for package, (count, _) in imports("-m", "xbench.cli", *words.split()).items()
        if package in HEAVY
    )
    phases = [alone(first_batch) for _ in range(1 if quick else 3)]
    of_test = {phase: float(np.median([one[phase] for one in phases])) for phase in phases[0]}
    packages = imports("-c", f"{LEAN}; import xbench.commands.run")
    largest = sorted(packages.items(), key=lambda item: -item[1][1])[:10]
    medians = {words: float(np.median(taken)) for words, taken in seconds.items()}
    of_bench = {how: float(np.median(taken)) for how, taken in alone(first_batches, rounds).items()}
    found = (medians["--help"], medians["list"], float(heavy), sum(of_test.values()))
    found += (max(medians[words] for words in COMMANDS[3:]), of_bench["forked"], of_bench["new"] / of_bench["forked"])
    text = (
        f"Wall time of new processes, medians of {rounds}; files are in the page cache. The first batch of "
        "`test --config demo --trainer.logger false` is that of eight phantoms, drawn in worker processes.\n\n"
        + table(("what is answered at once", "seconds"), [(f"`{words}`", taken) for words, taken in medians.items()])
        + "\n"
        + table(("`test` until its first batch", "seconds"), list(of_test.items()))
        + "\nA run of `bench` on the same phantoms waits for its first batch "
        f"{of_bench['first']:.2f} s if it is the first one, later {of_bench['forked']:.2f} s, and in a new interpreter "
        f"{of_bench['new']:.2f} s.\n"
        + "\nWhat importing `xbench.commands.run` costs, by package and without what each imports in turn (measured "
        "with `-X importtime`, which itself takes time):\n\n"
        + table(("package", "modules", "seconds"), [(package, n, taken) for package, (n, taken) in largest])
    )
    return Measured({figure.name: value for figure, value in zip(FIGURES, found, strict=True)}, text)


def command(words: str) -> None:
    """Run a command of xbench; the status of what is misspelled is 2."""
    status = subprocess.run([sys.executable, "-m", "xbench.cli", *words.split()], capture_output=True).returncode
    assert status in (0, 2), words


def imports(*words: str) -> dict[str, tuple[int, float]]:
    """Modules and seconds of their own, by package, that a new interpreter imports."""
    report = subprocess.run([sys.executable, "-X", "importtime", *words], capture_output=True, text=True)
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for own, name in re.findall(r"import time: +(\d+) \| +\d+ \| +(\S+)", report.stderr):
        counts[name.partition(".")[0]] += 1
        seconds[name.partition(".")[0]] += int(own)
    return {package: (counts[package], seconds[package] / 1e6) for package in counts}


def first_batch() -> dict[str, float]:
    """Seconds of `test` until its first batch, by phase. Runs in a process of its own."""
    started = time.perf_counter()
    from xbench.runtime.start_up import import_lean_torchmetrics

    import_lean_torchmetrics()
    from lightning.pytorch import Callback

    from xbench.commands.run import run_test

    moments = [started, time.perf_counter()]

    class Moments(Callback):
        def setup(self, *_: object, **__: object) -> None:
            moments.append(time.perf_counter())

        def on_test_start(self, *_: object, **__: object) -> None:
            moments.append(time.perf_counter())

        def on_test_batch_start(self, *_: object, **__: object) -> None:
            moments.append(time.perf_counter())

    sys.modules["moments"] = SimpleNamespace(Moments=Moments)  # type: ignore[assignment]
    Moments.__module__, Moments.__qualname__ = "moments", "Moments"
    options = "--config demo --data.limit 8 --trainer.logger false --trainer.callbacks+=moments.Moments"
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run_test([*options.split(), "--trainer.enable_progress_bar", "false", "--trainer.default_root_dir", folder])
    phases = ("imports", "options, model, data and trainer", "set-up and text", "wait for the first batch")
    return dict(zip(phases, np.diff(moments[:5]).tolist(), strict=True))


CALLBACK = """
import time, pathlib
from lightning.pytorch import Callback

class FirstBatch(Callback):
    def on_test_batch_start(self, *_):
        pathlib.Path("first_batch").write_text(str(time.time()))
"""


def first_batches(rounds: int) -> dict[str, list[float]]:
    """Seconds of runs of `bench` until their only batch, forked and in new interpreters in turn."""
    from xbench.runtime.start_up import import_lean_torchmetrics

    import_lean_torchmetrics()
    from xbench.commands.bench import warm, worker
    from xbench.commands.options import run_parser
    from xbench.runtime.locks import try_lock

    options = "--config demo --data.limit 8 --trainer.logger false --trainer.callbacks+=first.FirstBatch"
    seconds: dict[str, list[float]] = {"first": [], "forked": [], "new": []}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("first.py").write_text(CALLBACK)
        sys.path.insert(0, folder)
        # As `bench` does, which imports what its runs need.
        run_parser("test").read(options.split())
        forks = warm.forks
        for how in ("first", *["forked", "new"] * rounds):
            warm.forks = (lambda: False) if how == "new" else forks
            words = [sys.executable, "-m", "xbench.cli", "test", *options.split()]
            started = time.time()
            process = worker.Process(words, Path("run.log"), try_lock(Path("lock")), worker.Share())
            process.wait()
            assert process.poll() == 0, process.last_words()
            seconds[how].append(float(Path("first_batch").read_text()) - started)
    return seconds
