from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile import configure
from places import SUPPORT
from processes import environment, run, until
from run_files import read

from xbench.cli import main
from xbench.runtime.errors import explain_machine_error

IMAGES = 19
RESUME = ("--resume", "true")


def words(folder: Path, *options: str, command: str = "test") -> list[str]:
    # One folder of files for all tests, for it is part of what must not change between attempts.
    config = configure(folder / "hostile.yaml", folder.parent / "files", num_workers=0)
    runs = ("--trainer.default_root_dir", str(folder / "runs"))
    return [command, "--config", str(config), *runs, *options]


def results(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("runs/*/*/results.json")
    return json.loads(path.read_text())


def processes_about(folder: Path) -> list[str]:
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
    return lambda: " ".join(capsys.readouterr().err.split())


def test_files_that_crash_or_hang_are_left_out_and_named(tmp_path, monkeypatch):
    """The command as users type it: the numbers are those of a run whose files are merely unreadable."""
    files = tmp_path.parent / "files"
    options = words(tmp_path, "--data.on_error", "skip", "--data.num_workers", "2", "--data.timeout", "2")
    done = run(*options, folder=tmp_path, FAULTS="crash:3 abort:6 hang:9")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Skipped 3 unreadable images" in done.stdout
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
        # These two say why an image could not be read.
        if name not in ("results.json", "images.parquet"):
            assert content == read(tmp_path)[name], name
    for part in ("grounding", "classification"):
        assert results(merely)[part] == results(tmp_path)[part]


@pytest.mark.parametrize(
    ("fault", "told", "more"),
    [
        # Neither option is part of what numbers depend on.
        (
            "crash:9",
            ("hostile: image square-009 cannot be read. The decoder crashed (SIGSEGV) on ", "--data.on_error skip"),
            ("--data.num_workers", "2", "--data.timeout", "60"),
        ),
        # Torch names the process and the signal, unless it notices the broken connection first.
        ("kill_worker:13", ("A data worker", " died", "--data.num_workers", "--data.batch_size", "--resume true"), ()),
    ],
)
def test_a_fault_ends_a_run_that_may_skip_nothing_and_it_goes_on(
    tmp_path, unbroken, monkeypatch, said, fault, told, more
):
    monkeypatch.setenv("FAULTS", fault)
    assert main(words(tmp_path, "--data.num_workers", "1")) == 1
    message = said()
    assert message.startswith(f"error: {told[0]}")
    for part in told:
        assert part in message
    monkeypatch.delenv("FAULTS")
    assert main(words(tmp_path, *RESUME, *more)) == 0
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
    words(folder)
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
        ("journal full", ("No space left on device", "Earlier batches are kept", "--resume true")),
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


def test_with_room_again_everything_goes_on_as_if_nothing_had_happened(disks, unbroken):
    folder, outcomes = disks
    for name in ("journal full, resumed", "prepared images full, again", "prepared images used", "W&B full"):
        assert outcomes[name]["status"] == 0, outcomes[name]
    # A full disk of Weights & Biases costs nothing but its own files.
    assert "Weights & Biases failed" in outcomes["W&B full"]["said"]
    assert "Traceback" not in outcomes["W&B full"]["said"]
    assert read(folder / "journal") == read(folder / "prepared") == read(folder / "wandb") == unbroken
    assert results(folder / "journal")["provenance"]["batches_of_earlier_attempts"] == 4
    assert results(folder / "prepared")["provenance"]["prepared"]["images"] == IMAGES


def test_only_faults_of_the_machine_are_explained():
    assert explain_machine_error(None) is None
    assert explain_machine_error(RuntimeError("shapes differ")) is None
    assert explain_machine_error(FileNotFoundError(2, "No such file", "x")) is None
    full = OSError(28, "No space left on device", "/scratch/x")
    try:
        raise ValueError("a consequence") from full
    except ValueError as error:
        assert "/scratch/x cannot be written: No space left on device" in str(explain_machine_error(error))
