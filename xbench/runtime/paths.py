"""Where work that can be repeated is kept, so that it need not be: prepared images and encoded prompts."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Return `$XBENCH_CACHE`, else `$XDG_CACHE_HOME/xbench`, else `~/.cache/xbench`."""
    if named := os.environ.get("XBENCH_CACHE"):
        return Path(os.path.expandvars(named)).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "xbench"
