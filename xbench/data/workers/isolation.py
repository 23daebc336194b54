"""Worker processes that load images, each with a child that decodes and may crash or hang without ending the run.

On Linux only, because forking is not safe elsewhere: there, and without workers, images are decoded in the caller.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import stat
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from typing import Any, NoReturn, TypeVar

import cv2
from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info

from xbench.data.records import Record
from xbench.runtime.errors import UserError
from xbench.runtime.processes import end_with_parent

_Result = TypeVar("_Result")
_TIME_TO_END, _MOST_IN_A_ROW = 2.0, 5
# Signals sent by a user are for the workers; their children end with them.
_NOT_FOR_CHILDREN = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
# Torch's handlers would report that a worker died.
_HANDLED_IN_WORKERS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGCHLD")

_child: _Child | None = None
_inside = False


class TimedOutError(UserError):
    """Reading an image took too long."""


def isolated(work: Callable[[Record], _Result], record: Record, timeout: float) -> _Result:
    """Run `work` in a child process if this is a worker of a data loader.

    Raise a `TimedOutError` after `timeout` seconds (a pause of this process counts as one second at most), a
    `UserError` if the child crashed, and whatever `work` raises.
    """
    global _child
    if sys.platform != "linux" or _inside or get_worker_info() is None:
        return work(record)
    try:
        request = pickle.dumps(record, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError):
        return work(record)
    named = ", ".join(map(str, record.files)) if record.files else f"image {record.image_id}"
    for last_try in (False, True):
        # Bound methods are equal only if their objects are.
        if _child is None or _child.work != work:
            if _child is not None:
                _child.end(kill=True)
            _child = _Child(work)
        try:
            error, result = pickle.loads(_child.ask(request, timeout))
            break
        except TimeoutError:
            _child.end(kill=True)
            _child = None
            raise TimedOutError(
                f"Reading {named} took more than {timeout:g} seconds (a hung network file system?), the limit that "
                "--data.timeout sets."
            ) from None
        except (EOFError, OSError):
            status = _child.end(kill=False)
            _child = None
            # Try once more: something else than this image may have caused the kill.
            if last_try or status != -signal.SIGKILL:
                raise UserError(f"The decoder {_ending(status)} on {named}.") from None
    if error is not None:
        raise error
    done: _Result = result
    return done


def _ending(status: int | None) -> str:
    if status == -signal.SIGKILL:
        return "was killed twice (SIGKILL), as the system does when memory runs out,"
    if status is None or status < 0:
        return f"crashed ({signal.Signals(-status).name})" if status else "crashed"
    return f"ended its process (exit status {status})"


class _Child:
    def __init__(self, work: Callable[[Record], Any]) -> None:
        self.work = work
        _flush()
        self._connection, others = Pipe()
        random_state = random.getstate()
        with warnings.catch_warnings():
            # The warning is about the worker's threads, which hand batches over; a child does not use them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            random.setstate(random_state)
            _serve(work, others)
        others.close()

    def ask(self, request: bytes, timeout: float) -> bytes:
        """Return the answer; raise TimeoutError if it takes too long, EOFError or OSError if the process ended."""
        self._connection.send_bytes(request)
        # Second by second, because clocks go on while a scheduler or the user stops the job.
        while not self._connection.poll(min(1.0, timeout)):
            timeout -= 1.0
            if timeout <= 0:
                raise TimeoutError
        return self._connection.recv_bytes()

    def end(self, kill: bool) -> int | None:
        """End the process; return its exit status, negative for a signal, or None if it does not end."""
        self._connection.close()
        if kill:
            os.kill(self._pid, signal.SIGKILL)
        # SIGKILL does not end a call to a hung file system, so do not wait forever.
        deadline = time.monotonic() + _TIME_TO_END
        while time.monotonic() < deadline:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(self._pid, signal.SIGKILL)
        return None


def _serve(work: Callable[[Record], Any], connection: Connection) -> NoReturn:
    global _inside
    _inside = True
    status = 1
    try:
        _leave_the_worker(connection.fileno())
        while True:
            record = pickle.loads(connection.recv_bytes())
            try:
                answer = pickle.dumps((None, work(record)), pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                answer = _pickled(error)
            connection.send_bytes(answer)
            _flush()
    except (EOFError, ConnectionError):
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _leave_the_worker(connection: int) -> None:
    for name in _NOT_FOR_CHILDREN:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    for name in _HANDLED_IN_WORKERS:
        signal.signal(signal.Signals[name], signal.SIG_DFL)
    end_with_parent()
    # Peers wait as long as any copy of a pipe or socket is open. Not closed, because owners may close a reused number.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            mode = os.fstat(descriptor).st_mode
            if descriptor > 2 and descriptor != connection and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
                os.dup2(nowhere, descriptor)
    # Keep the garbage collector from writing to, and so copying, memory shared with the worker.
    gc.freeze()


def _pickled(error: Exception) -> bytes:
    note = f"In the process that decoded it:\n{''.join(traceback.format_exception(error))}"
    error.add_note(note)
    with suppress(Exception):
        pickle.loads(content := pickle.dumps((error, None)))
        return content
    error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return pickle.dumps((error, None))


def _flush() -> None:
    # `os._exit` loses buffered output, and a fork would write it twice.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


class StallGuard:
    """Ends a command that skips unreadable images when it would only wait for timeouts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._in_a_row = 0

    def see(self, image_id: str, timed_out: bool) -> None:
        """Count an image, in order of arrival; raise UserError at the fifth timeout in a row."""
        self._in_a_row = self._in_a_row + 1 if timed_out else 0
        if self._in_a_row == _MOST_IN_A_ROW:
            raise UserError(
                f"{self._name}: {_MOST_IN_A_ROW} images in a row (last: {image_id}) took longer than --data.timeout, "
                "so their file system seems to hang, and every further image would take as long. What is "
                "finished is kept: once the files can be read, run the same command again (test: with --resume true)."
            )


def one_thread(worker: int) -> None:
    """Initialize a worker process."""
    # An orphaned worker would keep its parent's sockets open, and the other ranks would wait for them.
    end_with_parent()
    # Their threads would compete with the forward pass.
    cv2.setNumThreads(0)
    # The feeder thread drops a batch that it cannot send, and the run would wait for it forever.
    Queue._on_queue_feeder_error = _send_error_instead  # type: ignore[attr-defined]


def _send_error_instead(queue: Any, error: Exception, item: object) -> None:
    if isinstance(item, tuple) and len(item) == 2 and not isinstance(item[1], ExceptionWrapper):
        wrap: Any = ExceptionWrapper
        queue.put((item[0], wrap(where="in a data worker that handed a batch over")))
        return
    print(f"A data worker cannot report its error: {error}", file=sys.stderr, flush=True)
    os._exit(1)
