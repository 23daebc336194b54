from __future__ import annotations

import contextlib
import json
import multiprocessing.forkserver
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from processes import Fork, held, start, until

import xbench.commands.bench.worker
import xbench.commands.report
from xbench.cli import main
from xbench.commands.bench import warm
from xbench.commands.bench.config import plan, read_bench
from xbench.commands.bench.worker import Process, Share, look
from xbench.commands.options import RunParser, resolve_class, run_parser
from xbench.runs.fingerprint import versions
from xbench.runs.journal import finished_batches

PINNED = """
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
        return super().read_records(annotated)

    def annotation_files(self):
        return [self.root / "boxes.csv"]
"""


class FakeProcess:
    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            self.status = main(list(words))

    def poll(self) -> int:
        return self.status

    def last_words(self) -> str:
        return self.log.read_text().strip().splitlines()[-1].removeprefix("error: ")


@dataclass
class Bench:
    """A benchmark in this process: the commands that it started last, and the reports that it asked for."""

    folder: Path
    call: Callable[..., Any]
    commands: dict[str, Sequence[str]] = field(default_factory=dict)
    reports: list[Sequence[str]] = field(default_factory=list)

    def __call__(self, *words: object, status: int | None = None) -> Any:
        self.commands.clear()
        self.reports.clear()
        return self.call("bench", *words, status=status)

    @property
    def started(self) -> list[str]:
        return [*self.commands]

    def process(self, command: Sequence[str], log: Path, lock: int, share: Share) -> FakeProcess:
        assert list(command[1:4]) == ["-m", "xbench.cli", "test"]
        self.commands[log.stem] = command
        with open(lock):
            return FakeProcess(command[3:], log)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name


@pytest.fixture(scope="module")
def parser() -> RunParser:
    return run_parser("test")


@pytest.fixture
def bench(tmp_path: Path, command, parser: RunParser, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path, command)
    monkeypatch.setattr(xbench.commands.bench.worker, "run_parser", lambda command: parser)
    monkeypatch.setattr(xbench.commands.bench.worker, "Process", bench.process)
    monkeypatch.setattr(
        xbench.commands.report, "write_report", lambda runs, out: bench.reports.append([*map(str, runs)])
    )
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
    run = bench("--config", "toys.yaml", status=0)
    assert bench.started == ["bright_squares", "soft_squares", "bright_few", "soft_few"]
    assert bench.reports == [["runs"]]
    assert "Runs: 4 finished" in run.output
    for name in bench.started:
        assert f"{name} finished" in run.output
    assert len([*(bench.folder / "runs").glob("brightness_squares/*/results.json")]) == 4
    again = bench("--config", "toys.yaml", status=0)
    assert bench.started == []
    assert "Runs: 4 skipped" in again.output
    assert again.output.count("skipped: runs/brightness_squares/") == 4
    assert bench.reports == [["runs"]]
    assert bench("--config", "toys.yaml", "--part", "1/2").status == 0
    assert bench.reports == []


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pinned")
    write_pinned(folder)
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        (job,) = plan(read_bench(["pinned.yaml"]), Path("runs"))
        assert main(["test", *job.options, "--model.prompts", "words.yaml"]) == 0
    sys.modules.pop("pinned")
    return folder


