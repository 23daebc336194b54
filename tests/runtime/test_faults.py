"""Faults of files, disks, memory and processes: a clear message, and nothing that was finished is lost."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from processes import environment, run, until
from run_files import read

from xbench.cli import main
from xbench.errors import explain_machine_error

IMAGES = 19
RESUME = ("--resume", "true")


def lay_out(folder: Path) -> Path:
    """Write the configuration and the files of the dataset."""
    # Of all tests, for the folder is part of what must not change between attempts.
    files = folder.parent / "files"
    files.mkdir(exist_ok=True)
    for index in range(IMAGES):
        path = files / f"square-{index:03d}.png"
        if not path.exists():
            path.touch()
    (folder / "hostile.yaml").write_text(
        "model: {class_path: toys.Brightness}\n"
        f"data: {{class_path: hostile.Hostile, init_args: {{root: {files}, num_workers: 0, images: {IMAGES}, "
        "batch_size: 2}}\n"
        "trainer: {logger: false, accelerator: cpu, enable_progress_bar: false, devices: 1}\n"
    )
    return files


def words(folder: Path, *options: str, command: str = "test") -> list[str]:
    lay_out(folder)
    runs = ("--trainer.default_root_dir", str(folder / "runs"))
    return [command, "--config", str(folder / "hostile.yaml"), *runs, *options]


def results(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("runs/*/*/results.json")
    return json.loads(path.read_text())


def processes_about(folder: Path) -> list[str]:
    """Processes whose command names a folder, forks of them too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # Some end while we look.
        with contextlib.suppress(OSError):
            if str(folder) in path.read_text(errors="replace"):
                found.append(path.parent.name)
    return found


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | str]:
    folder = tmp_path_factory.mktemp("unbroken")
    assert main(words(folder)) == 0
    return read(folder)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]):
    """What was said on stderr, as one line."""
    return lambda: " ".join(capsys.readouterr().err.split())


def test_files_that_crash_or_hang_are_left_out_and_named(tmp_path, monkeypatch):
    """The command as users type it: the numbers are those of a run whose files are merely unreadable."""
    files = lay_out(tmp_path)
    options = words(tmp_path, "--data.on_error", "skip", "--data.num_workers", "2", "--data.timeout", "2")
    done = run(*options, folder=tmp_path, FAULTS="crash:3 abort:6 hang:9")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Skipped 3 images" in done.stdout
    until(lambda: not processes_about(tmp_path), seconds=2)
    reasons = {failure["image_id"]: failure["reason"] for failure in results(tmp_path)["counts"]["skipped"]}
    assert reasons == {
        "square-003": f"The decoder crashed (SIGSEGV) on {files / 'square-003.png'}.",
        "square-006": f"The decoder crashed (SIGABRT) on {files / 'square-006.png'}.",
        "square-009": f"Reading {files / 'square-009.png'} took more than 2 seconds (a hung network file system?), the "
        "limit that --data.timeout sets.",
    }

    merely = tmp_path / "merely"
    merely.mkdir()
    monkeypatch.setenv("FAULTS", "broken:3 broken:6 broken:9")
    assert main([*words(merely, "--data.on_error", "skip", "--data.root", str(files))]) == 0
    for name, content in read(merely).items():
        if name != "results.json":
            assert content == read(tmp_path)[name], name
    for one, other in (("grounding", "grounding"), ("classification", "classification")):
        assert results(merely)[one] == results(tmp_path)[other]


def test_a_crash_ends_a_run_that_may_skip_nothing_and_it_goes_on(tmp_path, unbroken, monkeypatch, said):
    monkeypatch.setenv("FAULTS", "crash:9")
    assert main(words(tmp_path, "--data.num_workers", "1")) == 1
    message = said()
    assert message.startswith("error: hostile: image square-009 cannot be read. The decoder crashed (SIGSEGV) on ")
    assert "files/square-009.png" in message and "--data.on_error skip" in message
    monkeypatch.delenv("FAULTS")
    # Neither is part of what numbers depend on.
    assert main(words(tmp_path, *RESUME, "--data.num_workers", "2", "--data.timeout", "60")) == 0
    assert read(tmp_path) == unbroken
    assert results(tmp_path)["provenance"]["batches_of_earlier_attempts"] == 4


def test_a_data_worker_that_is_killed_ends_the_run_and_it_goes_on(tmp_path, unbroken, monkeypatch, said):
    monkeypatch.setenv("FAULTS", "kill_worker:13")
    assert main(words(tmp_path, "--data.num_workers", "1")) == 1
    message = said()
    # Torch names the process and the signal, unless it notices the broken connection first.
    assert message.startswith("error: A data worker") and " died" in message
    assert "--data.num_workers" in message and "--data.batch_size" in message and "--resume true" in message
    monkeypatch.delenv("FAULTS")
    assert main(words(tmp_path, *RESUME)) == 0
    assert read(tmp_path) == unbroken
    assert results(tmp_path)["provenance"]["batches_of_earlier_attempts"] >= 1


