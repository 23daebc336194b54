"""The user's paths; write files atomically, and refuse to read files without end."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import platformdirs

from xbench.runtime.errors import UserError

IMAGE_SUFFIXES = (".dcm", ".dicom", ".png", ".jpg", ".jpeg")
"""Endings of image files, in lower case."""


def expand(path: str | Path) -> Path:
    """Return a user's path with `~` and environment variables expanded."""
    return Path(os.path.expanduser(os.path.expandvars(path)))


def cache_folder() -> Path:
    """Return `$XBENCH_CACHE`, or else `xbench` in the user's folder for caches, such as `~/.cache/xbench` on Linux."""
    if named := os.environ.get("XBENCH_CACHE"):
        return expand(named)
    return platformdirs.user_cache_path("xbench")


@contextmanager
def writing(failed: str, hint: str) -> Iterator[None]:
    """Turn an OSError while writing into a UserError: what failed, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{failed}: {error.strerror or error}. {hint}") from error


@contextmanager
def atomic_writer(path: Path, shared: bool = False, forced: bool = True) -> Iterator[BinaryIO]:
    """Open a binary file that appears under its name only when complete.

    A `shared` file may have several writers; the last one wins. Unless `forced` to disk, it may be torn by a crash.
    """
    # A single writer always uses one partial name, so that the next attempt replaces leftovers.
    folder, name = os.path.split(path)
    # As text, because making paths takes as long as writing a small file.
    partial = os.path.join(folder, f".{name}{f'.{uuid4().hex}' if shared else ''}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            if forced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes, shared: bool = False, forced: bool = True) -> None:
    """Write a file with `atomic_writer`; texts in UTF-8."""
    with atomic_writer(path, shared, forced) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_readable(path: Path, most: int) -> None:
    """Raise an OSError for files that are too large to read: devices, pipes, and files of more than `most` bytes."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise OSError("it is a device or a pipe, not a file")
    if about.st_size > most:
        raise OSError(f"it has {about.st_size} bytes, more than the {most} that are read")
