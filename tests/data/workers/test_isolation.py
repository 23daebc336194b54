from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import gone, until
from torch.utils.data import DataLoader, Dataset

from xbench.data.records import Record
from xbench.data.workers.isolation import isolated, one_thread
from xbench.runtime.errors import UserError

Work = Callable[[Record], Any]


class Answers(Dataset):
    def __init__(self, work: Work, records: list[Record], timeout: float) -> None:
        self.work, self.records, self.timeout = work, records, timeout

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        try:
            return isolated(self.work, self.records[index], self.timeout)
        except Exception as error:
            return error, "".join(getattr(error, "__notes__", ()))


def same(item: Any) -> Any:
    return item


def ask(work: Work, *sources: Any, timeout: float = 30.0, files: tuple[Path, ...] | None = None) -> list[Any]:
    records = [Record(str(source), {}, source, files=files) for source in sources]
    return list(DataLoader(Answers(work, records, timeout), batch_size=None, num_workers=1, collate_fn=same))


def test_results_come_back_as_they_are():
    draw = np.random.default_rng(0)
    arrays = {
        "picture": draw.integers(0, 255, (3000, 1100), dtype=np.uint8),
        "turned": draw.random((30, 20), np.float32).T,
        "strided": draw.integers(0, 9, (8, 8))[::2, ::3],
        "empty": np.zeros((0, 5), bool),
    }

    def work(record: Record) -> Any:
        return arrays, record.source, os.getpid(), os.getppid()

    answers = ask(work, "a", ("b", 2), timeout=5)
    for (back, source, pid, parent), sent in zip(answers, ["a", ("b", 2)], strict=True):
        assert source == sent
        assert os.getpid() not in (pid, parent)
        for name, array in arrays.items():
            np.testing.assert_array_equal(back[name], array)
            assert back[name].dtype == array.dtype and back[name].flags.writeable
    assert answers[0][2] == answers[1][2], "one process for all images"
    until(lambda: gone(answers[0][2]), seconds=5)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda: ctypes.string_at(0), "The decoder crashed (SIGSEGV) on image bad."),
        (os.abort, "The decoder crashed (SIGABRT) on image bad."),
        (lambda: os._exit(3), "The decoder ended its process (exit status 3) on image bad."),
        (lambda: exit(4), "The decoder ended its process (exit status 4) on image bad."),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "The decoder was killed twice (SIGKILL), as the system does when memory runs out, on image bad.",
        ),
    ],
    ids=["segmentation fault", "abort", "exit", "sys.exit", "killed"],
)
def test_a_crash_takes_one_image(fault, said):
    def work(record: Record) -> Any:
        if record.source == "bad":
            fault()
        return os.getpid()

    before, (error, _), after, last = ask(work, 0, "bad", 1, 2)
    assert isinstance(error, UserError) and str(error) == said
    assert before != after == last


def test_a_process_that_was_killed_gets_a_second_try(tmp_path):
    def work(record: Record) -> Any:
        if record.source == 1 and not (tmp_path / "tried").exists():
            (tmp_path / "tried").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return record.source

    assert ask(work, 0, 1, 2) == [0, 1, 2]


def test_what_ends_runs_is_none_of_its_business():
    def work(record: Record) -> Any:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        return record.source

    assert ask(work, 0, 1) == [0, 1]


def test_time_in_which_a_job_is_stopped_does_not_count():
    def work(record: Record) -> Any:
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(os.getppid(), signal.SIGCONT)
        time.sleep(0.3)
        return record.source

    assert ask(work, 7, timeout=2) == [7]


class Odd(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_exceptions_keep_their_kind_their_words_and_their_traceback():
    def work(record: Record) -> Any:
        raise {"user": UserError("mend it", exit_status=2), "bug": KeyError("a bug"), "odd": Odd(1, 2)}[record.source]

    (user, _), (bug, where), (odd, _) = ask(work, "user", "bug", "odd")
    assert isinstance(user, UserError) and (str(user), user.exit_status) == ("mend it", 2)
    assert isinstance(bug, KeyError) and bug.args == ("a bug",)
    assert "in work" in where and __file__ in where and "KeyError: 'a bug'" in where
    assert isinstance(odd, RuntimeError) and str(odd) == "Odd: 1 and 2"


def test_no_pipe_or_socket_of_anyone_else_stays_open():
    reading, writing = os.pipe()

    def work(record: Record) -> Any:
        modes = [os.fstat(int(name)).st_mode for name in os.listdir("/proc/self/fd") if int(name) > 2 and exists(name)]
        return sum(stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) for mode in modes)

    def exists(name: str) -> bool:
        return Path(f"/proc/self/fd/{name}").is_symlink()

    try:
        assert ask(work, 0) == [1], "its own socket"
    finally:
        os.close(reading)
        os.close(writing)


def test_it_does_not_outlive_a_worker_that_is_killed(tmp_path):
    def work(record: Record) -> Any:
        (tmp_path / "child").write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(RuntimeError, match="DataLoader worker"):
        ask(work, 0)
    until(lambda: gone(int((tmp_path / "child").read_text())), seconds=5)


def test_random_numbers_are_those_of_the_worker():
    def work(record: Record) -> Any:
        return random.random(), np.random.random()

    class Direct(Answers):
        def __getitem__(self, index: int) -> Any:
            return self.work(self.records[index])

    def first(kind: type[Answers]) -> Any:
        data = kind(work, [Record("image", {})], 5.0)
        generator = torch.Generator().manual_seed(3)
        return next(iter(DataLoader(data, batch_size=None, num_workers=1, collate_fn=same, generator=generator)))

    assert first(Answers) == first(Direct)


class Slow(Dataset):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> None:
        (self.folder / str(os.getpid())).touch()
        time.sleep(1000)


def test_workers_end_with_the_process_that_they_work_for(tmp_path):
    loader = DataLoader(Slow(tmp_path), num_workers=2, worker_init_fn=one_thread)
    loading = multiprocessing.get_context("fork").Process(target=list, args=(loader,))
    loading.start()
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    loading.kill()
    loading.join()
    until(lambda: all(gone(int(worker.name)) for worker in tmp_path.iterdir()))
