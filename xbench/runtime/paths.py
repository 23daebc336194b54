"""Where xbench keeps prepared images and encoded prompts."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Return `$XBENCH_CACHE`, else `xbench` in the user's folder for caches, such as `~/.cache/xbench` on Linux."""
    if named := os.environ.get("XBENCH_CACHE"):
        return Path(os.path.expandvars(named)).expanduser()
    return platformdirs.user_cache_path("xbench")
