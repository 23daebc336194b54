"""Errors of a worker that cannot send a batch; by default the batch is dropped and the run waits for ever."""

from __future__ import annotations

import os
import sys
from multiprocessing.queues import Queue
from typing import Any

from torch._utils import ExceptionWrapper


def report_queue_errors() -> None:
    """Send the errors of the thread that sends batches to the main process; call this in the worker."""
    Queue._on_queue_feeder_error = _send_error_instead  # type: ignore[attr-defined]


def _send_error_instead(queue: Any, error: Exception, item: object) -> None:
    if isinstance(item, tuple) and len(item) == 2 and not isinstance(item[1], ExceptionWrapper):
        # As the data loader's workers send what goes wrong in a dataset.
        wrap: Any = ExceptionWrapper
        queue.put((item[0], wrap(where="in a data worker that handed a batch over")))
        return
    print(f"A data worker could not say what went wrong: {error}", file=sys.stderr, flush=True)
    os._exit(1)
