"""What machines do to runs: processes killed, memory and disks full, in words of what to do about it.

And terminals: what a command prints is no reason to lose a run, whose results are files.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import traceback
from typing import Any

from xbench.errors import UserError

__all__ = ["explain_fault", "forgive_output", "refused_output"]

_KEPT = "What is finished is kept: the same command goes on from there, `test` with --resume true."
_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:is )?(.+)")
_SHARED = re.compile(r"shared memory\(shm\)|/torch_\d+_|Unexpected bus error|signal: Bus error")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def explain_fault(error: BaseException | None) -> UserError | None:
    """Return what to say of an error that is the machine's doing; None if it, and what caused it, is none."""
    explained = None
    while error is not None:
        # What caused an error knows more: by which signal a worker was killed, and not only that it is gone.
        explained = _explain(error) or explained
        error = error.__cause__ or error.__context__
    return explained


def _explain(error: BaseException) -> UserError | None:
    text = str(error)
    if isinstance(error, RuntimeError) and _SHARED.search(text):
        return UserError(
            "A data worker could not hand over its images, for the shared memory of this machine is full (/dev/shm). "
            "Enlarge it (docker run --shm-size 8g), or give a smaller --data.batch_size, fewer --data.num_workers, or "
            f"--data.num_workers 0, which does without. {_KEPT}"
        )
    if isinstance(error, RuntimeError) and (worker := _WORKER.search(text)):
        return _dead_worker(f", process {worker[1]}, died: {' '.join(worker[2].split()).rstrip('.')}")
    # Torch passes on how it noticed if the worker is just about to be gone.
    if isinstance(error, (ConnectionError, EOFError)) and _while_a_batch_was_fetched(error):
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
        f"A data worker{what}. If nobody killed it, memory has run out: give fewer --data.num_workers or a smaller "
        f"--data.batch_size. {_KEPT}"
    )


def _while_a_batch_was_fetched(error: BaseException) -> bool:
    frames = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
    return "pin memory thread" in str(error) or "_try_get_data" in frames


class _Outlet(io.FileIO):
    """Standard output or error that takes everything, and forgets it once a full disk or a closed pipe refused some.

    Args:
        stream: Whose file it writes to, open as long as this is.

    Attributes:
        refused: Why, the first time.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream
        self.refused: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write, or seem to."""
        if self.refused is None:
            try:
                return super().write(data)
            except OSError as error:
                self.refused = error
        return len(data)


def forgive_output() -> None:
    """Let no `print` of this process fail: not for characters that the terminal lacks, and not for want of room."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # Notebooks and tests put other streams there.
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO:
                buffer = io.BufferedWriter(_Outlet(stream))
                lines, through = stream.line_buffering, stream.write_through
                text = io.TextIOWrapper(
                    buffer, stream.encoding, "backslashreplace", line_buffering=lines, write_through=through
                )
                setattr(sys, name, text)


def refused_output() -> OSError | None:
    """Return why not all that was printed has reached standard output; None if it has, or nobody read on.

    A reader that ends early, as `head` does, has what it wanted.
    """
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    refused = raw.refused if isinstance(raw, _Outlet) else None
    return None if refused is None or refused.errno == errno.EPIPE else refused
