"""Digests of files and of the code that makes numbers, so that two runs can be told to come from the same."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import xbench
import xbench.configs

_PACKAGE = Path(xbench.__file__).resolve().parent
# Wherever it is installed, it lies beside the configurations.
_CALLBACKS = Path(xbench.configs.__file__).resolve().parent.with_name("callbacks")
# What starts runs, what reads finished ones, and what lies in the package only where that is installed.
_NO_PART = tuple(map(Path, ("commands/bench", "callbacks", "configs", "conformance", "report")))


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    A file is read once as long as its size and its times stay as they are: weights have gigabytes, and a run asks for
    their digest when it looks for encoded prompts, for a run to go on with, and for what its results depend on.
    """
    about = path.stat()
    return _sha256(path.absolute(), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


def files_sha256(root: Path, paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the content of several files and of their places below `root`; folders do not count."""
    found = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return found.hexdigest()


def source_sha256(*classes: type) -> str:
    """Return the SHA-256 of the package's code and weights, and of the code of classes from outside of it.

    What a class from outside calls may lie in the files beside it, so these count as well. The package is read at the
    first call alone: an edit while the process runs does not change what it runs.
    """
    found = hashlib.sha256(_own().encode())
    outside = [cls.__module__ for cls in classes if cls.__module__.partition(".")[0] != "xbench"]
    files = [file for module in outside if (file := getattr(sys.modules.get(module), "__file__", None)) is not None]
    for folder in sorted({Path(file).resolve().parent for file in files}):
        found.update(files_sha256(folder, folder.glob("*.py")).encode())
    return found.hexdigest()


@cache
def _own() -> str:
    files = [path for path in _PACKAGE.rglob("*") if path.suffix in (".py", ".yaml")]
    files = [path for path in files if not any(path.is_relative_to(_PACKAGE / part) for part in _NO_PART)]
    weights = (_PACKAGE / "models" / "weights").iterdir()
    return files_sha256(_PACKAGE.parent, [*files, *weights]) + files_sha256(_CALLBACKS, _CALLBACKS.glob("*.py"))


@cache
def _sha256(path: Path, number: int, size: int, modified: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
