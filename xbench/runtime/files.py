"""Writing files that several processes or a later attempt may read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


@contextmanager
def atomic_writer(path: Path, shared: bool = False) -> Iterator[BinaryIO]:
    """Open a binary file that appears under its name complete or not at all.

    Several processes may write a `shared` one at once; the last one wins.
    """
    # With one writer the partial file has one name, so that the next attempt replaces what a killed one left.
    partial = path.with_name(f".{path.name}{f'.{uuid4().hex}' if shared else ''}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
