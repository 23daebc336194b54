"""Runs one after another, each in a fresh process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from xbench.commands.bench.finished import FinishedRuns
from xbench.commands.bench.jobs import Job
from xbench.commands.bench.preflight import Planned
from xbench.commands.bench.process import run_logged
from xbench.commands.bench.screen import Estimate, Outcome, Screen
from xbench.runtime.locks import Busy, try_lock

__all__ = ["Worker"]


class Worker:
    """Does the runs of a benchmark.

    Args:
        out: The folder of runs.
        planned: The runs that can be started or are done, in order.
        runs: What is in the folder.
        alone: Whether no other benchmark is at work there.

    Attributes:
        begun: Names of the runs that were begun.
    """

    def __init__(self, out: Path, planned: Sequence[Planned], runs: FinishedRuns, alone: bool) -> None:
        self._out = out
        self._runs = runs
        self._alone = alone
        self._estimate = Estimate(runs.all())
        self._waiting = {plan.job.name: plan for plan in planned if not plan.done}
        self.begun: set[str] = set()

    def left(self) -> float | None:
        """Return in seconds how long everything that waits will take; None if that cannot be told."""
        each = [self._estimate.seconds(plan.job, plan.state.images) for plan in self._waiting.values()]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) if len(known) == len(each) else None

    def do(self, plan: Planned, screen: Screen) -> Outcome:
        """Do a run unless it is done or another process is at it."""
        if plan.done and plan.finished is not None:
            return Outcome(plan.job, "skipped", str(plan.finished.folder), None, plan.finished.results)
        outcome = self._do(plan, screen)
        self._waiting.pop(plan.job.name)
        if outcome.status == "finished" and outcome.results is not None and outcome.seconds is not None:
            self._estimate.add(plan.job, outcome.results, outcome.seconds)
        return outcome

    def _do(self, plan: Planned, screen: Screen) -> Outcome:
        lock = self._lock(plan.job, screen)
        if isinstance(lock, str):
            return Outcome(plan.job, "busy", f"another benchmark is at it: {lock}")
        try:
            # Meanwhile another process may have done it.
            self._runs.refresh()
            found = self._runs.newest(plan.resolved, plan.state)
            if found is not None and found.done:
                return Outcome(plan.job, "skipped", str(found.folder), None, found.results)
            return self._run(plan, lock, screen)
        finally:
            os.close(lock)

    def _lock(self, job: Job, screen: Screen) -> int | str:
        """Take the run's lock, or say who has it. A run whose benchmark was killed may go on; it is waited for."""
        said = False
        while True:
            try:
                return try_lock(self._out / "bench" / "locks" / job.name)
            except Busy as error:
                if not self._alone:
                    return str(error)
                if not said:
                    screen.say(f"{job.name} is still going on since an earlier benchmark ({error}); waiting for it.")
                    said = True
                time.sleep(1)

    def _run(self, plan: Planned, lock: int, screen: Screen) -> Outcome:
        """Run a command in a fresh process, going on with what was begun."""
        job, log = plan.job, self._out / "bench" / "logs" / f"{plan.job.name}.log"
        command = [sys.executable, "-m", "xbench.cli", "test", *job.options]
        changed = "" if plan.finished is None else plan.finished.changed
        self.begun.add(job.name)
        screen.start(job, log)
        began = time.monotonic()

        def tick() -> None:
            left, own = self.left(), self._estimate.seconds(job, plan.state.images)
            spent = time.monotonic() - began
            screen.tick(None if left is None or own is None else left - min(own, spent))

        resume = ["--resume", "true"] if self._runs.unfinished(plan.resolved) else []
        status, words = run_logged([*command, *resume], log, lock, tick)
        if status and resume and words.startswith("--resume"):
            # What was begun is of other weights, data or code than today's.
            status, words = run_logged(command, log, lock, tick)
        seconds = time.monotonic() - began
        self._runs.refresh()
        found = self._runs.newest(plan.resolved, plan.state)
        results = None if found is None or found.changed else found.results
        if status:
            return Outcome(job, "failed", f"{words} (log: {log})", seconds, results)
        if found is None:
            return Outcome(job, "failed", f"it left no results (log: {log})", seconds)
        if found.changed:
            return Outcome(job, "changed", f"while the benchmark was going on: {found.changed}", seconds, found.results)
        return Outcome(job, "finished", changed and f"anew, for this has changed: {changed}", seconds, found.results)
