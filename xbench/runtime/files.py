"""Files that several processes or a later attempt may read, and files of strangers that have no end."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from xbench.runtime.errors import UserError


@contextmanager
def writing(failed: str, hint: str) -> Iterator[None]:
    """Turn an OSError of writing into a UserError: what failed, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{failed}: {error.strerror or error}. {hint}") from error


@contextmanager
def atomic_writer(path: Path, shared: bool = False, forced: bool = True) -> Iterator[BinaryIO]:
    """Open a binary file that appears under its name complete or not at all.

    Several processes may write a `shared` one at once; the last one wins. After a crash of the machine, one that is not
    `forced` to the disk may be torn: its reader must have a checksum.
    """
    # With one writer the partial file has one name, so that the next attempt replaces what a killed one left.
    partial = path.with_name(f".{path.name}{f'.{uuid4().hex}' if shared else ''}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            if forced:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes, shared: bool = False, forced: bool = True) -> None:
    """Write a file as `atomic_writer` does; a text in UTF-8."""
    with atomic_writer(path, shared, forced) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_readable(path: Path, most: int) -> None:
    """Raise an OSError at what would be read without end: a device, a pipe, a file of more than `most` bytes."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise OSError("it is a device or a pipe and not a file")
    if about.st_size > most:
        raise OSError(f"it has {about.st_size} bytes, more than the {most} that are read")
