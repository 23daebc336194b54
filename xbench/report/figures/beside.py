"""Draw figures in a second process while the page is written; only that process loads matplotlib."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

from xbench.report.schema import Analysis, Drawn
from xbench.runtime.errors import UserError

_drawing: Iterator[Drawn] = iter(())


@contextmanager
def drawn_beside(analysis: Analysis, folder: Path, cases: int, count: int) -> Iterator[Iterator[Drawn | None]]:
    """Begin to write up to `count` figures; those not drawn within the context are left out.

    Yield an iterator that waits for each figure; None for those that do not exist.
    """
    # A fork needs no pickled analysis.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(1, context, _begin, (analysis, folder, cases))
    try:
        yield pool.map(_draw, range(count))
    except BrokenProcessPool:
        raise UserError(
            "The process that draws the figures was killed, perhaps because memory ran out. The page is complete; run "
            "the same command again for the figures, or leave them out with --figures false."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(analysis: Analysis, folder: Path, cases: int) -> None:
    global _drawing
    # On Ctrl-C, the first process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from xbench.report.figures.write import write_figures

    _drawing = write_figures(analysis, folder, cases)


def _draw(_: int) -> Drawn | None:
    return next(_drawing, None)
