"""Standard output that never fails a run, because results are files."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


class _Outlet(io.FileIO):
    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream
        self.refused: OSError | None = None  # the first error

    def write(self, data: Any, /) -> int:
        """Write, or drop what cannot be written."""
        if self.refused is None:
            try:
                return super().write(data)
            except OSError as error:
                self.refused = error
        return len(data)


def forgive_output() -> None:
    """Keep `print` from failing on unsupported characters, a closed pipe or a full disk."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        # Notebooks and tests replace the streams.
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO:
                buffer = io.BufferedWriter(_Outlet(stream))
                lines, through = stream.line_buffering, stream.write_through
                text = io.TextIOWrapper(
                    buffer, stream.encoding, "backslashreplace", line_buffering=lines, write_through=through
                )
                setattr(sys, name, text)


def refused_output() -> OSError | None:
    """Return the error that kept printed text from standard output, if any, except from readers such as `head`."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    refused = raw.refused if isinstance(raw, _Outlet) else None
    return None if refused is None or refused.errno == errno.EPIPE else refused
