"""Objects and counters that the processes of a run share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def gather(part: T) -> list[T]:
    """Return the objects of all processes, in order, on the first, and an empty list elsewhere. All must call it."""
    if not (dist.is_available() and dist.is_initialized()):
        return [part]
    parts: list[T | None] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(part, parts, dst=0)
    return [] if parts is None else parts  # type: ignore[return-value]


def shared_counter(name: str) -> Callable[[], int]:
    """Return a new counter, 0, 1, ..., that all processes share; the k-th of a name is the same in every process."""
    if not (dist.is_available() and dist.is_initialized()):
        return itertools.count().__next__
    # The oldest PyTorch versions that we support have no public way.
    store = dist.distributed_c10d._get_default_store()
    turn = store.add(f"xbench/{name}/of process {dist.get_rank()}", 1)
    return lambda: store.add(f"xbench/{name}/{turn}", 1) - 1
