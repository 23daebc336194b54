"""A benchmark of toys: order, failures, what is run again and what is not, and being stopped."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from processes import held, start, until
from run_files import change

import xbench.commands.bench.preflight
import xbench.commands.bench.worker
import xbench.commands.report
from xbench.cli import main
from xbench.commands.bench.config import plan, read_bench
from xbench.commands.bench.preflight import DataState, FinishedRuns
from xbench.commands.bench.worker import Interrupted, Worker, run_logged
from xbench.commands.configs import resolve_class
from xbench.commands.options import RunParser, build, run_parser
from xbench.runs.provenance import versions
from xbench.runs.results import read_results

# A model with a checkpoint, and a dataset with a file of annotations, as anyone might write them.
PINNED = """
from dataclasses import replace
from pathlib import Path
from toys import Brightness, Squares
from xbench.runtime.errors import UserError
from xbench.runtime.digests import file_sha256

class Model(Brightness):
    def __init__(self, checkpoint: str | None = None, prompts: str | None = None, fault: str = "none") -> None:
        super().__init__(fault=fault)
        if checkpoint is None:
            raise UserError("Model needs a checkpoint: give --model.checkpoint FILE.")
        self.checkpoint = checkpoint
        self.prompt_file = prompts

    def provenance(self):
        path = Path(self.checkpoint)
        return {"checkpoint": str(path), "checkpoint_sha256": file_sha256(path), **super().provenance()}

class Data(Squares):
    name = "data"

    def __init__(self, root: str, **kwargs) -> None:
        super().__init__(**kwargs)
        self.root = Path(root)
        if not self.root.is_dir():
            raise UserError(f"data: --data.root {root} is not a folder.")

    def read_records(self, annotated):
        self.images = int((self.root / "images.txt").read_text())
        records = super().read_records(annotated)
        if (self.root / "haunted").exists():
            # Found by nobody who looks at digests of files alone.
            records = [replace(one, labels={**one.labels, "Ghost": 0}) for one in records]
        return records

    def annotation_files(self):
        return [self.root / "boxes.csv"]
