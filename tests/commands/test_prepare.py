from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from official.siim import write_siim
from plugin.pictures import Pictures, write_pictures
from processes import run_ranks, start, until
from run_files import QUIET, files_of
from toys import Brightness

from xbench.data.store import PreparedStore


def said(output: str) -> dict[str, int]:
    return {kind: int(count) for kind, count in re.findall(r"(prepared|already there|unreadable): (\d+)", output)}


@pytest.fixture(scope="module")
def siim(tmp_path_factory) -> Path:
    return write_siim(tmp_path_factory.mktemp("siim"), positives=4, negatives=2).root


@pytest.fixture
def pictures_config(tmp_path: Path) -> Path:
    root = write_pictures(tmp_path / "pictures", 12)
    path = tmp_path / "pictures.yaml"
    path.write_text(
        "model: {class_path: toys.Brightness}\n"
        "data:\n  class_path: plugin.pictures.Pictures\n"
        f"  init_args: {{root: '{root}', num_workers: 0, batch_size: 5}}\n"
    )
    return path


@pytest.fixture
def options(pictures_config: Path, tmp_path: Path) -> tuple[object, ...]:
    return ("--config", pictures_config, "--data.cache", tmp_path / "cache", *QUIET)


def test_runs_with_and_without_are_the_same(command, siim, tmp_path, monkeypatch):
    monkeypatch.setenv("XBENCH_CACHE", str(tmp_path / "cache"))
    options = ("--config", "oracle_siim", "--data.root", siim, "--data.batch_size", "2", *QUIET)
    without = command("test", *options)
    assert without.results["provenance"]["prepared"] is None
    assert without.results["grounding"]["macro"]["dice_best"] == 1

    prepared = command("prepare", *options, "--data.num_workers", "2", status=0)
    assert said(prepared.output) == {"prepared": 6}
    (store,) = (tmp_path / "cache").iterdir()
    assert str(store) in prepared.output

    after = command("test", *options, "--data.num_workers", "0")
    assert after.results["provenance"]["prepared"] == {"store": store.name, "images": 6}
    off = command("test", *options, "--data.cache", "false", "--data.num_workers", "0")
    assert off.results["provenance"]["prepared"] is None
    assert files_of(after.folder) == files_of(off.folder) == files_of(without.folder)

    again = command("prepare", *options)
    assert said(again.output) == {"already there": 6}
    other = command("prepare", *options, "--data.grid", "64", "--data.limit", "2")
    assert said(other.output) == {"prepared": 2}
    assert len(list((tmp_path / "cache").iterdir())) == 2
    part = command("test", *options, "--data.grid", "64", "--data.num_workers", "0")
    assert part.results["provenance"]["prepared"]["images"] == 2


def test_nothing_is_decoded_that_is_prepared(command, options, monkeypatch):
    expected = command("test", *options)
    assert command("prepare", *options).status == 0

    def load(self, record):
        raise AssertionError(f"{record.image_id} is decoded")

    monkeypatch.setattr(Pictures, "load", load)
    run = command("test", *options, status=0)
    assert run.results["provenance"]["prepared"]["images"] == 12
    assert files_of(run.folder) == files_of(expected.folder)
    # Records without their annotations are the same here, for the regions are known from the place in the folder.
    command("predict", *options, status=0)


def test_the_model_counts_only_by_its_geometry(command, options):
    assert said(command("prepare", *options).output) == {"prepared": 12}
    assert said(command("prepare", *options, "--model.gain", "3").output) == {"already there": 12}
    assert said(command("prepare", *options, "--model.crop", "true").output) == {"prepared": 12}


def test_an_edited_image_is_not_served_stale(command, options, tmp_path):
    command("prepare", *options)
    first = command("test", *options)
    path = sorted((tmp_path / "pictures").iterdir())[4]
    before = path.stat()
    write_pictures(tmp_path / "others", 5, (80, 66))
    new = (tmp_path / "others" / path.name).read_bytes()
    # As large and as old as the first, to all appearances.
    assert len(new) >= before.st_size
    path.write_bytes(new)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    edited = command("test", *options)
    assert edited.results["provenance"]["prepared"]["images"] == 11
    expected = command("test", *options, "--data.cache", "false")
    assert files_of(edited.folder) == files_of(expected.folder) != files_of(first.folder)


