"""Digests of files and code, which show whether two runs have the same sources."""

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
_CALLBACKS = Path(xbench.configs.__file__).resolve().parent.with_name("callbacks")
# Code that does not affect numbers: starts runs, reads finished ones, or is in the package only when installed.
_NO_PART = tuple(map(Path, ("commands/bench", "callbacks", "configs", "conformance", "report")))
# The package itself, and packages whose version counts instead.
_COVERED = sys.stdlib_module_names | {"albumentations", "lightning", "torch", "torchmetrics", "transformers", "xbench"}
_encoder = cache(lambda default: json.JSONEncoder(sort_keys=True, default=default))  # `json.dumps` makes one per call


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal; cached until its size or times change."""
    about = path.stat()
    return _sha256(path.absolute(), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


def files_sha256(root: Path, paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the digests of several files and of their paths below `root`; folders are ignored."""
    files = sorted({path for path in paths if path.is_file()})
    lines = (f"{path.relative_to(root)} {file_sha256(path)}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def digest(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return the SHA-256 of plain values, independent of the order of keys; `default` converts other values."""
    return hashlib.sha256(_encoder(default).encode(value).encode()).hexdigest()


def source_sha256(*classes: type | Callable[..., Any], files: tuple[str, ...] = ()) -> str:
    """Return the SHA-256 of the package's code and weights, or of its files by patterns, and of external classes.

    For these and their parents, all files beside theirs count. The package is read once per process.
    """
    found = hashlib.sha256(_own(files).encode())
    for folder in sorted({file.parent for file in outside(*classes).values() if file is not None}):
        found.update(files_sha256(folder, folder.glob("*.py")).encode())
    return found.hexdigest()


def modules_of(*classes: type | Callable[..., Any]) -> set[str]:
    """Return the modules of classes, of their parents, and of functions."""
    return {owner.__module__ for one in classes for owner in getattr(one, "__mro__", (one,))}


def outside(*classes: type | Callable[..., Any]) -> dict[str, Path | None]:
    """Return the modules of `modules_of` that neither the package's code nor a version covers, each with its file."""
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
