"""What a benchmark looks at before anything runs: options, data and weights of all runs at once."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from xbench.commands.bench.config import Job
from xbench.commands.bench.finished import DataState, Finished, FinishedRuns
from xbench.commands.check import check_dataset, check_model, check_versions
from xbench.commands.options import build, run_parser
from xbench.commands.run import silence_libraries
from xbench.data.datamodule import ChestXrayDataModule
from xbench.errors import UserError

_LOOKED_AT = 8
"""Images of each dataset that `--check` decodes."""

# Options that decide neither which images there are nor where; neither do those that move no number.
_NOT_RECORDS = ChestXrayDataModule.neutral_options | {"batch_size", "gamma", "grid"}


@dataclass
class Planned:
    """A run that can be started or is done, its dataset, and the newest finished run of the same configuration."""

    job: Job
    config: dict[str, Any]
    state: DataState
    finished: Finished | None

    @property
    def done(self) -> bool:
        """Whether it need not be run again."""
        return self.finished is not None and self.finished.done


@dataclass
class Problem:
    """What keeps `jobs` from being started, in a paragraph: options are wrong, or data or weights are missing."""

    text: str
    kind: Literal["options", "missing"]
    jobs: list[Job] = field(default_factory=list)


def look(jobs: Sequence[Job], out: Path) -> tuple[list[Planned], list[Problem], FinishedRuns]:
    """Read all options, list all images, compare with the finished runs, and see whether the weights are there.

    Returns:
        The runs that can be started or are done, what keeps the others from it, and the runs in the folder `out`.
    """
    silence_libraries()
    runs, parser = FinishedRuns(out), run_parser("test")
    problems: dict[str, Problem] = {}
    states: dict[str, DataState | UserError] = {}
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
        key = _key(config["data"], _NOT_RECORDS)
        if key not in states:
            states[key] = _state(config)
        state = states[key]
        finished = None
        if isinstance(state, UserError):
            note(str(state), "missing", job)
        else:
            finished = runs.newest(config, state)
        if (finished is None or not finished.done) and (problem := _weights_problem(config["model"], weights)):
            note(problem, "missing", job)
        elif not isinstance(state, UserError):
            planned.append(Planned(job, config, state, finished))
    return planned, [*problems.values()], runs


def check_all(planned: Sequence[Planned], console: Console) -> Iterator[str]:
    """Load every model, read its prompts, and decode the first images of every dataset; yield what is wrong."""
    yield from check_versions()
    seen: set[str] = set()
    for plan in planned:
        findings = plan.state.data.findings
        model_key = _key(plan.config["model"], ()) + ", ".join(findings)
        data_key = _key(plan.config["data"], _NOT_RECORDS)
        if model_key not in seen:
            console.print(f"Loading the model of {plan.job.name}", style="dim", highlight=False)
            model = build(plan.config["model"])
            problems = [str(model)] if isinstance(model, UserError) else check_model(model, findings)
            yield from (f"{plan.job.name}: {problem}" for problem in problems)
        if data_key not in seen:
            console.print(f"Reading {_LOOKED_AT} images of {plan.job.dataset}", style="dim", highlight=False)
            data = build(plan.config["data"])
            if isinstance(data, UserError):
                yield str(data)
            else:
                data.limit = min(data.limit or _LOOKED_AT, _LOOKED_AT)
                yield from check_dataset(data, None, progress=False).problems
        seen |= {model_key, data_key}


def _state(config: dict[str, Any]) -> DataState | UserError:
    data = build(config["data"])
    try:
        return data if isinstance(data, UserError) else DataState(data)
    except UserError as error:
        return error


def _weights_problem(chosen: dict[str, Any], known: dict[str, str]) -> str:
    """Say what is wrong with the weights of a model, as far as can be seen without reading much of them."""
    arguments = chosen.get("init_args") or {}
    if "checkpoint" not in arguments:
        return ""
    if isinstance(given := arguments["checkpoint"], str):
        place = Path(given.removeprefix("local-dir:")).expanduser()
        name = chosen["class_path"].rpartition(".")[2]
        return "" if place.exists() else f"The weights of {name} are not there: {place} does not exist."
    # Without a file there is an error at once, or weights are fetched, which then need not be done in the midst.
    key = json.dumps([chosen["class_path"], arguments.get("architecture"), arguments.get("pretrained")])
    if key not in known:
        model = build(chosen)
        known[key] = str(model) if isinstance(model, UserError) else ""
    return known[key]


def _key(chosen: dict[str, Any], without: Collection[str]) -> str:
    arguments = {name: value for name, value in (chosen.get("init_args") or {}).items() if name not in without}
    return json.dumps([chosen["class_path"], arguments], sort_keys=True, default=str)
