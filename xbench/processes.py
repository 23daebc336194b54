"""Processes that this one starts."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress

__all__ = ["end_with_parent"]

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def end_with_parent() -> None:
    """Let the system kill this process once its parent has ended, however that comes; on Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
