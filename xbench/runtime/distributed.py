"""What several processes of a run share: objects brought together, and a counter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def gather(part: T) -> list[T]:
    """Return an object of every process on the first one, ordered by process, and nothing elsewhere.

    Every process must call it. Outside a distributed run there is the one object.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [part]
    parts: list[T | None] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(part, parts, dst=0)
    return [] if parts is None else parts  # type: ignore[return-value]


def shared_counter(name: str) -> Callable[[], int]:
    """Return a new counter that all processes share: each call of it, by whichever process, gives the next of 0, 1 ...

    No process waits for another one. The k-th counter of a name is the same one in every process, so each must make as
    many. Outside a distributed run it is one of this process alone.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return itertools.count().__next__
    # PyTorch has a public way to it as well, but not in the oldest versions that we support.
    store = dist.distributed_c10d._get_default_store()
    turn = store.add(f"xbench/{name}/of process {dist.get_rank()}", 1)
    return lambda: store.add(f"xbench/{name}/{turn}", 1) - 1
