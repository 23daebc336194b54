"""Decoding in a process that may crash or hang without taking anything else along.

A worker of the data loader forks one such process when it first has an image to decode, and another whenever that one
is lost. On Linux only, for elsewhere such processes cannot be forked safely: there, and without workers, images are
decoded where they are asked for.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import select
import signal
import stat
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from torch.utils.data import get_worker_info

from xbench.data.workers.stall import TimedOutError
from xbench.errors import UserError
from xbench.runtime.processes import end_with_parent

if TYPE_CHECKING:
    from xbench.data.records import Record

_Result = TypeVar("_Result")
_PIPE_BYTES = 2**18
_TIME_TO_END = 2.0
# A user who sends one of these means the workers; their children end with them.
_NOT_FOR_CHILDREN = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
# Torch's handlers would announce that a worker is dead.
_HANDLED_IN_WORKERS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGCHLD")

_child: _Child | None = None
_lost: list[int] = []
_inside = False


def isolated(work: Callable[[Record], _Result], record: Record, timeout: float) -> _Result:
    """Do what may crash or hang in a process of its own, if this is a worker of a data loader.

    A record that cannot be pickled is worked on right here.

    Args:
        work: What to do with a record; what it returns must be such as can be pickled.
        record: An image.
        timeout: Seconds that it may take. Of the time that this process is stopped, one second at most counts.

    Raises:
        TimedOutError: It took longer.
        UserError: The process crashed.
        Exception: Whatever `work` raises.
    """
    if sys.platform != "linux" or _inside or get_worker_info() is None:
        return work(record)
    try:
        request = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError):
        return work(record)
    try:
        answer = _ask(work, request, timeout)
    except TimeoutError:
        raise TimedOutError(
            f"Reading {_named(record)} took more than {timeout:g} seconds (a hung network file system?), the limit "
            "that --data.timeout sets."
        ) from None
    except _CrashError as error:
        raise UserError(f"The decoder {error} on {_named(record)}.") from None
    result: _Result | _Raised = pickle.loads(answer[0], buffers=answer[1:])
    if isinstance(result, _Raised):
        raise result.error from _OriginalError(result.text)
    return result


class _Child:
    """A process that does the same work over and over.

    Args:
        work: The work.
    """

    def __init__(self, work: Callable[[Record], Any]) -> None:
        self.work = work
        self._main = os.getppid()
        _flush()
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        _widen(answers)
        random_state = random.getstate()
        with warnings.catch_warnings():
            # The worker's other threads hand batches over, with which a child has nothing to do.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            # Python would seed it anew.
            random.setstate(random_state)
            _serve(work, requests, answers)
        os.close(requests)
        os.close(answers)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    def ask(self, request: bytes, timeout: float) -> list[bytearray]:
        """Return the parts of the answer to a request.

        Raises:
            TimeoutError: It does not come.
            EOFError: The process has ended.
        """
        try:
            _write(self._requests, [request])
        except BrokenPipeError:
            raise EOFError from None
        return _read(self._answers, lambda: self._wait(timeout))

    def _wait(self, timeout: float) -> None:
        # Second by second, for clocks go on while a scheduler stops a job, or the user does.
        while not self._poll.poll(min(1.0, timeout) * 1000):
            timeout -= 1.0
            if os.getppid() != self._main:
                # Nobody waits for this worker any more.
                os._exit(1)
            if timeout <= 0:
                raise TimeoutError

    def end(self, kill: bool) -> int | None:
        """End the process if it does not do so itself.

        Returns:
            Its exit status, negative for a signal; None if it cannot be ended now.
        """
        os.close(self._requests)
        os.close(self._answers)
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _TIME_TO_END
        while (status := _status(self.pid)) is None and time.monotonic() < deadline:
            time.sleep(0.002)
        if status is None and not kill:
            os.kill(self.pid, signal.SIGKILL)
        return status


class _CrashError(Exception):
    """How a process ended, in words."""


class _OriginalError(Exception):
    """The traceback of an exception of the child's, as the cause of the same exception here."""


class _Raised:
    """An exception on its way from the child."""

    def __init__(self, error: Exception) -> None:
        self.text = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
            self.error = error
        # Exceptions may be of any kind and hold anything.
        except Exception:
            self.error = RuntimeError(f"{type(error).__name__}: {error}")


