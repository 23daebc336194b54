"""Errors that the command line explains in one paragraph: the user's, and the machine's (memory, disk, processes)."""

from __future__ import annotations

import errno
import re
import traceback

_KEPT = "What is finished is kept: the same command goes on from there, `test` with --resume true."
_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:is )?(.+)")
_SHARED = re.compile(r"shared memory\(shm\)|/torch_\d+_|Unexpected bus error|signal: Bus error")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


class UserError(Exception):
    """Something that the user can correct: a path, an option, a file's content.

    The message is one paragraph: what is wrong, where (file, option, image) and what to do. The command line prints it
    and exits with `exit_status`: 1 for a failed run, 2 for wrong arguments or configuration.
    """

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class UsageError(UserError):
    """Wrong arguments or configuration."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_status=2)


def explain_machine_error(error: BaseException | None) -> UserError | None:
    """Return a `UserError` for an error caused by the machine: memory, disk, a killed process; else None."""
    explained = None
    while error is not None:
        # The innermost cause is the most specific, such as the signal that killed a worker.
        explained = _explain(error) or explained
        error = error.__cause__ or error.__context__
    return explained


def _explain(error: BaseException) -> UserError | None:
    text = str(error)
    if isinstance(error, RuntimeError) and _SHARED.search(text):
        return UserError(
            "A data worker could not hand over its images because the shared memory of this machine (/dev/shm) is "
            "full. Enlarge it (docker run --shm-size 8g), or give a smaller --data.batch_size, fewer "
            f"--data.num_workers, or --data.num_workers 0, which needs none. {_KEPT}"
        )
    if isinstance(error, RuntimeError) and (worker := _WORKER.search(text)):
        return _dead_worker(f", process {worker[1]}, died: {' '.join(worker[2].split()).rstrip('.')}")
    # A worker that is about to end causes one of these errors.
    if isinstance(error, (ConnectionError, EOFError)):
        frames = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
        if "pin memory thread" in text or "_try_get_data" in frames:
            return _dead_worker(" died")
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        where = f"{error.filename} cannot be written" if error.filename else "A file or shared memory cannot be written"
        return UserError(
            f"{where}: {error.strerror}. Make room (the disks of --trainer.default_root_dir and --data.cache, the "
            f"folder for temporary files, /dev/shm), or give another folder. {_KEPT}"
        )
    return None


def _dead_worker(what: str) -> UserError:
    return UserError(
        f"A data worker{what}. If it was not killed, memory ran out: give fewer --data.num_workers or a smaller "
        f"--data.batch_size. {_KEPT}"
    )