"""


@dataclass
class Bench:
    """A benchmark in this process: the commands that it started last, and the reports that it asked for."""

    folder: Path
    call: Callable[..., Any]
    commands: dict[str, Sequence[str]] = field(default_factory=dict)
    reports: list[Sequence[str]] = field(default_factory=list)
    # The run in the midst of which the user stops the benchmark.
    stop_at: str = ""

    def __call__(self, *words: object) -> Any:
        self.commands.clear()
        self.reports.clear()
        return self.call("bench", *words)

    @property
    def started(self) -> list[str]:
        return [*self.commands]

    def run_logged(self, command: Sequence[str], log: Path, keep_open: int, tick: Callable[[], None]):
        assert list(command[1:4]) == ["-m", "xbench.cli", "test"]
        assert os.fstat(keep_open)
        self.commands[log.stem] = command
        tick()
        if log.stem == self.stop_at:
            raise Interrupted(signal.SIGINT)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            status = main(list(command[3:]))
        return status, log.read_text().strip().splitlines()[-1].removeprefix("error: ")

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name


@pytest.fixture(scope="module")
def parser() -> RunParser:
    return run_parser("test")


@pytest.fixture
def bench(tmp_path: Path, command, parser: RunParser, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path, command)
    monkeypatch.setattr(xbench.commands.bench.preflight, "run_parser", lambda command: parser)
    monkeypatch.setattr(xbench.commands.bench.worker, "run_logged", bench.run_logged)
    monkeypatch.setattr(xbench.commands.report, "report", bench.reports.append)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pinned", raising=False)
    write_pinned(tmp_path)
    bench.write(
        "toys.yaml",
        "models: {bright: {class_path: toys.Brightness}, soft: {class_path: toys.Brightness, gain: 2.0}}\n"
        "datasets: {squares: {class_path: toys.Squares, images: 6}, few: {class_path: toys.Squares, images: 4}}\n"
        "data: {num_workers: 0}\ntrainer: {logger: false, accelerator: cpu}\n",
    )
    return bench


def write_pinned(folder: Path) -> None:
    """Write everything that a run of `pinned.yaml` needs."""
    (folder / "root").mkdir()
    for name, text in {
        "pinned.py": PINNED,
        "weights.pt": "weights",
        "words.yaml": "Square: a square\nHole: a dark hole\nGhost: a ghost\n",
        "root/images.txt": "6",
        "root/boxes.csv": "boxes",
        "pinned.yaml": "models: {model: {class_path: pinned.Model, checkpoint: weights.pt}}\n"
        "datasets: {data: {class_path: pinned.Data, root: root}}\n"
        "data: {num_workers: 0}\ntrainer: {logger: false, accelerator: cpu}\n",
    }.items():
        (folder / name).write_text(text)


def test_all_runs_once_one_after_another_then_the_report(bench: Bench):
    run = bench("--config", "toys.yaml")
    assert run.status == 0, run.output + run.errors
    assert bench.started == ["bright_squares", "soft_squares", "bright_few", "soft_few"]
    assert bench.reports == [["runs"]]
    assert "Runs: 4 finished" in run.output
    for name in bench.started:
        assert f"{name} finished" in run.output
    assert len([*(bench.folder / "runs").glob("brightness_squares/*/results.json")]) == 4
    # A time is promised as soon as one run is done.
    assert "about 0:0" in run.output
    again = bench("--config", "toys.yaml")
    assert again.status == 0
    assert bench.started == []
    assert "Runs: 4 skipped" in again.output
    assert again.output.count("skipped: runs/brightness_squares/") == 4
    assert bench.reports == [["runs"]]
    assert bench("--config", "toys.yaml", "--part", "1/2").status == 0
    assert bench.reports == []


def test_numbers_are_fractions_and_the_flattering_one_comes_last_and_says_so(bench: Bench):
    run = bench("--config", "toys.yaml", "--models", "bright", "--datasets", "few")
    macro = read_results(next(bench.folder.glob("runs/*/*/results.json"))).macro
    numbers = [f"{macro[name]:.3f}" for name in ("pointing_game", "dice_fixed", "auroc", "dice_best")]
    lines = [line.split() for line in run.output.splitlines()]
    assert [line[-4:] for line in lines if line[:2] == ["bright_few", "finished"] and len(line) == 7] == [numbers]
    assert [line[-4:] for line in lines if {"Point.", "AUROC"} <= {*line}] == [["Point.", "@0.5", "AUROC", "best"]]
    assert "chosen on these same images" in " ".join(run.output.split())


@pytest.mark.parametrize(
    ("options", "again"),
    [
        (["--data.num_workers", "1"], False),
        (["--data.cache", "false"], False),
        (["--oversubscribe", "true"], False),
        (["--model.gain", "3"], True),
        (["--trainer.precision", "64-true"], True),
        (["--threads", "2"], True),
    ],
)
def test_only_what_moves_a_number_makes_a_run_new(bench: Bench, options, again):
    chosen = ("--config", "toys.yaml", "--models", "bright", "--datasets", "few")
    assert bench(*chosen).status == 0
    run = bench(*chosen, *options)
    assert run.status == 0, run.output + run.errors
    assert bench.started == (["bright_few"] if again else [])


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a finished run of what can be changed, made for real."""
    folder = tmp_path_factory.mktemp("pinned")
    write_pinned(folder)
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        (job,) = plan(read_bench(["pinned.yaml"]), Path("runs"))
        assert main(["test", *job.options, "--model.prompts", "words.yaml"]) == 0
    sys.modules.pop("pinned")
    return folder


