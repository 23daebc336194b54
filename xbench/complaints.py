"""What jsonargparse says of options that it refuses, in a few words."""

from __future__ import annotations

import re

__all__ = ["expected"]


def expected(complaint: str) -> str:
    """Return what would have been taken for an option, and what was given; nothing if the complaint is another.

    >>> expected("Expected a <class 'int'>. Got value: three")
    "int, not 'three'"
    """
    types = re.search(r"Subtypes: \[(.+)\]", complaint) or re.search(r"Expected an? (.+?)\. Got value", complaint)
    value = re.search(r"(?:Got|Given) value: (.+)", complaint)
    if types is None or value is None:
        return ""
    plain = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", types[1]).replace("typing.", "")
    plain = re.sub(r"Literal\[([^]]*)\]", r"one of \1", plain)
    return f"{plain}, not {value[1].strip()!r}"
