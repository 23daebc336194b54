"""Wall-clock time of a run by stage."""

from __future__ import annotations

import time
from collections import defaultdict


class Stopwatch:
    """Wall-clock time by stage, each moment counted towards one.

    Attributes:
        seconds: Time so far by stage.
    """

    seconds: defaultdict[str, float]

    def __init__(self) -> None:
        self.seconds = defaultdict(float)
        self._last = time.perf_counter()

    def lap(self, stage: str, until: float | None = None) -> None:
        """Count the time since the last call towards a stage.

        Args:
            stage: Name of the stage.
            until: When it ended, as `time.perf_counter` gave it; now if None.
        """
        now = time.perf_counter() if until is None else until
        self.seconds[stage] += now - self._last
        self._last = now
