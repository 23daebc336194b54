"""Parsers that refuse what others accept: `1_0` as a number, a repeated key or column, YAML that fills the memory."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from xbench.runtime.files import check_readable

_DECIMAL = re.compile(r"[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+")
# Of YAML, with its aliases filled in.
_MAX_ENTRIES = 100_000
_MAX_DEPTH = 100


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


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads 1e-5 as a number; in YAML 1.1 it is a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"]
)


def load_yaml(source: Path | str) -> Any:
    """Return the contents of a YAML file or text; YAMLError, OSError or UnicodeDecodeError if it is invalid."""
    text = source if isinstance(source, str) else source.read_text(encoding="utf-8-sig")
    check_yaml(text)
    try:
        return yaml.load(text, Loader=_Loader)
    # `!!int ''`, `!!bool x` and `!!timestamp x` raise these.
    except (LookupError, AttributeError) as error:
        raise yaml.YAMLError(f"a value does not fit its tag ({error!r})") from error


def check_yaml(text: str) -> None:
    """Raise a YAMLError for wrong syntax, and for too many entries or levels with aliases (`*name`) expanded.

    Ten lines of aliases can stand for 10^10 entries. Reads events because the C loader's nodes crash on deep nesting.
    """
    count = 0.0
    starts: list[tuple[str | None, float]] = []
    counts: dict[str | None, float] = {}
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = starts.pop()
            counts[anchor] = count - before
        elif isinstance(event, yaml.CollectionStartEvent):
            starts.append((event.anchor, count))
            # An alias within itself never ends.
            counts[event.anchor] = math.inf
            count += 1
        elif isinstance(event, yaml.ScalarEvent):
            counts[event.anchor] = 1
            count += 1
        elif isinstance(event, yaml.AliasEvent):
            count += counts.get(event.anchor, 0)
        if count > _MAX_ENTRIES or len(starts) > _MAX_DEPTH:
            raise yaml.YAMLError(
                f"with its aliases (*name) filled in, it has more than {_MAX_ENTRIES:,} entries or {_MAX_DEPTH} levels"
            )
