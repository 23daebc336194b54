"""One process at a time, even over the machines of a cluster: locks that end with the process that holds them.

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

from xbench.runtime.errors import UserError

# Errors of file systems without locks; some clusters mount theirs so.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Busy(Exception):
    """Another process holds a lock; the text says which."""


@contextmanager
def folder_lock(folder: Path, shared: bool) -> Iterator[None]:
    """Hold a folder, which is created if need be, while a benchmark runs in it; others may share a `shared` one.

    Raises:
        UserError: Another benchmark is at work there, or the folder cannot be written to.
    """
    path = folder / "lock"
    try:
        descriptor = try_lock(path, shared=shared)
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


def try_lock(path: Path, shared: bool = False, inherited: bool = True) -> int:
    """Take a lock and return its descriptor, whose end ends the lock.

    Args:
        path: The file that stands for the lock; its folder is created if need be.
        shared: Others may hold it at the same time, if they share it as well.
        inherited: Processes that inherit the descriptor hold the lock too, after this one has ended. Otherwise this
            process alone: its data workers outlive it by seconds if it is killed.

    Raises:
        Busy: Another process holds it.
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            lock = fcntl.flock if inherited else fcntl.lockf
            lock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        os.ftruncate(descriptor, 0)
        who = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}"
        os.pwrite(descriptor, who.encode(), 0)
    # POSIX lets lockf answer with either.
    except (BlockingIOError, PermissionError):
        who = os.pread(descriptor, 200, 0).decode(errors="replace")
        os.close(descriptor)
        raise Busy(who or "by a process that did not say its name") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
