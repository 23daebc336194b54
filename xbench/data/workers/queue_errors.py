"""A worker that cannot hand a batch over says so; by default the batch is dropped, and the run waits for ever."""

from __future__ import annotations

import os
import sys
from multiprocessing.queues import Queue
from typing import Any

from torch._utils import ExceptionWrapper

__all__ = ["report_what_cannot_be_handed_over"]


def report_what_cannot_be_handed_over() -> None:
    """Make the errors of the thread that hands batches over reach the main process; to be called in the worker."""
    Queue._on_queue_feeder_error = _hand_over_instead  # type: ignore[attr-defined]


def _hand_over_instead(queue: Any, error: Exception, item: object) -> None:
    if isinstance(item, tuple) and len(item) == 2 and not isinstance(item[1], ExceptionWrapper):
        # As the data loader's workers hand over what goes wrong in a dataset.
        queue.put((item[0], ExceptionWrapper(where="in a data worker that handed a batch over")))
        return
    print(f"A data worker could not say what went wrong: {error}", file=sys.stderr, flush=True)
    os._exit(1)
