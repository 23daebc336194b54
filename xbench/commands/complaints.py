"""What jsonargparse says of options that it refuses, in a few words."""

from __future__ import annotations

import re

__all__ = ["expected", "in_one_paragraph"]


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


def in_one_paragraph(message: str) -> str:
    """Shorten jsonargparse's account of a value that fits no member of a union to the part about the class."""
    chosen = "given class_path" in message
    if (
        not chosen
        and "arguments are required" in message
        and (missing := re.findall(r"\b\w+\.(data|model)\b", message))
    ):
        return (
            f"No {' and no '.join(sorted(missing, reverse=True))} was chosen: give --config with a shipped name or a "
            "file, such as --config demo; `python -m xbench.cli list` shows what there is."
        )
    key = re.search(r'Parser key "([^"]+)"', message)
    option = re.search(
        r"Problem with given class_path '([^']+)':\s*\n\s*Parser key \"([^\"]+)\":\s*\n(.+)", message, re.S
    )
    problem = re.search(r"Problem with given class_path '([^']+)':\s*\n?\s*(.+)", message)
    if key and option and (values := expected(option[3])):
        text = f"--{key[1]}.{option[2]} of {option[1]} expects {values}."
    elif key and problem and (required := re.search(r"arguments are required: (.+)", problem[2])):
        text = f"{problem[1]} needs {', '.join(f'--{key[1]}.{name.strip()}' for name in required[1].split(','))}."
    elif key and problem:
        text = f"--{key[1]} {problem[1]}: {problem[2]}."
    else:
        text = re.sub(r"\s*\n[\s-]*", "; ", message.strip()) + "."
    return (
        f"{text} See `python -m xbench.cli test --help`, and `--data.help CLASS` or `--model.help CLASS` for a class."
    )
