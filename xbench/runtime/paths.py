"""The user's paths, and the cache of prepared images and encoded prompts."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

IMAGE_SUFFIXES = (".dcm", ".dicom", ".png", ".jpg", ".jpeg")
"""Endings of image files, in lower case."""


def expand(path: str | Path) -> Path:
    """Return a user's path with `~` and environment variables expanded."""
    return Path(os.path.expanduser(os.path.expandvars(path)))


def cache_folder() -> Path:
    """Return `$XBENCH_CACHE`, or else `xbench` in the user's folder for caches, such as `~/.cache/xbench` on Linux."""
    if named := os.environ.get("XBENCH_CACHE"):
        return expand(named)
    return platformdirs.user_cache_path("xbench")
