"""Import torchmetrics without the packages that its metrics for text, sound and pictures need.

Lightning and our metrics take two classes from torchmetrics, whose package imports torchvision, transformers and scipy
for all the others: a third of the time from a command to its first batch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_NAME = "torchmetrics"
# Names by the module that has them; in this order their circular imports work.
_MODULES = {"__about__": ("__version__",), "utilities": (), "metric": ("Metric",), "collections": ("MetricCollection",)}


def import_lean_torchmetrics() -> None:
    """Let the next import of torchmetrics be a lean one; without effect if it is imported already.

    Whoever uses anything else of the package gets it as ever: the rest is imported when a name is first asked for.
    """
    if _NAME not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == _NAME else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LeanLoader(spec.loader)
        return spec


class _LeanLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        before = {*vars(module)}
        # Its modules log with it.
        vars(module)["_logger"] = logging.getLogger(_NAME)
        try:
            for part, names in _MODULES.items():
                found = import_module(f"{_NAME}.{part}")
                vars(module).update({name: getattr(found, name) for name in names})
        except (ImportError, AttributeError):
            # A version of torchmetrics whose modules need more of the package.
            for name in [name for name in sys.modules if name.startswith(f"{_NAME}.")]:
                del sys.modules[name]
            for name in {*vars(module)} - before:
                delattr(module, name)
            self._loader.exec_module(module)
            return
        vars(module)["_loader"] = self._loader
        module.__class__ = _Lean


class _Lean(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        self._loader.exec_module(self)
        return getattr(self, name)
