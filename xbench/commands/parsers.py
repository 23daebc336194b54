"""What all commands share in reading their words: errors in one paragraph. Imports neither torch nor Lightning."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from xbench.errors import UserError


class CommandParser(argparse.ArgumentParser):
    """Parser of a command that runs no model; `kwargs` are those of `argparse.ArgumentParser`."""

    def __init__(self, command: str, **kwargs: Any) -> None:
        super().__init__(prog=f"python -m xbench.cli {command}", **kwargs)
        self._command = command

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with the options as a `UserError`."""
        raise UserError(f"{self._command}: {message}. See {self.prog} --help.", exit_status=2)


def user_error_behind(error: BaseException | None) -> UserError | None:
    """Return the `UserError` that an exception is or was caused by; jsonargparse wraps what a constructor raises."""
    while error is not None:
        if isinstance(error, UserError):
            return error
        error = error.__cause__ or error.__context__
    return None


def expected(message: str) -> str:
    """Shorten jsonargparse's message about a value of a wrong type; return nothing for any other message.

    >>> expected("Expected a <class 'int'>. Got value: three")
    "int, not 'three'"
    """
    types = re.search(r"Subtypes: \[(.+)\]", message) or re.search(r"Expected an? (.+?)\. Got value", message)
    value = re.search(r"(?:Got|Given) value: (.+)", message)
    if types is None or value is None:
        return ""
    plain = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", types[1]).replace("typing.", "")
    plain = re.sub(r"Literal\[([^]]*)\]", r"one of \1", plain)
    return f"{plain}, not {value[1].strip()!r}"


def in_one_paragraph(message: str) -> str:
    """Shorten jsonargparse's message about the options of a run, which lists every member of a union, to one paragraph.

    Its exceptions hold nothing but this text.
    """
    key = re.search(r'Parser key "([^"]+)"', message)
    chosen = re.search(r"Problem with given class_path '([^']+)':\s*(.+)", message, re.S)
    required = re.search(r"arguments are required: (.+)", message)
    text = re.sub(r"\s*\n[\s-]*", "; ", message.strip()) + "."
    if required and not chosen and (missing := re.findall(r"\b(data|model)\b", required[1])):
        return (
            f"No {' and no '.join(sorted(missing, reverse=True))} was chosen: give --config with a shipped name or a "
            "file, such as --config demo; `python -m xbench.cli list` shows what there is."
        )
    if key and chosen:
        name, problem = chosen[1], chosen[2]
        option = re.match(r'Parser key "([^"]+)":', problem)
        if option and (values := expected(problem)):
            text = f"--{key[1]}.{option[1]} of {name} expects {values}."
        elif required:
            text = f"{name} needs {', '.join(f'--{key[1]}.{one.strip()}' for one in required[1].split(','))}."
        else:
            text = f"--{key[1]} {name}: {problem.splitlines()[0]}."
    return (
        f"{text} See `python -m xbench.cli test --help`, and `--data.help CLASS` or `--model.help CLASS` for a class."
    )