def edit_fingerprint(folder: Path, **parts: object) -> None:
    (path,) = folder.glob("runs/*/*/results.json")
    content = json.loads(path.read_text())
    content["provenance"]["fingerprint"] |= parts
    path.write_text(json.dumps(content))


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda folder: None, ""),
    "time of the weights": (lambda folder: (folder / "weights.pt").write_text("weights"), ""),
    "weights": (lambda folder: (folder / "weights.pt").write_text("others"), "model.checkpoint"),
    "annotations": (lambda folder: (folder / "root" / "boxes.csv").write_text("others"), "boxes.csv"),
    "images": (lambda folder: (folder / "root" / "images.txt").write_text("7"), "6 images are now 7"),
    "code": (lambda folder: (folder / "beside.py").touch(), "the code of xbench or of the user's classes"),
    "prompts": (lambda folder: (folder / "words.yaml").write_text("Square: others\n"), "model.prompts"),
    "version": (lambda folder: edit_fingerprint(folder, versions=versions() | {"torch": "1"}), "torch 1 is now "),
    "source": (lambda folder: edit_fingerprint(folder, source_sha256=None), "the code of xbench"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_run_depends_on(pinned: Path, tmp_path: Path, monkeypatch, parser: RunParser, what: str):
    folder = tmp_path / "copy"
    shutil.copytree(pinned, folder)
    act, reason = CHANGES[what]
    act(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "pinned", raising=False)
    monkeypatch.setattr(xbench.commands.bench.worker, "run_parser", lambda command: parser)
    jobs = plan(read_bench(["pinned.yaml"]), Path("runs"), ["--model.prompts", "words.yaml"])
    ((planned,), problems, _) = look(jobs, Path("runs"))
    assert not problems and planned.finished is not None
    assert planned.changed.startswith(reason) if reason else planned.changed == ""
    assert planned.done == (not reason)


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
    assert "model_data finished" in run.output and "again, because of a change: boxes.csv" in run.output
    assert bench("--config", "pinned.yaml").status == 0
    assert bench.started == []


def test_it_goes_on_after_a_failure_and_tries_again(bench: Bench):
    bench.write(
        "faulty.yaml",
        "models: {nan: {class_path: toys.Brightness, fault: nan}, bright: {class_path: toys.Brightness}}\n"
        "datasets: {squares: {class_path: toys.Squares, images: 6, num_workers: 0}}\ntrainer: {logger: false}\n",
    )
    run = bench("--config", "faulty.yaml", status=1)
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
        run = bench(*words, status=1)
        assert bench.started == ["bright_few"]
        assert "are constant" in run.output


def test_what_changes_meanwhile_is_said(bench: Bench, monkeypatch):
    def edit_meanwhile(*arguments):
        process = bench.process(*arguments)
        edit_fingerprint(bench.folder, source_sha256="0" * 64)
        return process

    monkeypatch.setattr(xbench.commands.bench.worker, "Process", edit_meanwhile)
    run = bench("--config", "pinned.yaml", status=1)
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
    run = bench("--config", "missing.yaml", status=2)
    assert bench.started == []
    assert run.errors.startswith("error: 8 of 9 runs cannot start (problems: 4, listed above)")
    assert "--missing skip" in run.errors
    for text in (
        "lost_data, lost_gone: The weights of Model are not there: /lost.pt does not exist.",
        "none_data, none_gone: Model needs a checkpoint",
        "model_gone, lost_gone, none_gone: data: --data.root /gone is not a folder.",
        "model_unset, lost_unset, none_unset: The environment variable NOWHERE, which data.root needs, is not",
    ):
        assert text in run.output

    run = bench("--config", "missing.yaml", "--missing", "skip", status=0)
    assert bench.started == ["model_data"]
    assert "Runs: 1 finished, 8 left out" in run.output
    assert "lost_data left out: The weights of Model" in run.output


def test_wrong_options_are_never_skipped(bench: Bench):
    run = bench("--config", "toys.yaml", "--missing", "skip", "--model.gian", "3", status=2)
    assert bench.started == []
    assert run.output.count("gian") == 1, "one problem, not one for every run"
    assert "4 of 4 runs cannot start (problems: 1" in run.errors
    assert "--missing" not in run.errors


def test_check_runs_nothing(bench: Bench):
    run = bench("--config", "pinned.yaml", "--check", "true", status=0)
    assert "No problems found. 0 of 1 runs are finished" in run.output
    assert bench.started == []
    assert not [*(bench.folder / "runs").glob("*/*/config.yaml")]
    run = bench("--config", "pinned.yaml", "--check", "true", "--data.unreadable", "[2]", status=1)
    assert "square-002" in run.output


def test_only_one_at_a_time(bench: Bench):
    chosen = ("--config", "toys.yaml", "--models", "bright", "--datasets", "few")
    with held(bench.folder / "runs/bench/lock") as process:
        for more in ((), ("--part", "1/1")):
            run = bench(*chosen, *more, status=1)
            assert f"Another benchmark is at work in runs (process {process} on " in run.errors
            assert "runs/bench/lock" in run.errors
            assert bench.started == []
    assert bench(*chosen).status == 0


def test_several_share_a_folder_but_no_run(bench: Bench):
    with held(bench.folder / "runs/bench/locks/bright_few") as process:
        run = bench("--config", "toys.yaml", "--report", "false", status=0)
        assert "has no runs" in bench.call("bench", "--config", "toys.yaml", "--part", "9/9").output
        assert bench.started == ["bright_squares", "soft_squares", "soft_few"]
        assert "bright_few busy: " in run.output and f": process {process} on " in run.output
        assert bench.reports == []
        busy = bench("--config", "toys.yaml", "--report", "false", "--models", "bright", "--datasets", "few")
        assert busy.status == 1 and "bright_few" in busy.errors


_SLOW = """
import pathlib
import time
from toys import Squares

class Slow(Squares):
    def load(self, record):
        while record.image_id.endswith("2") and not pathlib.Path("go").exists():
            time.sleep(0.1)
        return super().load(record)
"""


def slow(bench: Bench, variants: str = "{}") -> list[str]:
    """A run, and one for each variant, whose third image waits for the file `go`."""
    sys.modules.pop("slow", None)
    bench.write("slow.py", _SLOW)
    bench.write(
        "slow.yaml",
        "models: {bright: {class_path: toys.Brightness}}\n"
        "datasets: {slow: {class_path: slow.Slow, images: 4, num_workers: 0, batch_size: 1}}\n"
        f"variants: {variants}\n"
        "trainer: {logger: false, accelerator: cpu}\n",
    )
    return ["bench", "--config", "slow.yaml"]


def journaled(bench: Bench) -> int:
    return sum(len(finished_batches(path)) >= 2 for path in bench.folder.glob("runs/*/*/journal"))


def started(words: Sequence[str], bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Fork:
    with monkeypatch.context() as patch:
        patch.setattr(xbench.commands.bench.worker, "Process", Process)
        patch.setattr(xbench.commands.bench.worker, "run_parser", run_parser)
        patch.setattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
        patch.setattr(warm, "forks", cache(warm.forks.__wrapped__))
        return start(words, bench.folder)


def test_two_at_once_are_stopped_by_ctrl_c_and_go_on(bench: Bench, monkeypatch):
    words = [*slow(bench, "{loud: {model: {gain: 2.0}}}"), "--jobs", "2"]
    monkeypatch.setattr("xbench.commands.bench.worker.usable_cores", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    stopped = started(words, bench, monkeypatch)
    until(lambda: journaled(bench) == 2)
    stopped.kill(signal.SIGINT)
    assert stopped.wait() == 1
    assert "Stopped by SIGINT after 0 of 2 runs" in stopped.said
    assert not [*bench.folder.glob("runs/*/*/results.json")]
    bench.write("go", "")
    run = bench(*words[1:], status=0)
    assert "Runs: 2 finished" in run.output
    found = [json.loads(path.read_text()) for path in bench.folder.glob("runs/*/*/results.json")]
    assert [one["provenance"]["batches_of_earlier_attempts"] for one in found] == [2, 2]


def test_what_a_killed_benchmark_left_running_is_not_done_twice(bench: Bench, monkeypatch):
    words = slow(bench)
    killed = started(words, bench, monkeypatch)
    until(lambda: journaled(bench) == 1)
    killed.kill(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    busy = bench(*words[1:], status=1)
    assert bench.started == []
    assert "bright_slow busy" in busy.output and "bright_slow" in busy.errors
    bench.write("go", "")
    runs: list[Any] = []
    until(lambda: len([*bench.folder.glob("runs/*/*/results.json")]) == 1)
    until(lambda: "busy" not in (run := bench(*words[1:])).output and runs.append(run) is None)
    assert (runs[0].status, bench.started) == (0, []), runs[0].output


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
    bench("--config", "neutral.yaml", "--model.loud", "true", status=0)
    assert [command[-2:] for command in bench.commands.values()] == [["--resume", "true"]]
    (results,) = bench.folder.glob("runs/model_squares/*/results.json")
    assert json.loads(results.read_text())["provenance"]["batches_of_earlier_attempts"] > 0
    assert bench("--config", "neutral.yaml").status == 0
    assert bench.started == [], "the finished run counts for every value of the option"
    assert bench("--config", "neutral.yaml", "--model.gain", "3").status == 0
    assert bench.started == ["model_squares"]
