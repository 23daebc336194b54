from __future__ import annotations

import io
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mortal import BATCH, IMAGES, UNREADABLE, logged, words
from processes import held, run_ranks, start, start_ranks, until
from run_files import read
from synthetic import saved_tables

from xbench.cli import main
from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape, runs_of
from xbench.runs.files import PAIRS
from xbench.runs.images import SavedImage
from xbench.runs.journal import BatchRecord, _encode, append_records, finished_batches, read_record
from xbench.scoring.rows import SCHEMA
from xbench.types import Failure, Note, Query


def begin(folder: Path, dies: str) -> tuple[int, str]:
    process = start(words(folder), folder, MORTAL_DIES=dies, MORTAL_LOG=folder / "first.log")
    return process.wait(), process.said


def go_on(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.delenv("MORTAL_DIES", raising=False)
    monkeypatch.setenv("MORTAL_LOG", str(folder / "second.log"))
    return main(words(folder, "--resume", "true", *options))


def check_gone_on(folder: Path, monkeypatch: pytest.MonkeyPatch, unbroken: object) -> None:
    assert go_on(folder, monkeypatch) == 0
    assert read(folder) == unbroken


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    status, said = begin(folder, "SIGKILL 3 0")
    assert status == -9, said
    assert not [*folder.glob("runs/*/*/results.json")]
    return folder


@pytest.fixture
def broken(killed: Path, tmp_path: Path) -> Path:
    # Paths are part of what must not change, so the copy goes on in the place of the original.
    aside = tmp_path / "aside"
    shutil.copytree(killed, aside)
    yield killed
    shutil.rmtree(killed)
    shutil.copytree(aside, killed)


def test_a_killed_run_goes_on(broken, unbroken, monkeypatch, capsys):
    check_gone_on(broken, monkeypatch, unbroken)
    before, after = logged(broken / "first.log"), logged(broken / "second.log")
    assert len(before) == 6, "three batches of two, and one of which nothing could be read"
    assert sorted(before + after) == [f"square-{k:03d}" for k in range(IMAGES) if k not in UNREADABLE]
    (results,) = broken.glob("runs/*/*/results.json")
    assert json.loads(results.read_text())["provenance"]["batches_of_earlier_attempts"] == 4


@pytest.mark.parametrize("damage", ["a bit turned", "cut off", "another batch"])
def test_a_damaged_batch_is_done_again(broken, unbroken, monkeypatch, damage):
    (path,) = broken.glob("runs/*/*/journal/*.arrow")
    content, (*_, last) = bytearray(path.read_bytes()), finished_batches(path.parent).items()
    if damage == "another batch":
        head = content.rindex(b"%d %d " % (last[0], last[1].size), 0, last[1].start)
        content[head : head + 1] = b"7"
    content[-9] ^= damage == "a bit turned"
    path.write_bytes(content[: -1 if damage == "cut off" else None])
    check_gone_on(broken, monkeypatch, unbroken)
    both = logged(broken / "first.log") + logged(broken / "second.log")
    assert len(both) - len({*both}) == 2, "the images of that batch"


@pytest.mark.parametrize("command", ["test", "predict"])
def test_ctrl_c_says_how_to_go_on(tmp_path, unbroken, monkeypatch, command):
    process = start(words(tmp_path, command=command), tmp_path, MORTAL_DIES="SIGINT 5 0")
    assert process.wait() == 130 and "Traceback" not in process.said, process.said
    said = process.said.splitlines()[-1]
    (folder,) = tmp_path.glob("runs/*/*")
    if command == "predict":
        assert said == "error: Stopped by Ctrl-C."
        return
    assert said.startswith("error: Stopped by Ctrl-C.") and f"{folder}: " in said and "--resume true" in said
    check_gone_on(tmp_path, monkeypatch, unbroken)


def test_ctrl_c_over_several_processes(tmp_path, unbroken, monkeypatch):
    two = words(tmp_path, "--trainer.devices", "2", "--oversubscribe", "true")
    ranks = start_ranks(2, two, tmp_path, MORTAL_WAITS="0 0.3")
    until(lambda: [*tmp_path.glob("runs/*/*/journal/*.arrow")])
    for rank in ranks:
        rank.kill(signal.SIGINT)
    assert [rank.wait() for rank in ranks] == [130, 130]
    said = ranks[0].said + ranks[1].said
    assert "Traceback" not in said and said.count("error: ") == 1 and "--resume true" in said, said
    check_gone_on(tmp_path, monkeypatch, unbroken)


def test_sigterm_keeps_what_is_finished(tmp_path, unbroken, monkeypatch):
    """As SLURM sends it before pre-emption."""
    status, said = begin(tmp_path, "SIGTERM 5 0")
    assert status == 1 and "Traceback" not in said, said
    assert "SIGTERM" in said and "--resume true" in said
    check_gone_on(tmp_path, monkeypatch, unbroken)
    both = logged(tmp_path / "first.log") + logged(tmp_path / "second.log")
    assert len(both) == len({*both}) == IMAGES - 3


def test_one_process_of_two_dies_and_three_go_on(tmp_path, unbroken):
    many = ("--oversubscribe", "true", "--trainer.devices")
    # The next batch goes to whoever is free: only beside a slow process is the other one sure to come to its third.
    variables = {"MORTAL_DIES": "SIGKILL 2 1", "MORTAL_WAITS": "0.3 0"}
    statuses, said = run_ranks(2, words(tmp_path, *many, "2"), tmp_path, **variables)
    assert statuses[0] > 0 and statuses[1] == -9, said
    assert not [*tmp_path.glob("runs/*/*/results.json")]
    (journal,) = tmp_path.glob("runs/*/*/journal")
    assert 2 <= len(finished_batches(journal)) < 10
    statuses, said = run_ranks(3, words(tmp_path, "--resume", "true", *many, "3"), tmp_path)
    assert statuses == [0] * 3, said
    assert read(tmp_path) == unbroken


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_run_that_could_not_write_its_results_goes_on(tmp_path, unbroken, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr("xbench.callbacks.results_writer.write_tables", full)
        assert main(words(tmp_path)) == 1
    assert "--resume true, which keeps the scored batches" in " ".join(capsys.readouterr().err.split())
    check_gone_on(tmp_path, monkeypatch, unbroken)
    assert len(logged(tmp_path / "second.log")) <= BATCH, "the last batch, for a loop needs one"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--model.gain", "4"), "settings.model.gain is 4.0 and was 8.0"),
        (("--data.gamma", "0.7"), "settings.data.gamma is 0.7 and was 0.5"),
        (("--data.images", "18"), "settings.data.images is 18 and was 19"),
        (("--trainer.precision", "bf16-true"), "settings.trainer.precision"),
        (("--seed_everything", "3"), "settings.seed_everything is 3 and was 0"),
    ],
)
def test_another_configuration_is_refused(broken, monkeypatch, capsys, options, named):
    assert go_on(broken, monkeypatch, *options) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert named in message and "omit --resume true" in message
    assert not [*broken.glob("runs/*/*/results.json")]


