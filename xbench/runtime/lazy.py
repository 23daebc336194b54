"""Names of a package that are imported when they are first used, so that one model does not load what another needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_attributes"]


def lazy_attributes(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`.

    Args:
        package: Name of the package.
        places: The submodule that defines each public name.
    """

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{places[name]}"), name)

    return get