def test_unreadable_images_are_named_and_the_rest_prepared(command, options, tmp_path):
    (tmp_path / "pictures" / "picture-003.png").write_bytes(b"no picture")
    for expected in ({"prepared": 11, "unreadable": 1}, {"already there": 11, "unreadable": 1}):
        run = command("prepare", *options, status=1)
        assert said(run.output) == expected
        paragraph = run.errors.strip().splitlines()[-1]
        assert paragraph.startswith("error: pictures: 1 of 12 images")
        assert "picture-003" in paragraph
        assert "--data.on_error skip" in paragraph
    run = command("prepare", *options, "--data.on_error", "skip", status=0)
    assert "picture-003" in run.output


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        pytest.param(("--data.cache", "false"), 2, "--data.cache false", id="no cache"),
        pytest.param(("--data.cache", "/dev/null/x"), 1, "--data.cache", id="no folder"),
        pytest.param(("--data.root", "/nowhere"), 1, "no image", id="no image"),
        pytest.param(("--config", "demo"), 1, "nothing to prepare", id="no file"),
        pytest.param((), 2, "--config demo", id="nothing chosen"),
    ],
)
def test_bad_input(command, pictures_config, words, status, message):
    chosen = () if not words or words[0] == "--config" else ("--config", pictures_config)
    run = command("prepare", *chosen, *words, status=status)
    paragraph = run.errors.strip().splitlines()[-1]
    assert paragraph.startswith("error: ")
    assert message in paragraph


def test_a_killed_prepare_is_resumed(command, pictures_config, tmp_path):
    options = ["--config", str(pictures_config), "--data.cache", str(tmp_path / "cache")]
    slow = [*options, "--data.seconds", "0.1", "--data.num_workers", "1"]
    process = start(["prepare", *slow], tmp_path)
    until(lambda: len([*tmp_path.glob("cache/*/*.image")]) >= 3)
    process.kill(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (folder,) = (tmp_path / "cache").iterdir()
    survived = len(PreparedStore(folder))
    assert 3 <= survived < 12
    (folder / f"{0:064x}.partial").write_bytes(b"torn")

    resumed = command("prepare", *slow, *QUIET, status=0)
    assert said(resumed.output) == {"already there": survived, "prepared": 12 - survived}
    whole = command("prepare", *slow, *QUIET, "--data.cache", tmp_path / "whole")
    assert said(whole.output) == {"prepared": 12}
    data = Pictures(str(tmp_path / "pictures"), seconds=0.1, cache=str(tmp_path / "whole"))
    data.setup("test")
    unbroken = data.samples(Brightness().preprocessing)
    data.cache = str(tmp_path / "cache")
    mended = data.samples(Brightness().preprocessing)
    for record in data.records:
        one, other = unbroken.store.read(record), mended.store.read(record)
        for name in ("pixels", "display"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
        assert (one.view, one.findings, one.notes) == (other.view, other.findings, other.notes)
        assert one.coverage == other.coverage


def test_two_processes_read_it_too(command, pictures_config, tmp_path):
    options = ["--config", str(pictures_config), *QUIET]
    alone = command("test", *options)
    command("prepare", *options, "--data.cache", tmp_path / "cache")
    more = ("--data.cache", tmp_path / "cache", "--trainer.devices", "2", "--trainer.default_root_dir", "two")
    statuses, told = run_ranks(2, ["test", *options, *more, "--oversubscribe", "true"], tmp_path)
    assert statuses == [0, 0], told
    (results,) = tmp_path.glob("two/*/*/results.json")
    assert json.loads(results.read_text())["provenance"]["prepared"]["images"] == 12
    assert files_of(results.parent) == files_of(alone.folder)
