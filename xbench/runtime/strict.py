"""Parsers that refuse what Python's own accept: `1_0` as a number, a repeated key or column."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xbench.runtime.files import check_readable

_DECIMAL = re.compile(r"[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+")


def decimal(text: str) -> float:
    """Return a finite number in ASCII digits; ValueError for any other spelling."""
    if not _DECIMAL.fullmatch(text.strip()) or not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]!r} is not a number")
    return value


def check_distinct(names: Iterable[str], kind: str) -> None:
    """Raise a ValueError for a repeated name; empty names may repeat."""
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise ValueError(f"the {kind} {twice[0][:60]!r} occurs twice")


def read_json(path: Path, most: int) -> Any:
    """Return the contents of a JSON file; OSError or ValueError if it is damaged, a device, or over `most` bytes."""
    check_readable(path, most)
    return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique_keys)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, as the `object_pairs_hook` of `json`; ValueError for a repeated key."""
    if len(found := dict(pairs)) < len(pairs):
        check_distinct((key or "''" for key, _ in pairs), "key")
    return found
