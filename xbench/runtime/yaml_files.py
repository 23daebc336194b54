"""Read untrusted YAML: run no code, and refuse aliases that would fill the memory."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

_MAX_ENTRIES = 100_000
_MAX_DEPTH = 100


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
