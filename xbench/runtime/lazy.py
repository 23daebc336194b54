"""Import names of a package on first use, so that one does not load the libraries of another."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> Callable[[str], Any]:
    """Return a `__getattr__` (PEP 562), also for `__all__`, for the names in `file` under `if TYPE_CHECKING:`."""
    blocks = (node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imports = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name == "__all__":
            return list(homes)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return load
