"""Import torchmetrics without the packages that its metrics for text, sound and pictures need.

Lightning and our metrics take two classes from torchmetrics, whose package imports torchvision, transformers and scipy
for all the others: a third of the time from a command to its first batch.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_NAME = "torchmetrics"
# Names by the module that has them.
_LEAN = {"__version__": "__about__", "Metric": "metric", "MetricCollection": "collections"}


def import_lean_torchmetrics() -> None:
    """Put a lean torchmetrics in place; without effect if it is imported already.

    Whoever uses anything else of the package gets it as ever: the rest is imported when a name is first asked for.
    """
    spec = None if _NAME in sys.modules else find_spec(_NAME)
    if spec is not None:
        module = module_from_spec(spec)
        # Its modules log with it.
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
                # First, for in this order its circular imports work.
                import_module(f"{_NAME}.utilities")
            if name in ("__path__", *_LEAN):
                return vars(self).get(name) or getattr(import_module(f"{_NAME}.{_LEAN[name]}"), name)
        except (ImportError, AttributeError):
            # A version whose modules need more of the package.
            for module in [module for module in sys.modules if module.startswith(f"{_NAME}.")]:
                del sys.modules[module]
        if name.startswith("__"):
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)
