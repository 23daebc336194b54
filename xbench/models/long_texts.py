"""Texts longer than a model reads: an error before a run, cut off with a note during it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from xbench.runtime.errors import UserError
from xbench.runtime.notes import CUT_OFF_NOTE

_CUT: ContextVar[list[str] | None] = ContextVar("_CUT", default=None)


@contextmanager
def cutting_off() -> Iterator[list[str]]:
    """Let models cut off texts that are too long, and yield the notes about them."""
    notes: list[str] = []
    token = _CUT.set(notes)
    try:
        yield notes
    finally:
        _CUT.reset(token)


def too_long(text: str, length: int, model: str, unit: str = "tokens", refuse: bool = True) -> None:
    """Note inside `cutting_off` that a text is cut off; elsewhere raise a UserError if `refuse`."""
    notes = _CUT.get()
    if notes is not None:
        notes.append(f"{CUT_OFF_NOTE}: it is longer than the {length} {unit} that {model} reads")
    elif refuse:
        raise UserError(
            f"The prompt {text!r} is longer than the {length} {unit} that {model} reads. Shorten it, or split it if "
            "the model takes several."
        )
