"""Hand batches over from data workers in shared memory that is used again, because mapping new memory is slow."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import weakref
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import accumulate
from mmap import mmap
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from xbench.data.workers.isolation import one_thread
from xbench.types import Batch, Failure, Sample

# Slot n, from 1, begins at byte n * _SLOT. The worker sets byte n before use, and the process with the loader clears it
# after use. Batches that wait to be scored keep theirs. Pages that nothing was written to take no memory.
_SLOTS, _SLOT = 12, 2**24
_LARGE = 2**20  # bytes of a region that is handed over as bits: containers may limit shared memory to 64 MB
_memories: weakref.WeakValueDictionary[int, mmap] = weakref.WeakValueDictionary()
_used: dict[tuple[int, int], Any] = {}  # references to the content of slots
_own: Any = None  # memory of this worker


class Loader(DataLoader[Sample | Failure]):
    """A data loader whose workers hand batches over in slots."""

    def __iter__(self) -> Any:
        self.worker_init_fn = one_thread
        if self.num_workers and (self.multiprocessing_context or multiprocessing).get_start_method() == "fork":
            with suppress(OSError):
                memories = [mmap(-1, (1 + _SLOTS) * _SLOT) for _ in range(self.num_workers)]
                _memories.update((id(memory), memory) for memory in memories)
                self.worker_init_fn = partial(_start, memories)
        return super().__iter__()


def _start(memories: list[mmap], worker: int) -> None:
    global _own
    one_thread(worker)
    _own = memories[worker]


def _free(memory: mmap, slot: int, process: int, _: object) -> None:
    del _used[id(memory), slot]
    # Not in processes forked later: their copies of a tensor end before the tensor.
    if os.getpid() == process:
        memory[slot] = 0


def _array(array: Any) -> tuple[Any, ...]:
    if array.dtype == np.bool_ and array.nbytes > _LARGE:
        return _unpacked, (np.packbits(array), array.shape)
    # Few numbers are copied, so that whoever keeps them keeps no slot.
    data = bytearray(array) if array.nbytes <= 4096 else pickle.PickleBuffer(np.ascontiguousarray(array).data)
    return np.ndarray, (array.shape, array.dtype.str, data)


def _unpacked(bits: Any, shape: tuple[int, ...]) -> Any:
    return np.unpackbits(bits, count=math.prod(shape)).reshape(shape).view(np.bool_)


def _reduced(batch: Batch) -> tuple[Any, ...]:
    parts, message = list[Any](), BytesIO()
    pickler = pickle.Pickler(message, 5, buffer_callback=parts.append)
    pickler.dispatch_table = {np.ndarray: _array, torch.Tensor: lambda tensor: (torch.from_numpy, (tensor.numpy(),))}
    pickler.dump(batch)
    starts = [*accumulate((-(-len(part.raw()) // 64) * 64 for part in parts), initial=0)]  # aligned
    if _own and starts[-1] <= _SLOT and (slot := _own.find(b"\0", 1, 1 + _SLOTS)) > 0:
        _own[slot] = 1
        place: Any = id(_own), slot
    else:
        # One storage: each takes a file descriptor, and a process has about 1,000.
        place = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(starts[-1]))
    content = _content(place, starts[-1])
    for start, part in zip(starts, parts, strict=False):
        content[start : start + len(part.raw())] = part.raw()
    return _made, (place, starts, message.getvalue())


def _content(place: Any, size: int) -> Any:
    return place.numpy() if type(place) is not tuple else np.ndarray(size, "u1", _memories[place[0]], place[1] * _SLOT)


def _made(place: Any, starts: list[int], message: bytes) -> Any:
    content = _content(place, starts[-1])
    if isinstance(place, tuple):
        _used[place] = weakref.ref(content, partial(_free, content.base, place[1], os.getpid()))
    return pickle.loads(message, buffers=[content[start:] for start in starts])


ForkingPickler.register(Batch, _reduced)
