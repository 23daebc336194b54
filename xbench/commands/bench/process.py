"""A command in a process of its own, with its output in a file."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

__all__ = ["Interrupted", "interruptible", "run_logged"]

_TIME_TO_END = 30
"""Seconds that a run has to end once it is told to; one that goes on in the end is killed."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The benchmark was told to stop.

    Args:
        signal_number: By which signal.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and the end of the terminal into `Interrupted`."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_logged(command: Sequence[str], log: Path, keep_open: int, tick: Callable[[], None]) -> tuple[int, str]:
    """Run a command and append its output to a file.

    Args:
        command: The words of the command.
        log: The file.
        keep_open: A descriptor that the process inherits, such as of a lock that must live as long as it does.
        tick: Called several times a second.

    Returns:
        The exit status, negative for the signal that killed it, and what it said last.

    Raises:
        Interrupted: The benchmark was told to stop; the process and all that it started have ended.
        OSError: The file cannot be written.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        stream.write(f"\n{datetime.now():%Y-%m-%d %H:%M:%S} $ {shlex.join(command)}\n".encode())
        stream.flush()
        begin = stream.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            # Apart from the terminal's group: Ctrl-C reaches the benchmark alone, which passes it on in order.
            start_new_session=True,
            pass_fds=(keep_open,),
            env={**os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"},
        )
        try:
            while True:
                try:
                    status = process.wait(0.2)
                    break
                except subprocess.TimeoutExpired:
                    tick()
        except BaseException as error:
            _end(process, error.signal_number if isinstance(error, Interrupted) else signal.SIGTERM)
            raise
    return status, _last_words(log, begin, status)


def _end(process: subprocess.Popen[bytes], number: int) -> None:
    """Tell a process and its group to end, give them time, and kill what is left."""
    with suppress(ProcessLookupError):
        # A terminal that is gone means no more to it than an order to end.
        os.killpg(process.pid, signal.SIGTERM if number == signal.SIGHUP else number)
    # Told a second time, there is no more time.
    with suppress(subprocess.TimeoutExpired, Interrupted):
        process.wait(_TIME_TO_END)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path, begin: int, status: int) -> str:
    with log.open("rb") as stream:
        stream.seek(max(begin, os.fstat(stream.fileno()).st_size - 100_000))
        lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    if status < 0:
        memory = " (as the system does when memory runs out)" if -status == signal.SIGKILL else ""
        return f"killed by {signal.Signals(-status).name}{memory}"
    errors = [line for line in lines if line.startswith("error: ")]
    return errors[-1].removeprefix("error: ") if errors else (lines[-1] if lines else "it said nothing")