def test_what_moves_no_number_may_change(broken, unbroken):
    neutral = ("--data.num_workers", "1", "--data.cache", "false", "--trainer.strategy", "ddp")
    # In a fork: gloo keeps a thread of the first process group, without which later forks of this process hang.
    again = start(words(broken, "--resume", "true", *neutral), broken)
    assert again.wait() == 0, again.said
    assert read(broken) == unbroken


def test_a_run_that_is_still_going_on_is_left_alone(broken, monkeypatch, capsys):
    (folder,) = broken.glob("runs/*/*/journal")
    with held(folder / "lock", inherited=False):
        assert go_on(broken, monkeypatch) == 2
    assert "still running in another process" in " ".join(capsys.readouterr().err.split())


def record(batch: int, draw: np.random.Generator, images: int = 2) -> BatchRecord:
    rows = [
        {"index": i, "image_id": f"image {i} ä", "finding": "a", "dice": draw.random(), "mask_pixels": [3, 2, i]}
        for i in range(batch * 2, batch * 2 + images)
    ]
    kept = SavedImage(
        *(batch * 2, f"image {batch * 2} ä", "somebody", "0" * 64, (0.0, 0.0, 1.0, 1.0)),
        [Query(name, name) for name in "abc"],
        *(draw.random((3, 2, 3), np.float32), {1: Coverage.of(np.eye(9) > 0, (7, 7))}, (1,), b"a picture", (11, 12)),
        instances={1: (Shape("mask", (9, 9), runs_of(np.eye(9) > 0), "R1"),)},
    )
    tables = {PAIRS: pa.Table.from_pylist(rows, SCHEMA)} | saved_tables(
        [kept], dict.fromkeys(("logit", "probability"), draw.random(3))
    )
    failures = (Failure(batch * 2 + 1, "bad", "it is broken"),)
    return BatchRecord(batch, tables if batch % 3 else {}, failures, (Note("odd", kept.image_id),))


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 2000), st.integers(1, 255))
def test_no_damage_to_a_journal_gives_a_wrong_record(tmp_path_factory, seed, place, flip):
    """Cut a file off or change a byte anywhere: what is read is what was written, or not there."""
    folder = tmp_path_factory.mktemp("journal")
    draw = np.random.default_rng(seed)
    written = {batch: record(batch, draw) for batch in range(3)}
    for one in written.values():
        append_records(folder / "0.arrow", one)

    def finished():
        found = finished_batches(folder)
        for batch, place in found.items():
            # To the bit and with their types.
            assert read_record(batch, place) == written[batch]
            assert _encode(read_record(batch, place)) == _encode(written[batch])
        return [*found]

    assert finished() == [0, 1, 2]
    places, path = finished_batches(folder), folder / "0.arrow"
    content = bytearray(path.read_bytes())
    changed = place * (len(content) - 1) // 2000
    path.write_bytes(content[:changed])
    assert finished() == [batch for batch, one in places.items() if one.start + one.size <= changed]
    content[changed] ^= flip
    path.write_bytes(content)
    kept = finished()
    damaged = next(batch for batch, one in places.items() if changed < one.start + one.size)
    assert damaged not in kept and kept[:damaged] == [*range(damaged)]
    if changed >= places[damaged].start:
        with pytest.raises(ValueError, match="changed while"):
            read_record(damaged, places[damaged])
    append_records(folder / "1.arrow", written[damaged])
    assert damaged in finished()


def test_a_full_disk_keeps_what_is_finished(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    append_records(tmp_path / "0.arrow", record(0, draw))

    class Full(io.FileIO):
        def write(self, content):
            super().write(bytes(content)[:90])
            full()

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left on device"):
        patch.setattr("builtins.open", lambda path, mode: io.BufferedWriter(Full(path, mode)))
        append_records(tmp_path / "0.arrow", record(1, draw))
    assert [*finished_batches(tmp_path)] == [0]
