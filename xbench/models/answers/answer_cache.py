"""Answers of servers on disk, so that no request is made twice: by later runs, or after one was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from xbench.runtime.digests import digest
from xbench.runtime.files import write_whole, writing


class AnswerCache:
    """A file for each request, under its digest; it is there complete or not at all, and any process may add some.

    Only its owner may read them: they hold no image, but may tell what an image of a patient shows.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, request: Mapping[str, Any]) -> Any:
        """Return the response to a request; None without a readable one."""
        try:
            kept = json.loads(self._file(request).read_bytes())
            return kept["response"] if kept["request"] == request else None
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None

    def put(self, request: Mapping[str, Any], response: Any, **about: Any) -> None:
        """Keep the response to a request, plain values both, and more about it, or raise a UserError."""
        path = self._file(request)
        # What is nested so deeply that it can be read and not written is asked again if need be.
        with suppress(RecursionError), writing(f"The answer cannot be kept in {path}", "Give another --model.cache."):
            self.folder.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, json.dumps({"request": request, "response": response, **about}), shared=True)

    def _file(self, request: Mapping[str, Any]) -> Path:
        name = digest(request)
        return self.folder / name[:2] / f"{name}.json"