def edit_results(folder: Path, **provenance: object) -> None:
    (path,) = folder.glob("runs/*/*/results.json")
    change(path.parent, **{f"provenance__{name}": value for name, value in provenance.items()})


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda folder: None, ""),
    "time of the weights": (lambda folder: (folder / "weights.pt").write_text("weights"), ""),
    "weights": (lambda folder: (folder / "weights.pt").write_text("others"), "weights.pt"),
    "no weights": (lambda folder: (folder / "weights.pt").unlink(), "weights.pt"),
    "annotations": (lambda folder: (folder / "root" / "boxes.csv").write_text("others"), "boxes.csv"),
    "images": (lambda folder: (folder / "root" / "images.txt").write_text("7"), "6 images are now 7"),
    "labels": (lambda folder: (folder / "root" / "haunted").touch(), "the images or labels of Ghost"),
    "code": (lambda folder: (folder / "beside.py").touch(), "the code of xbench or of the user's classes"),
    "prompts": (lambda folder: (folder / "words.yaml").write_text("Square: others\n"), "words.yaml"),
    "version": (lambda folder: edit_results(folder, versions=versions() | {"torch": "1"}), "torch 1 is now "),
    "source": (lambda folder: edit_results(folder, source_sha256=None), "the code of xbench"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_run_depends_on(pinned: Path, tmp_path: Path, monkeypatch, parser: RunParser, what: str):
    folder = tmp_path / "copy"
    shutil.copytree(pinned, folder)
    # Of a copy all files are new; the run counts as begun after that.
    (config,) = folder.glob("runs/*/*/config.yaml")
    time.sleep(0.02)
    config.touch()
    time.sleep(0.02)
    act, reason = CHANGES[what]
    act(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "pinned", raising=False)
    (job,) = plan(read_bench(["pinned.yaml"]), Path("runs"), ["--model.prompts", "words.yaml"])
    config = parser.resolve(job.options)
    found = FinishedRuns(Path("runs")).newest(config, DataState(build(config["data"])))
    assert found is not None
    assert found.changed.startswith(reason) if reason else found.changed == ""
    assert found.done == (not reason)


def test_a_class_may_have_the_name_of_its_module(tmp_path: Path, monkeypatch):
    (tmp_path / "same_name").mkdir()
    (tmp_path / "same_name" / "Model.py").write_text("class Model: ...")
    (tmp_path / "same_name" / "__init__.py").write_text("from .Model import Model")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(resolve_class("same_name.Model"), type)


def test_why_a_run_is_new_is_said(bench: Bench):
    assert bench("--config", "pinned.yaml").status == 0
    bench.write("root/boxes.csv", "others")
    run = bench("--config", "pinned.yaml")
    assert bench.started == ["model_data"]
    assert "model_data finished" in run.output and "anew, for this has changed: boxes.csv" in run.output
    # The report takes the newest, and so does the next benchmark.
    assert bench("--config", "pinned.yaml").status == 0
    assert bench.started == []


def test_it_goes_on_after_a_failure_and_tries_again(bench: Bench):
    bench.write(
        "faulty.yaml",
        "models: {nan: {class_path: toys.Brightness, fault: nan}, bright: {class_path: toys.Brightness}}\n"
        "datasets: {squares: {class_path: toys.Squares, images: 6, num_workers: 0}}\ntrainer: {logger: false}\n",
    )
    run = bench("--config", "faulty.yaml")
    assert run.status == 1
    assert bench.started == ["nan_squares", "bright_squares"]
    assert "Runs: 1 finished, 1 failed" in run.output
    (reason,) = [line for line in run.output.splitlines() if line.startswith("nan_squares failed: ")]
    assert "NaN" in reason and "runs/bench/logs/nan_squares.log" in reason
    assert run.errors.startswith("error: 1 of 2 runs failed: nan_squares.")
    assert "NaN" in (bench.folder / "runs/bench/logs/nan_squares.log").read_text()
    assert bench.reports == [["runs"]]
    again = bench("--config", "faulty.yaml")
    assert bench.started == ["nan_squares"]
    assert again.status == 1
    assert "Runs: 1 skipped, 1 failed" in again.output


def test_maps_that_say_nothing_are_a_failure_each_time(bench: Bench):
    words = ("--config", "toys.yaml", "--models", "bright", "--datasets", "few", "--model.fault", "constant")
    for _ in range(2):
        run = bench(*words)
        assert run.status == 1
        assert bench.started == ["bright_few"]
        assert "are constant" in run.output


def test_what_changes_meanwhile_is_said(bench: Bench, monkeypatch):
    usual = bench.run_logged

    def edit_meanwhile(*arguments):
        found = usual(*arguments)
        edit_results(bench.folder, source_sha256="0" * 64)
        return found

    monkeypatch.setattr(xbench.commands.bench.worker, "run_logged", edit_meanwhile)
    run = bench("--config", "pinned.yaml")
    assert run.status == 1
    assert "model_data changed: while the benchmark was going on: the code of xbench" in run.output


def test_everything_that_is_missing_is_said_before_anything_runs(bench: Bench, monkeypatch):
    monkeypatch.delenv("NOWHERE", raising=False)
    bench.write(
        "missing.yaml",
        "models:\n  model: {class_path: pinned.Model, checkpoint: weights.pt}\n"
        "  lost: {class_path: pinned.Model, checkpoint: /lost.pt}\n  none: {class_path: pinned.Model}\n"
        "datasets:\n  data: {class_path: pinned.Data, root: root}\n  gone: {class_path: pinned.Data, root: /gone}\n"
        '  unset: {class_path: pinned.Data, root: "${NOWHERE}"}\n'
        "data: {num_workers: 0}\ntrainer: {logger: false, accelerator: cpu}\n",
    )
    run = bench("--config", "missing.yaml")
    assert run.status == 2
    assert bench.started == []
    assert run.errors.startswith("error: 8 of 9 runs cannot be done (4 problems, listed above)")
    assert "--missing skip" in run.errors
    for text in (
        "lost_data, lost_gone: The weights of Model are not there: /lost.pt does not exist.",
        "none_data, none_gone: Model needs a checkpoint",
        "model_gone, lost_gone, none_gone: data: --data.root /gone is not a folder.",
        "model_unset, lost_unset, none_unset: The environment variable NOWHERE, which root of datasets needs, is not",
    ):
        assert text in run.output

    run = bench("--config", "missing.yaml", "--missing", "skip")
    assert run.status == 0, run.output + run.errors
    assert bench.started == ["model_data"]
    assert "Runs: 1 finished, 8 left out" in run.output
    assert "lost_data left out: The weights of Model" in run.output


def test_wrong_options_are_never_skipped(bench: Bench):
    run = bench("--config", "toys.yaml", "--missing", "skip", "--model.gian", "3")
    assert run.status == 2
    assert bench.started == []
    assert run.output.count("gian") == 1, "one problem, not one for every run"
    assert "4 of 4 runs cannot be done (1 problem" in run.errors
    assert "--missing" not in run.errors


def test_check_runs_nothing(bench: Bench):
    run = bench("--config", "pinned.yaml", "--check", "true")
    assert run.status == 0, run.output + run.errors
    assert "Nothing is wrong. Of 1 runs 0 are finished" in run.output
    assert bench.started == []
    assert not [*(bench.folder / "runs").glob("*/*/config.yaml")]
    run = bench("--config", "pinned.yaml", "--check", "true", "--data.unreadable", "[2]")
    assert run.status == 1
    assert "square-002" in run.output


def test_stopped_by_the_user(bench: Bench):
    bench.stop_at = "bright_few"
    run = bench("--config", "toys.yaml")
    assert run.status == 1
    assert run.errors == "error: Stopped by SIGINT after 2 of 4 runs. The same command goes on where it was.\n"
    assert "Runs: 2 finished, 1 stopped, 1 not begun" in run.output
    assert bench.reports == []
    bench.stop_at = ""
    run = bench("--config", "toys.yaml")
    assert run.status == 0
    assert bench.started == ["bright_few", "soft_few"]


def test_what_was_begun_is_gone_on_with(bench: Bench, monkeypatch):
    words = ("--config", "pinned.yaml", "--data.batch_size", "2")
    assert bench(*words).status == 0
    (folder,) = bench.folder.glob("runs/model_data/*")
    (folder / "results.json").unlink()
    # As a run that was killed leaves it, which test_resume makes for real.
    (folder / "journal").mkdir()
    answers = iter([(2, "--resume true: it was begun otherwise."), None])
    commands = []

    def refuse_first(command, *arguments):
        commands.append(command)
        return next(answers) or bench.run_logged(command, *arguments)

    monkeypatch.setattr(xbench.commands.bench.worker, "run_logged", refuse_first)
    run = bench(*words)
    assert run.status == 0, run.output
    assert [command[-2:] == ["--resume", "true"] for command in commands] == [True, False]


def test_only_one_at_a_time(bench: Bench):
    chosen = ("--config", "toys.yaml", "--models", "bright", "--datasets", "few")
    with held(bench.folder / "runs/bench/lock") as process:
        for more in ((), ("--part", "1/1")):
            run = bench(*chosen, *more)
            assert run.status == 1
            assert f"Another benchmark is at work in runs (process {process} on " in run.errors
            assert "runs/bench/lock" in run.errors
            assert bench.started == []
    # The lock ends with whoever held it, however that was.
    assert bench(*chosen).status == 0


def test_several_share_a_folder_but_no_run(bench: Bench):
    with held(bench.folder / "runs/bench/locks/bright_few") as process:
        run = bench("--config", "toys.yaml", "--report", "false")
        assert run.status == 0
        assert "nothing to run" in bench.call("bench", "--config", "toys.yaml", "--part", "9/9").output
        assert bench.started == ["bright_squares", "soft_squares", "soft_few"]
        assert f"bright_few busy: another benchmark is at it: process {process}" in run.output
        assert bench.reports == []
        busy = bench("--config", "toys.yaml", "--report", "false", "--models", "bright", "--datasets", "few")
        assert busy.status == 1 and "Nothing was done" in busy.errors


def test_a_benchmark_that_is_killed_goes_on(bench: Bench, monkeypatch):
    """For real: its run goes on alone, and the next benchmark neither repeats nor loses it."""
    bench.write("slow.py", "import time\nfrom toys import Squares\n\nclass Slow(Squares):\n" + _SLOW_LOAD)
    bench.write(
        "slow.yaml",
        "models: {bright: {class_path: toys.Brightness}, soft: {class_path: toys.Brightness, gain: 2.0}}\n"
        "datasets: {slow: {class_path: slow.Slow, images: 4, num_workers: 0, batch_size: 1}}\n"
        "trainer: {logger: false, accelerator: cpu}\n",
    )
    words = ["bench", "--config", "slow.yaml"]
    with monkeypatch.context() as patch:
        patch.setattr(xbench.commands.bench.worker, "run_logged", run_logged)
        patch.setattr(xbench.commands.bench.preflight, "run_parser", run_parser)
        killed = start(words, bench.folder)
    until(lambda: [*bench.folder.glob("runs/brightness_slow/*/config.yaml")])
    killed.kill(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not [*bench.folder.glob("runs/brightness_slow/*/results.json")]

    def say(worker: Worker, text: str, style: str = "") -> None:
        # The run that goes on waits for this file.
        bench.write("go", "")
        usual(worker, text, style)

    usual = Worker._say
    monkeypatch.setattr(Worker, "_say", say)
    run = bench(*words[1:])
    assert run.status == 0, run.output + run.errors
    assert "bright_slow is still going on since an earlier benchmark (process" in run.output
    assert bench.started == ["soft_slow"]
    assert "Runs: 1 finished, 1 skipped" in run.output


_SLOW_LOAD = """
    def load(self, record):
        import pathlib
        while not pathlib.Path("go").exists():
            time.sleep(0.1)
        time.sleep(0.2)
        return super().load(record)
"""


# A model with an option that moves no number.
NEUTRAL = """
from toys import Brightness

class Model(Brightness):
    neutral_options = Brightness.neutral_options | {"loud"}

    def __init__(self, loud: bool = False, gain: float = 8.0) -> None:
        super().__init__(gain)
"""


def test_a_run_is_gone_on_with_whatever_moves_no_number(bench: Bench, monkeypatch):
    """What the benchmark takes for one run, `--resume` goes on with."""
    bench.write("neutral.py", NEUTRAL)
    monkeypatch.delitem(sys.modules, "neutral", raising=False)
    bench.write(
        "neutral.yaml",
        "models: {model: {class_path: neutral.Model}}\n"
        "datasets: {squares: {class_path: toys.Squares, images: 6, batch_size: 2, num_workers: 0}}\n"
        "trainer: {logger: false, accelerator: cpu}\n",
    )

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("xbench.callbacks.results_writer.write_tables", full)
        assert bench("--config", "neutral.yaml").status == 1
    run = bench("--config", "neutral.yaml", "--model.loud", "true")
    assert run.status == 0, run.output
    assert [command[-2:] for command in bench.commands.values()] == [["--resume", "true"]]
    (results,) = bench.folder.glob("runs/model_squares/*/results.json")
    assert json.loads(results.read_text())["provenance"]["batches_of_earlier_attempts"] > 0
    assert bench("--config", "neutral.yaml").status == 0
    assert bench.started == [], "the finished run counts for every value of the option"
    assert bench("--config", "neutral.yaml", "--model.gain", "3").status == 0
    assert bench.started == ["model_squares"]
