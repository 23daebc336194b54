"""Bringing Python objects of several processes together."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

__all__ = ["gather"]

T = TypeVar("T")


def gather(part: T) -> list[T]:
    """Bring an object of every process to the first one, ordered by process. Every process must call it.

    Returns:
        The objects on the first process; nothing elsewhere. Outside a distributed run the object alone.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [part]
    parts: list[T | None] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(part, parts, dst=0)
    return [] if parts is None else parts  # type: ignore[return-value]
