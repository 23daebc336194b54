"""Locks that work across a cluster and end with the process that holds them, if the file system has locks."""

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

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Busy(Exception):
    """Another process, named in the message, holds a lock."""


@contextmanager
def folder_lock(folder: Path, shared: bool) -> Iterator[None]:
    """Lock a folder for a benchmark, and create it if necessary; UserError if it is locked or cannot be written."""
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
    """Take a lock and return its descriptor, which releases it when closed; Busy if held, OSError if unwritable.

    Args:
        path: The lock file; its folder is created if necessary.
        shared: Others may hold it at the same time if they share it, too.
        inherited: Child processes keep the lock after this process ends, as data workers do for seconds if it is
            killed.
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
    # POSIX allows either error.
    except (BlockingIOError, PermissionError):
        who = os.pread(descriptor, 200, 0).decode(errors="replace")
        os.close(descriptor)
        raise Busy(who or "by an unnamed process") from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
