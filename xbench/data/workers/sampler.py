"""Distribution of a dataset's images among the processes of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from torch.utils.data import Sampler

from xbench.runtime.distributed import shared_counter
from xbench.runtime.errors import UserError


def deal(count: int, batch_size: int, world_size: int) -> list[range]:
    """Return the batches of images 0 to `count` - 1, the last may be smaller; UserError if fewer than processes."""
    batches = [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
    if len(batches) < world_size:
        raise UserError(
            f"{count} images in batches of {batch_size} make {len(batches)} batch{'es' if len(batches) != 1 else ''}, "
            f"too few for {world_size} processes: lower --data.batch_size or --trainer.devices."
        )
    return batches


class DealtBatchSampler(Sampler[list[int]]):
    """Deals sequential batches to the processes: one to each, then the next to the process that asks first.

    Nothing is repeated or dropped, and results do not depend on the number or speed of processes, because batches never
    change. (Lightning's sampler repeats images to give each process the same number, and so counts some twice.)

    Args:
        world_size: Number of processes. Fewer batches are a `UserError`, because processes would wait forever.
        finished: Numbers of batches to skip; at least one must be left for each process.
        new_counter: Makes a counter from 0 that all processes share.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        finished: Collection[int] = (),
        new_counter: Callable[[], Callable[[], int]] = partial(shared_counter, "dealt batches"),  # noqa: B008
    ) -> None:
        batches = deal(count, batch_size, world_size)
        self._left = [batch for number, batch in enumerate(batches) if number not in finished]
        if len(self._left) < world_size:
            raise ValueError(f"{len(self._left)} batches are left for {world_size} processes")
        self._rank = rank
        self._world_size = world_size
        self._new_counter = new_counter

    def __len__(self) -> int:
        """Return the most batches that this process can get: all except one for each other process."""
        return len(self._left) - self._world_size + 1

    def __iter__(self) -> Iterator[list[int]]:
        # Created eagerly, so that all processes create theirs in the same order.
        return self._deal(self._new_counter())

    def _deal(self, draw: Callable[[], int]) -> Iterator[list[int]]:
        yield list(self._left[self._rank])
        while (number := self._world_size + draw()) < len(self._left):
            yield list(self._left[number])