def _widen(pipe: int) -> None:
    # Not there on Windows.
    import fcntl

    # Every time the pipe is full, the two processes wait for each other.
    with suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _ask(work: Callable[[Record], Any], request: bytes, timeout: float) -> list[bytearray]:
    global _child
    for last in (False, True):
        # Methods are equal if they are of the very same object.
        if _child is None or _child.work != work:
            if _child is not None:
                _child.end(kill=True)
            _lost[:] = [pid for pid in _lost if _status(pid) is None]
            _child = _Child(work)
        try:
            return _child.ask(request, timeout)
        except (TimeoutError, EOFError) as error:
            child, _child = _child, None
            status = child.end(kill=isinstance(error, TimeoutError))
            if status is None:
                # In a call to a file system that hangs not even SIGKILL ends it, and waiting for it would hang as well.
                _lost.append(child.pid)
            if isinstance(error, TimeoutError):
                raise
            # Killed from outside, which need not be this image's doing: once more.
            if last or status != -signal.SIGKILL:
                raise _CrashError(_ending(status)) from None
    raise AssertionError("a last attempt returns or raises")


def _status(pid: int) -> int | None:
    """Exit status of a child, negative for a signal; None while it has not ended."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _ending(status: int | None) -> str:
    if status is None:
        return "crashed"
    if status == -signal.SIGKILL:
        return "was killed twice (SIGKILL), as the system does when memory runs out,"
    if status < 0:
        return f"crashed ({signal.Signals(-status).name})"
    return f"ended its process (exit status {status})"


def _named(record: Record) -> str:
    return ", ".join(map(str, record.files)) if record.files else f"image {record.image_id}"


def _serve(work: Callable[[Record], Any], requests: int, answers: int) -> NoReturn:
    """Work until the worker is gone; the child's whole life."""
    global _inside
    _inside = True
    status = 1
    try:
        _leave_the_worker({requests, answers})
        while True:
            (request,) = _read(requests, lambda: None)
            _write(answers, _answer(work, pickle.loads(request)))
            _flush()
    except (EOFError, BrokenPipeError):
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    # Nobody else would say it.
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _leave_the_worker(pipes: set[int]) -> None:
    for name in _NOT_FOR_CHILDREN:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    for name in _HANDLED_IN_WORKERS:
        signal.signal(signal.Signals[name], signal.SIG_DFL)
    end_with_parent()
    # As long as one copy of a pipe or socket is open, those at its other end wait. They are not closed, for their
    # owners would later close whatever has got the same number.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            mode = os.fstat(descriptor).st_mode
            if descriptor > 2 and descriptor not in pipes and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
                os.dup2(nowhere, descriptor)
    # What is there already is shared with the worker for as long as nobody writes to it, as the collector would.
    gc.freeze()


def _answer(work: Callable[[Record], Any], record: Record) -> Sequence[bytes | memoryview]:
    try:
        return _pickled(work(record))
    except Exception as error:
        return _pickled(_Raised(error))


def _pickled(result: Any) -> Sequence[bytes | memoryview]:
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(result, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    return [content, *(buffer.raw() for buffer in buffers)]


def _flush() -> None:
    # A process that is ended at once writes nothing of what waits there, and a forked one would write it again.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()


def _write(pipe: int, parts: Sequence[bytes | memoryview]) -> None:
    sizes = (len(parts), *map(len, parts))
    for part in (b"".join(size.to_bytes(8, "little") for size in sizes), *parts):
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(pipe, rest) :]


def _read(pipe: int, wait: Callable[[], None]) -> list[bytearray]:
    """Read what `_write` wrote.

    Raises:
        EOFError: The other end is closed.
    """

    def exactly(count: int) -> bytearray:
        content = bytearray(count)
        rest = memoryview(content)
        while rest:
            wait()
            got = os.readv(pipe, [rest])
            if not got:
                raise EOFError
            rest = rest[got:]
        return content

    def number() -> int:
        return int.from_bytes(exactly(8), "little")

    return [exactly(size) for size in [number() for _ in range(number())]]
