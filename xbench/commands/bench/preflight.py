"""What a benchmark looks at before anything runs: options, data, weights, and which runs are finished already."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from xbench.commands.bench.config import Job
from xbench.commands.check import check_dataset, check_versions
from xbench.commands.options import build, resolve_class, run_parser
from xbench.commands.run import silence_libraries
from xbench.data.datamodule import ChestXrayDataModule
from xbench.runs.files import RESULTS, RunFileError
from xbench.runs.fingerprint import changes, fingerprint, of_results
from xbench.runs.finished import FinishedRun
from xbench.runs.journal import read_about
from xbench.runs.results import Results
from xbench.runtime.errors import UserError

_LOOKED_AT = 8
"""Images of each dataset that `--check` decodes."""


@dataclass(frozen=True)
class Finished:
    """A finished run; `changed` says what is no longer as it was then, and is empty if nothing is."""

    folder: Path
    results: Results
    changed: str


@dataclass
class Planned:
    """A run that can be started or is done, its fingerprint today, and the newest finished run of its settings."""

    job: Job
    config: dict[str, Any]
    data: ChestXrayDataModule
    depends_on: dict[str, Any]
    finished: Finished | None = None

    @property
    def done(self) -> bool:
        """Whether it need not be run again: nothing has changed, and it did not end in an error.

        A run whose every scored map is constant ends in one after its files are written.
        """
        if self.finished is None or self.finished.changed:
            return False
        counts = self.finished.results.counts
        scored = sum(count.with_region for count in counts.per_finding.values())
        return not scored or counts.constant_maps.count < scored

    def look(self, out: Path) -> Finished | None:
        """Look again for the newest finished run of its settings, which is the one that reports take."""
        now = of_results(self.depends_on)
        # Names of folders begin with the time.
        for path in sorted(out.glob(f"*/*/{RESULTS}"), key=lambda path: path.parent.name, reverse=True):
            with suppress(RunFileError):
                results = FinishedRun.open(path.parent).results
                before = results.provenance.get("fingerprint")
                if isinstance(before, dict) and before.get("settings") == now["settings"]:
                    self.finished = Finished(path.parent, results, ", ".join(changes(before, now)))
                    return self.finished
        return None

    def begun(self, out: Path) -> bool:
        """Tell whether a run of its fingerprint was begun and can be continued."""
        journals = [path for path in out.glob("*/*/journal") if not (path.parent / RESULTS).is_file()]
        return any(read_about(path) == self.depends_on for path in journals)


@dataclass
class Problem:
    """What keeps `jobs` from being started, in a paragraph: options are wrong, or data or weights are missing."""

    text: str
    kind: Literal["options", "missing"]
    jobs: list[Job] = field(default_factory=list)


def look(jobs: Sequence[Job], out: Path) -> tuple[list[Planned], list[Problem]]:
    """Read all options, list all images, compare with the finished runs, and see whether the weights are there.

    Return the runs that can be started or are done, and what keeps the others from it.
    """
    silence_libraries()
    parser = run_parser("test")
    problems: dict[str, Problem] = {}
    # What was built, or why it could not be, by its options.
    datasets: dict[str, ChestXrayDataModule | UserError] = {}
    weights: dict[str, str] = {}
    planned = []

    def note(text: str, kind: Literal["options", "missing"], job: Job) -> None:
        problems.setdefault(text, Problem(text, kind)).jobs.append(job)

    for job in jobs:
        for text in job.unset:
            note(text, "missing", job)
        if job.unset:
            continue
        try:
            config = parser.resolve(job.options)
        except UserError as error:
            note(str(error), "options", job)
            continue
        key = json.dumps(config["data"], sort_keys=True, default=str)
        data = datasets[key] if key in datasets else datasets.setdefault(key, _set_up(config["data"]))
        plan = None
        if isinstance(data, UserError):
            note(str(data), "missing", job)
        else:
            plan = Planned(job, config, data, fingerprint(config, resolve_class(config["model"]["class_path"]), data))
            plan.look(out)
        if not (plan and plan.done) and (problem := _weights_problem(config["model"], weights)):
            note(problem, "missing", job)
        elif plan is not None:
            planned.append(plan)
    return planned, [*problems.values()]


def check_all(planned: Iterable[Planned], console: Console) -> Iterator[str]:
    """Load every model, read its prompts, and decode the first images of every dataset; yield what is wrong."""
    yield from check_versions()
    seen: set[object] = set()
    for plan in planned:
        data = plan.data
        model_key = (json.dumps(plan.config["model"], default=str), *data.findings)
        if model_key not in seen:
            console.print(f"Loading the model of {plan.job.name}", style="dim", highlight=False)
            model = build(plan.config["model"])
            problems = [str(model)] if isinstance(model, UserError) else model.problems(data.findings)
            yield from (f"{plan.job.name}: {problem}" for problem in problems)
        if data not in seen:
            console.print(f"Reading {_LOOKED_AT} images of {plan.job.dataset}", style="dim", highlight=False)
            data.limit = min(data.limit or _LOOKED_AT, _LOOKED_AT)
            yield from check_dataset(data, None, progress=False).problems
        seen |= {model_key, data}


def _set_up(chosen: dict[str, Any]) -> ChestXrayDataModule | UserError:
    data: ChestXrayDataModule | UserError = build(chosen)
    try:
        if not isinstance(data, UserError):
            data.setup("test")
    except UserError as error:
        return error
    return data


def _weights_problem(chosen: dict[str, Any], known: dict[str, str]) -> str:
    """Say what is wrong with the weights of a model, as far as can be seen without reading much of them."""
    arguments = chosen.get("init_args") or {}
    if isinstance(given := arguments.get("checkpoint"), str):
        place = Path(given.removeprefix("local-dir:")).expanduser()
        name = chosen["class_path"].rpartition(".")[2]
        return "" if place.exists() else f"The weights of {name} are not there: {place} does not exist."
    # Without a file there is an error at once, or weights are fetched, which then need not be done in the midst.
    key = json.dumps([chosen["class_path"], arguments.get("architecture"), arguments.get("pretrained")])
    if "checkpoint" in arguments and key not in known:
        model = build(chosen)
        known[key] = str(model) if isinstance(model, UserError) else ""
    return known.get(key, "")
