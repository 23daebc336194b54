"""Nobody goes on loading images for a process that was killed."""

from __future__ import annotations

import multiprocessing
import os
import time

from torch.utils.data import DataLoader, Dataset

from xbench.data.datamodule import one_thread


class Slow(Dataset):
    """Images that take longer than anybody waits."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 4

    def __getitem__(self, index):
        (self.folder / str(os.getpid())).touch()
        time.sleep(1000)


def load(folder):
    list(DataLoader(Slow(folder), num_workers=2, worker_init_fn=one_thread))


def test_workers_end_with_the_process_that_they_work_for(tmp_path):
    loading = multiprocessing.get_context("fork").Process(target=load, args=(tmp_path,))
    loading.start()
    until(lambda: len(list(tmp_path.iterdir())) == 2)
    loading.kill()
    loading.join()
    until(lambda: not any(alive(worker.name) for worker in tmp_path.iterdir()))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            # One that has ended stays until somebody asks for its status.
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
