"""How the images of a dataset are dealt to the processes of a distributed run."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch.utils.data import Sampler

from xbench.errors import UserError

__all__ = ["DealtBatchSampler"]


class DealtBatchSampler(Sampler[list[int]]):
    """Sequential batches dealt whole to the processes, like cards: process r takes batches r, r + n, r + 2n ...

    Nothing is repeated and nothing dropped. Because a batch is the same whichever process gets it, so is its forward
    pass, and results do not depend on the number of processes. (Lightning's own sampler repeats images until every
    process has as many, and so counts some twice.)

    Args:
        count: Number of images.
        batch_size: Images per batch; the last batch may be smaller.
        rank: This process, 0-based.
        world_size: Number of processes.
        finished: Numbers of batches that were done before and are left out; at least one is left for each process.

    Raises:
        UserError: Fewer batches than processes; a process without any batch would leave the others waiting for ever.
    """

    def __init__(
        self, count: int, batch_size: int, rank: int = 0, world_size: int = 1, finished: Collection[int] = ()
    ) -> None:
        self._batches = [range(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
        if len(self._batches) < world_size:
            raise UserError(
                f"{count} images in batches of {batch_size} make {len(self._batches)} batches, too few for "
                f"{world_size} processes: lower --data.batch_size or --trainer.devices."
            )
        left = [batch for number, batch in enumerate(self._batches) if number not in finished]
        if len(left) < world_size:
            raise ValueError(f"{len(left)} batches are left for {world_size} processes")
        self._dealt = left[rank::world_size]

    def __len__(self) -> int:
        """Return the number of batches of this process."""
        return len(self._dealt)

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over lists of image positions."""
        return (list(batch) for batch in self._dealt)
