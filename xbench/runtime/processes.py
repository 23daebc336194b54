"""Child processes and usable cores."""

from __future__ import annotations

import ctypes
import math
import os
import signal
from contextlib import suppress
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container, as set by `docker run --cpus`


def end_with_parent() -> None:
    """End this process when its parent ends: an orphan would keep sockets open and hang the other ranks. Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def usable_cores() -> int:
    """Return the number of cores that this process may use, limited by affinity and a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Without a quota the file says `max`.
    with suppress(OSError, ValueError):
        quota, period = map(int, _QUOTA.read_text().split())
        cores = min(cores, max(1, math.ceil(quota / period)))
    return cores
