"""Import torchmetrics without its text, audio and image metrics, whose packages delay the first batch by a third.

Lightning and our metrics use two of its classes.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_NAME = "torchmetrics"
_LEAN = {"__version__": "__about__", "Metric": "metric", "MetricCollection": "collections"}


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
