"""Wall-clock time of a run by stage."""

from __future__ import annotations

import time
from collections import defaultdict


class Stopwatch:
    """Wall-clock time by stage; every moment counts for one stage."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def lap(self, stage: str, until: float | None = None) -> None:
        """Count the time since the last call for a stage; `until` is a value of `time.perf_counter`, by default now."""
        now = time.perf_counter() if until is None else until
        self.seconds[stage] += now - self._last
        self._last = now
