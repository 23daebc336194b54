"""Cache of servers' answers on disk, so that no request is made twice, even after a run was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from xbench.runtime.digests import digest
from xbench.runtime.files import write_whole, writing


class AnswerCache:
    """A private file per request, named by its digest and written whole: answers can reveal findings of patients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, request: Mapping[str, Any]) -> Any:
        try:
            kept = json.loads(self._file(request).read_bytes())
            return kept["response"] if kept["request"] == request else None
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None

    def put(self, request: Mapping[str, Any], response: Any, **about: Any) -> None:
        """Store the response to a request with further values `about` it; raise a UserError if that fails."""
        path = self._file(request)
        # Deep nesting can be readable and not writable; such a response is requested again if needed.
        with suppress(RecursionError), writing(f"The answer cannot be stored in {path}", "Give another --model.cache."):
            self.folder.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, json.dumps({"request": request, "response": response, **about}), shared=True)

    def _file(self, request: Mapping[str, Any]) -> Path:
        name = digest(request)
        return self.folder / name[:2] / f"{name}.json"
