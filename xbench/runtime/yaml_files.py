"""YAML from anywhere: read without running anything, and refused where its aliases would fill the memory."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

_MAX_ENTRIES = 100_000
_MAX_DEPTH = 100


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads 1e-5 as a number, which YAML 1.1 takes for a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"]
)


def load_yaml(source: Path | str) -> Any:
    """Return what a YAML file, or a text, holds.

    Raises:
        yaml.YAMLError: It has too many entries or levels with its aliases filled in, or its syntax is wrong.
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    text = source if isinstance(source, str) else source.read_text(encoding="utf-8-sig")
    check_yaml(text)
    try:
        return yaml.load(text, Loader=_Loader)
    # So do `!!int ''`, `!!bool x` and `!!timestamp x` end.
    except (LookupError, AttributeError) as error:
        raise yaml.YAMLError(f"a value does not fit its tag ({error!r})") from error


def check_yaml(text: str) -> None:
    """Refuse YAML that no file of the user's can be: ten lines of aliases (`*name`) can stand for 10^10 entries.

    Reads events, not nodes: the C loader crashes on deep nests.

    Raises:
        yaml.YAMLError: It has too many entries or levels with its aliases filled in, or its syntax is wrong.
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
            # Until it ends: an alias of itself within it has no end.
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
