"""Names of a package that are imported on first use, so that one of them does not load the libraries of another."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, **homes: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package (PEP 562), and its `__all__`: by name, the module below it that has it."""

    def load(name: str) -> Any:
        if name == "__all__":
            return list(homes)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return load
