"""One process at a time, even over the machines of a cluster: locks that end with whoever holds them.

Where the file system knows no locks, there are none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from xbench.errors import UserError

__all__ = ["Busy", "folder_lock", "try_lock"]


# What file systems without locks answer; some of clusters are mounted so.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Busy(Exception):
    """Somebody else holds a lock; the text says who."""


@contextmanager
def folder_lock(folder: Path, shared: bool) -> Iterator[None]:
    """Hold a folder while a benchmark runs in it.

    Args:
        folder: The folder, which is created if need be.
        shared: Others that share it as well may be at work at the same time.

    Raises:
        UserError: Another benchmark is at work there, or the folder cannot be written to.
    """
    path = folder / "lock"
    try:
        descriptor = _take(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except Busy as error:
        raise UserError(
            f"Another benchmark is at work in {folder.parent} ({error}; it holds {path}). Wait until it ends or give "
            "another --out. Several share a folder if each is started with --part K/N or --report false."
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be locked: {error.strerror}. Give another --out.") from error
    try:
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int:
    """Take a lock and return its descriptor, whose end, with that of every process that inherited it, ends the lock.

    Raises:
        Busy: Somebody else holds it.
        OSError: The file cannot be written.
    """
    return _take(path, fcntl.LOCK_EX)


def _take(path: Path, kind: int) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        os.ftruncate(descriptor, 0)
        who = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}"
        os.pwrite(descriptor, who.encode(), 0)
    except BlockingIOError:
        who = os.pread(descriptor, 200, 0).decode(errors="replace")
        os.close(descriptor)
        raise Busy(who or "by a process that did not say its name") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
