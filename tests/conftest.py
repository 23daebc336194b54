"""What the tests of the whole harness share. The process that hands out tests loads it too, so its imports are few."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from xbench.cli import main

if TYPE_CHECKING:
    from downloads import Downloads

    from xbench.report.schema import Analysis

# Examples are the same in every run: no change fails by chance for a fault that it did not bring. The profile
# "campaign" of `pytest --hypothesis-profile` draws new ones. The machine that runs tests is shared, so it says
# nothing about a test that it was slow.
settings.register_profile("shared machine", deadline=None, derandomize=True)
settings.register_profile("campaign", deadline=None, derandomize=False, max_examples=1500)
settings.load_profile("shared machine")
# Nobody's own prepared images; tests of the cache choose folders of theirs.
os.environ["XBENCH_CACHE"] = os.devnull
# Until all tests are collected there is hardly any garbage to look for.
gc.disable()


def pytest_collection_finish() -> None:
    import torch

    from xbench.data.datasets import phantom
    from xbench.runs import provenance

    # Contended threads are slower than one.
    torch.set_num_threads(1)
    # Versions and the commit stay as they are while tests run, and runs ask for the same phantoms again and again.
    importlib.metadata.version = cache(importlib.metadata.version)
    provenance._git_commit = cache(provenance._git_commit)
    phantom._draw = lru_cache(maxsize=256)(phantom.draw_phantom)
    # Collecting garbage took a fifth of the time of the tests. What imports and tests are made of, 700,000 objects, is
    # none, and stays out of every later look for it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a skipped comparison with official numbers where continuous integration would not notice the skip."""
    report = yield
    if report.skipped and os.environ.get("CI", "false") not in ("", "0", "false") and item.get_closest_marker("parity"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} must not be skipped under CI: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def nobody_inherits_our_wandb() -> Iterator[None]:
    """W&B names its service in the environment: commands that a later test starts would share it, and not begin one."""
    yield
    os.environ.pop("WANDB_SERVICE", None)


@pytest.fixture
def unsaved_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports draw their figures and save none, in three formats each, which takes most of a report's time."""
    monkeypatch.setattr("xbench.report.figures.write.save", lambda figure, path: figure.draw_without_rendering())


@dataclass(frozen=True)
class Run:
    status: int
    output: str
    errors: str
    folder: Path | None

    @property
    def results(self) -> dict[str, Any]:
        assert self.folder is not None, self.errors
        return json.loads((self.folder / "results.json").read_text())

    @property
    def rows(self) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        assert self.folder is not None, self.errors
        return pq.read_table(self.folder / "pairs.parquet").to_pylist()


@pytest.fixture(scope="session")
def phantom_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run of random maps on phantoms; a test that changes a file takes a copy."""
    root = tmp_path_factory.mktemp("phantom_run")
    words = ("--config", "random_phantom", "--data.images", "14", "--data.size", "48", "--data.grid", "40")
    assert main(["test", *words, "--trainer.logger", "false", "--trainer.default_root_dir", str(root)]) == 0
    (path,) = root.glob("*/*/results.json")
    return path.parent


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | str]:
    import mortal
    from run_files import read

    folder = tmp_path_factory.mktemp("unbroken")
    assert main(mortal.words(folder)) == 0
    files = read(folder)
    # About the first batch, which an attempt that goes on takes from the journal.
    assert "what goes into the network looks wrong" in str(files["results.json"])
    return files


@pytest.fixture(scope="session")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from synthetic import write_run

    root = tmp_path_factory.mktemp("three_runs")
    write_run(root, "clip", skill=0.2, recognition=0.3)
    write_run(root, "kad", skill=0.6, recognition=1.2)
    write_run(root, "carzero", skill=0.9, recognition=2.0)
    return root


@pytest.fixture(scope="session")
def three_analyzed(three_runs: Path) -> Analysis:
    from xbench.report.runs import collect
    from xbench.report.statistics.analyze import analyze

    return analyze(collect([three_runs]))


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Downloads:
    from downloads import Downloads

    return Downloads(tmp_path_factory.mktemp("downloads"))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from chat_server import serving

    with serving() as place:
        yield place


@pytest.fixture
def toy_config(tmp_path: Path) -> Path:
    path = tmp_path / "brightness_squares.yaml"
    path.write_text(
        "model: {class_path: toys.Brightness}\n"
        "data: {class_path: toys.Squares, init_args: {num_workers: 0, batch_size: 4}}\n"
        "trainer: {logger: false, accelerator: cpu, enable_progress_bar: false}\n"
    )
    return path


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Runs a command in this process, in an empty folder, without a W&B account; `status` is how it must end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: object, status: int | None = None) -> Run:
        before = {path.parent for path in tmp_path.glob("runs/*/*/config.yaml")}
        capsys.readouterr()
        ended = main([str(word) for word in words])
        output, errors = capsys.readouterr()
        assert status in (None, ended), output + errors
        new = {path.parent for path in tmp_path.glob("runs/*/*/config.yaml")} - before
        return Run(ended, output, errors, new.pop() if new else None)

    return run
