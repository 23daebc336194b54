"""A digest of the code that makes numbers, so that two runs can be told to come from the same."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import xbench
import xbench.configs

__all__ = ["source_sha256"]

_PACKAGE = Path(xbench.__file__).resolve().parent
# Wherever it is installed, it lies beside the configurations.
_CALLBACKS = Path(xbench.configs.__file__).resolve().parent.with_name("callbacks")
# What starts runs, what reads finished ones, and what lies in the package only where that is installed.
_NO_PART = tuple(map(Path, ("commands/bench", "callbacks", "configs", "conformance", "report")))


def source_sha256(*classes: type) -> str:
    """Return the SHA-256 of the package's code and weights, and of the code of classes from outside of it.

    What a class from outside calls may lie in the files beside it, so these count as well.
    """
    found = hashlib.sha256(_own().encode())
    for folder in sorted({folder for cls in classes if (folder := _folder(cls)) is not None}):
        found.update(_digest(folder, folder.glob("*.py")).encode())
    return found.hexdigest()


# Once: an edit while the process runs does not change what it runs.
@cache
def _own() -> str:
    files = [
        path
        for path in _PACKAGE.rglob("*")
        if path.suffix in (".py", ".yaml") and not any(path.is_relative_to(_PACKAGE / part) for part in _NO_PART)
    ]
    weights = (_PACKAGE / "models" / "weights").iterdir()
    return _digest(_PACKAGE.parent, [*files, *weights]) + _digest(_CALLBACKS, _CALLBACKS.glob("*.py"))


def _folder(cls: type) -> Path | None:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if cls.__module__.partition(".")[0] == "xbench" or file is None:
        return None
    return Path(file).resolve().parent


def _digest(root: Path, paths: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return found.hexdigest()


# At import, that is before a run has taken its time.
_own()