def test_a_bug_in_a_plug_in_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("FAULTS", "bug:3")
    with pytest.raises(KeyError, match=r"(?s)hostile\.py.*raise KeyError.*a bug"):
        main(words(tmp_path, "--data.num_workers", "1", "--data.on_error", "skip"))


def test_prepare_leaves_out_what_crashes_and_goes_on_after_a_worker_died(tmp_path, monkeypatch, said, capsys):
    cache = ("--data.cache", str(tmp_path / "cache"), "--data.num_workers", "1", "--data.timeout", "1")
    monkeypatch.setenv("FAULTS", "kill_worker:13")
    assert main(words(tmp_path, *cache, command="prepare")) == 1
    assert said().startswith("error: A data worker")
    monkeypatch.setenv("FAULTS", "crash:15 hang:16")
    assert main(words(tmp_path, *cache, command="prepare")) == 1
    message = said()
    assert "2 of 19 images cannot be read. The first: square-015: The decoder crashed (SIGSEGV)" in message
    monkeypatch.delenv("FAULTS")
    capsys.readouterr()
    assert main(words(tmp_path, *cache, command="prepare")) == 0
    assert "already there: 17, prepared: 2" in capsys.readouterr().out


@pytest.mark.parametrize("timeout", ["0", "-1", ".inf", ".nan"])
def test_a_limit_of_no_time_is_refused(tmp_path, said, timeout):
    assert main(words(tmp_path, "--data.timeout", timeout)) == 2
    assert "--data.timeout" in said()


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """What commands said to full and read-only disks, by name; and where their results are."""
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
        pytest.skip("this machine permits no mounts of one's own")
    folder = tmp_path_factory.mktemp("disks")
    lay_out(folder)
    variables = environment(WANDB_MODE="offline")
    variables.pop("WANDB_DATA_DIR", None)
    command = ["unshare", "-rm", sys.executable, str(SUPPORT / "small_disks.py"), str(folder)]
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return folder / "kept", {line["name"]: line for line in lines}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("results read-only", ("Read-only file system", "--trainer.default_root_dir")),
        ("W&B read-only", ("Weights & Biases", "Read-only file system", "--trainer.default_root_dir")),
        ("report read-only", ("Read-only file system", "--out")),
        ("bench read-only", ("Read-only file system", "--out")),
        ("journal full", ("No space left on device", "Everything finished before is kept", "--resume true")),
        ("predictions full", ("No space left on device", "--trainer.default_root_dir")),
        ("prepared images full", ("No space left on device", "Those written so far are kept", "--data.cache")),
        ("bench full", ("No space left on device", "--out")),
        ("shared memory full", ("shared memory", "/dev/shm", "--data.num_workers 0", "--resume true")),
    ],
)
def test_disks_that_cannot_be_written_are_named(disks, name, told):
    outcome = disks[1][name]
    assert outcome["status"] == 1, outcome
    assert outcome["said"].startswith("error: ") and "Traceback" not in outcome["said"]
    for part in told:
        assert part in outcome["said"], outcome["said"]


def test_with_room_again_a_run_ends_as_if_nothing_had_happened(disks, unbroken):
    folder, outcomes = disks
    assert outcomes["journal full, resumed"]["status"] == 0
    assert read(folder / "journal") == unbroken
    assert results(folder / "journal")["provenance"]["batches_of_earlier_attempts"] == 4


def test_with_room_again_prepare_completes_the_store(disks, unbroken):
    folder, outcomes = disks
    assert outcomes["prepared images full, again"]["status"] == 0
    assert outcomes["prepared images used"]["status"] == 0
    assert results(folder / "prepared")["provenance"]["prepared"]["images"] == IMAGES
    assert read(folder / "prepared") == unbroken


def test_a_full_disk_of_wandb_costs_nothing_but_its_own_files(disks, unbroken):
    folder, outcomes = disks
    assert outcomes["W&B full"]["status"] == 0
    assert "Weights & Biases failed" in outcomes["W&B full"]["said"]
    assert "Traceback" not in outcomes["W&B full"]["said"]
    assert read(folder / "wandb") == unbroken


def test_only_faults_of_the_machine_are_explained():
    assert explain_machine_error(None) is None
    assert explain_machine_error(RuntimeError("shapes differ")) is None
    assert explain_machine_error(FileNotFoundError(2, "No such file", "x")) is None
    full = OSError(28, "No space left on device", "/scratch/x")
    try:
        raise ValueError("a consequence") from full
    except ValueError as error:
        assert "/scratch/x cannot be written: No space left on device" in str(explain_machine_error(error))
