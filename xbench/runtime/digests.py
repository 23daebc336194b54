"""Digests of files and of the code that makes numbers, so that two runs can be told to come from the same."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import xbench
import xbench.configs

_PACKAGE = Path(xbench.__file__).resolve().parent
# Wherever it is installed, it lies beside the configurations.
_CALLBACKS = Path(xbench.configs.__file__).resolve().parent.with_name("callbacks")
# What starts runs, what reads finished ones, and what lies in the package only where that is installed.
_NO_PART = tuple(map(Path, ("commands/bench", "callbacks", "configs", "conformance", "report")))
# The package itself, and what has a version that counts instead.
_COVERED = sys.stdlib_module_names | {"albumentations", "lightning", "torch", "torchmetrics", "transformers", "xbench"}


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    A file is read once as long as its size and its times stay as they are: weights have gigabytes, and a run asks for
    their digest when it looks for encoded prompts, for a run to go on with, and for what its results depend on.
    """
    about = path.stat()
    return _sha256(path.absolute(), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


def files_sha256(root: Path, paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the digests of several files and of their places below `root`; folders do not count."""
    files = sorted({path for path in paths if path.is_file()})
    lines = (f"{path.relative_to(root)} {file_sha256(path)}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def digest(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return the SHA-256 of plain values, in hexadecimal: the same for equal values, whatever the order of keys.

    `default` makes plain what is not; without it that is a TypeError.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=default).encode()).hexdigest()


def source_sha256(*classes: type | Callable[..., Any], files: tuple[str, ...] = ()) -> str:
    """Return the SHA-256 of the package's code and weights, and of the code of classes from outside of it.

    `files` are patterns of those files of the package that count alone. What a class from outside, or a parent of it,
    calls may lie in the files beside it, so these count as well. The package is read at the first call alone: an edit
    while the process runs does not change what it runs.
    """
    found = hashlib.sha256(_own(files).encode())
    for folder in sorted({file.parent for file in outside(*classes).values() if file is not None}):
        found.update(files_sha256(folder, folder.glob("*.py")).encode())
    return found.hexdigest()


def modules_of(*classes: type | Callable[..., Any]) -> set[str]:
    """Return the modules of classes, of their parents, and of functions."""
    return {owner.__module__ for one in classes for owner in getattr(one, "__mro__", (one,))}


def outside(*classes: type | Callable[..., Any]) -> dict[str, Path | None]:
    """Return those of `modules_of` that neither the package's code nor a version covers, each with its file."""
    modules = [name for name in modules_of(*classes) if name.partition(".")[0] not in _COVERED]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in modules]
    return {name: file and Path(file).resolve() for name, file in zip(modules, files, strict=True)}


@cache
def _own(patterns: tuple[str, ...]) -> str:
    if patterns:
        return files_sha256(_PACKAGE, {file for pattern in patterns for file in _PACKAGE.glob(pattern)})
    files = [path for path in _PACKAGE.rglob("*") if path.suffix in (".py", ".yaml")]
    files = [path for path in files if not any(path.is_relative_to(_PACKAGE / part) for part in _NO_PART)]
    weights = (_PACKAGE / "models" / "weights").iterdir()
    return files_sha256(_PACKAGE.parent, [*files, *weights]) + files_sha256(_CALLBACKS, _CALLBACKS.glob("*.py"))


@cache
def _sha256(path: Path, number: int, size: int, modified: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
