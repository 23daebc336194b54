"""Import less: names of a package on first use, and torchmetrics without its text, audio and image metrics.

The packages of those metrics delay the first batch by a third; Lightning and our metrics use two of its classes.
"""

from __future__ import annotations

import ast
import logging
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = "torchmetrics"
_LEAN = {"__version__": "__about__", "Metric": "metric", "MetricCollection": "collections"}


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


def import_lean_torchmetrics() -> None:
    """Replace torchmetrics, unless imported; using any other name imports the full package."""
    spec = None if _NAME in sys.modules else find_spec(_NAME)
    if spec is not None:
        module = module_from_spec(spec)
        vars(module)["_logger"] = logging.getLogger(_NAME)
        del module.__path__
        module.__class__ = _Lean
        sys.modules[_NAME] = module


class _Lean(ModuleType):
    def __getattr__(self, name: str) -> Any:
        spec: Any = self.__spec__
        try:
            if "__path__" not in vars(self):  # asked for before the first of its modules is imported
                self.__path__ = spec.submodule_search_locations
                # Must come first because of circular imports.
                import_module(f"{_NAME}.utilities")
            if name in ("__path__", *_LEAN):
                return vars(self).get(name) or getattr(import_module(f"{_NAME}.{_LEAN[name]}"), name)
        except (ImportError, AttributeError):
            # In this version, the modules need more of the package.
            for module in [module for module in sys.modules if module.startswith(f"{_NAME}.")]:
                del sys.modules[module]
        if name.startswith("__"):
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)
