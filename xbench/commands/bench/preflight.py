"""What a benchmark looks at before anything runs: options, data, weights, and which runs are finished already."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from rich.console import Console

from xbench.commands.bench.config import Job
from xbench.commands.check import check_dataset, check_model, check_versions
from xbench.commands.configs import resolve_class
from xbench.commands.options import build, run_parser
from xbench.commands.run import silence_libraries
from xbench.data.datamodule import ChestXrayDataModule
from xbench.predictions.source import digest as predictions_digest
from xbench.runs.files import CONFIG, RESULTS, RunFileError
from xbench.runs.finished import FinishedRun
from xbench.runs.provenance import annotation_digests, options_that_count, versions
from xbench.runs.results import Results
from xbench.runtime.digests import file_sha256, source_sha256
from xbench.runtime.errors import UserError
from xbench.runtime.yaml_files import load_yaml
from xbench.scoring.numbers import labels_digest

_LOOKED_AT = 8
"""Images of each dataset that `--check` decodes."""

# Options that decide neither which images there are nor where; neither do those that move no number.
_NOT_RECORDS = ChestXrayDataModule.neutral_options | {"batch_size", "gamma", "grid"}

# Options that name no file, or one that is compared by its digest.
_COMPARED = frozenset(
    {"annotations", "book", "cache", "checkpoint", "concepts", "image_list", "labels", "masks", "predictions", "scores"}
)
_COMPARED |= {"root", "split"}


class DataState:
    """What a dataset is today, of which `data` is the data module; sets it up, which may raise a `UserError`."""

    def __init__(self, data: ChestXrayDataModule) -> None:
        data.setup("test")
        self.data = data
        self.annotations = annotation_digests(data.annotation_files())

    @cached_property
    def labels(self) -> list[tuple[str, dict[str, int]]]:
        """Name and labels of every image; once and image by image, for some datasets draw an image to tell."""
        return [(record.image_id, {**record.labels}) for record in self.data.records]

    def relabelled(self, results: Results) -> list[str]:
        """Return the findings whose labels are not those that a run was scored on, or whose images are others.

        Regions cannot be compared before they are drawn; what they are drawn from is, by digest or time stamp.
        """
        left_out = {skipped.image_id for skipped in results.counts.skipped}
        scored = [(image_id, labels) for image_id, labels in self.labels if image_id not in left_out]
        return [
            finding
            for finding, digests in results.scored_on.items()
            if digests.labels != labels_digest((image_id, int(labels.get(finding, -1))) for image_id, labels in scored)
        ]


@dataclass(frozen=True)
class Finished:
    """A finished run; `changed` says what is no longer as it was then, and is empty if nothing is."""

    folder: Path
    results: Results
    changed: str

    @property
    def done(self) -> bool:
        """Whether it need not be run again: nothing has changed, and it did not end in an error.

        A run whose every scored map is constant ends in one after its files are written.
        """
        scored = sum(count.with_region for count in self.results.counts.per_finding.values())
        return not self.changed and (not scored or self.results.counts.constant_maps.count < scored)


class FinishedRuns:
    """The runs in the folder `out`; looks at it anew whenever it is asked."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._configs: dict[Path, Any] = {}

    def newest(self, config: Mapping[str, Any], data: DataState) -> Finished | None:
        """Return the newest finished run of a configuration, compared with its dataset today; None if there is none."""
        # Only the newest: it is the one that reports take.
        for folder in [folder for folder in self._alike(config) if (folder / RESULTS).is_file()][:1]:
            with suppress(RunFileError):
                results = FinishedRun.open(folder).results
                return Finished(folder, results, ", ".join(_changes(config, results, data, folder)))
        return None

    def unfinished(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a run of a configuration was begun and can be continued."""
        return any((folder / "journal").is_dir() and not (folder / RESULTS).is_file() for folder in self._alike(config))

    def _alike(self, config: Mapping[str, Any]) -> Iterator[Path]:
        """The folders of the runs with the options of a configuration, the newest first."""
        wanted = _counted(config, config)
        # Names of folders begin with the time.
        for path in sorted(self._out.glob("*/*/config.yaml"), key=lambda path: path.parent.name, reverse=True):
            if path not in self._configs:
                # None if there is none, as in a run that was started from Python.
                self._configs[path] = None
                with suppress(OSError, ValueError, yaml.YAMLError):
                    self._configs[path] = load_yaml(path)
            if wanted and _counted(self._configs[path], config) == wanted:
                yield path.parent

    def all(self) -> list[Results]:
        """Return the results of all finished runs that can be read."""
        found = []
        for path in self._out.glob(f"*/*/{RESULTS}"):
            with suppress(RunFileError):
                found.append(FinishedRun.open(path.parent).results)
        return found


def _counted(config: Any, wanted: Mapping[str, Any]) -> str:
    """Write the options of a configuration that count, as a text; empty if it chooses other classes than `wanted`."""
    classes = [wanted[part]["class_path"] for part in ("model", "data")]
    try:
        if [config[part]["class_path"] for part in ("model", "data")] != classes:
            return ""
        model, data = map(resolve_class, classes)
        return json.dumps(options_that_count(config, model, data), sort_keys=True, default=str)
    # Another program's file may hold anything.
    except (KeyError, TypeError, AttributeError, ValueError):
        return ""


def _changes(config: Mapping[str, Any], results: Results, data: DataState, folder: Path) -> Iterator[str]:
    """Say what is no longer as it was when a run was made."""
    provenance = results.provenance
    then, now = provenance.get("versions") or {}, versions()
    yield from (f"{name} {then.get(name)} is now {now[name]}" for name in now if then.get(name) != now[name])
    classes = (resolve_class(config[part]["class_path"]) for part in ("model", "data"))
    if provenance.get("source_sha256") != source_sha256(*classes):
        yield "the code of xbench or of the user's classes"
    model = provenance.get("model") or {}
    book = (model.get("book") or {}).get("files") or {}
    for file, digest in {model.get("checkpoint"): provenance.get("checkpoint_sha256"), **book}.items():
        if file and digest:
            with suppress(OSError):
                if file_sha256(Path(file).expanduser()) == digest:
                    continue
            yield str(file)
    if model.get("predictions_sha256"):
        given = config["model"].get("init_args") or {}
        named = [given.get(name) for name in ("predictions", "scores")]
        paths = [Path(name).expanduser() for name in named if name not in (None, "none")]
        if not all(path.exists() for path in paths) or predictions_digest(paths) != model["predictions_sha256"]:
            yield str(given.get("predictions"))
    images = results.counts.images + len(results.counts.skipped)
    if len(data.data.records) != images:
        yield f"{images} images are now {len(data.data.records)}"
    recorded, today = provenance.get("annotation_sha256") or {}, data.annotations
    yield from (name for name in {**recorded, **today} if recorded.get(name) != today.get(name))
    if relabelled := data.relabelled(results):
        yield f"the images or labels of {', '.join(relabelled)}"
    began = (folder / CONFIG).stat().st_mtime
    arguments = {**(config["model"].get("init_args") or {}), **(config["data"].get("init_args") or {})}
    for option, value in arguments.items():
        if option not in _COMPARED and isinstance(value, str) and _newest(Path(value).expanduser()) > began:
            yield value


def _newest(path: Path) -> float:
    """Return when a file, or anything in a folder, was last changed; minus infinity if there is no such thing."""
    try:
        paths = [path, *(path.iterdir() if path.is_dir() else ())]
        # Renaming and copying with old time stamps change only the second of the two.
        return max(max(stat.st_mtime, stat.st_ctime) for stat in map(os.stat, paths))
    except (OSError, ValueError):
        return float("-inf")


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
            try:
                data = build(config["data"])
                states[key] = data if isinstance(data, UserError) else DataState(data)
            except UserError as error:
                states[key] = error
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
    seen: set[object] = set()
    for plan in planned:
        data = plan.state.data
        model_key = (_key(plan.config["model"], ()), *data.findings)
        if model_key not in seen:
            console.print(f"Loading the model of {plan.job.name}", style="dim", highlight=False)
            model = build(plan.config["model"])
            problems = [str(model)] if isinstance(model, UserError) else check_model(model, data.findings)
            yield from (f"{plan.job.name}: {problem}" for problem in problems)
        if data not in seen:
            console.print(f"Reading {_LOOKED_AT} images of {plan.job.dataset}", style="dim", highlight=False)
            data.limit = min(data.limit or _LOOKED_AT, _LOOKED_AT)
            yield from check_dataset(data, None, progress=False).problems
        seen |= {model_key, data}


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
