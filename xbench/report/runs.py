"""Finished runs, found and read, each with a label that tells it from the others."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from xbench.report.names import CEILINGS, FLOORS, SERVED, model_title
from xbench.runs.by_finding import Images
from xbench.runs.files import CONFIG, PAIRS, RESULTS, RunFileError, is_of_a_run
from xbench.runs.finished import FinishedRun
from xbench.runs.images import ScoredPairs
from xbench.runs.results import Results
from xbench.runtime.digests import digest
from xbench.runtime.errors import UsageError, UserError
from xbench.scoring.rows import Rows


@dataclass(frozen=True)
class Run:
    """A finished run.

    Its label identifies its configuration in a report, also across datasets: the title of the model, and settings
    that differ from its own, such as `CARZero (name prompts)`.
    """

    folder: Path
    results: Results
    images: Images
    rows: Rows
    settings: Mapping[str, str]  # what else than model and dataset the numbers depend on, in words: split, prompts ...
    data_settings: frozenset[str]  # names of those settings that options of the dataset are
    label: str
    stored: FinishedRun
    told_by: Mapping[str, str] = field(default_factory=dict)  # the settings that vary among the model's runs
    place: int = 0  # in tables, charts and legends
    split: str = ""  # where the images are some of those that another run scored, the name of that run's
    pictured: bool = False  # whether it saved what pictures are drawn from, as far as is known

    @property
    def model(self) -> str:
        """Name of the model, as in results.json; `endpoint/NAME` for one behind a server."""
        served = (self.results.provenance.get("model") or {}).get("served_model")
        return f"{SERVED}{served}" if served else self.results.model

    @property
    def dataset(self) -> str:
        """Name of the dataset, as in results.json."""
        return self.results.dataset

    @property
    def is_reference(self) -> bool:
        """Whether the model is one of the references that show what a number is worth."""
        return self.model in CEILINGS | FLOORS

    @property
    def trained_on(self) -> tuple[str, ...]:
        """Datasets whose labels a supervised model was trained on; empty for others."""
        return tuple((self.results.provenance.get("model") or {}).get("trained_on") or ())

    def but(self, names: Container[str]) -> dict[str, str]:
        """Return the model and the settings without these."""
        return {"model": self.model} | {key: value for key, value in self.settings.items() if key not in names}

    def cases(self) -> ScoredPairs | None:
        """Return the saved pairs for pictures; None if not saved or left out."""
        return self.stored.scored_pairs if self.pictured else None


@dataclass(frozen=True)
class SetAside:
    """A run that the report leaves out or shows without pictures."""

    folder: Path
    reason: str


@dataclass(frozen=True)
class Collection:
    """Runs of a report, sorted by dataset and label, and those left out."""

    runs: tuple[Run, ...]
    set_aside: tuple[SetAside, ...]


def collect(paths: Sequence[Path], damaged: Mapping[Path, str] | None = None) -> Collection:
    """Find the finished runs in folders and below them.

    Of runs with the same model, dataset, settings, labels and regions, keep the newest, or the newest with
    interventions. Set aside the others, and unfinished or unreadable runs. Ignore predictions, and commands that ended
    before the first image. Runs in the folders `damaged` lose their maps and pictures, for the reasons there.

    Raises:
        UserError: A path is not a folder or holds no finished run.
    """
    folders: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path} is not a folder: give the folder of a run, or one above it.")
        # A run's configuration is written first and its results last.
        folders |= {file.parent for name in (RESULTS, CONFIG) for file in path.rglob(name) if is_of_a_run(file.parent)}
    newest: dict[tuple[Any, ...], Run] = {}
    unread: list[SetAside] = []
    aside: list[SetAside] = []
    for folder in sorted(folders, key=lambda folder: (folder.name, folder)):
        try:
            stored = FinishedRun.open(folder, PAIRS)
            stored.check_tables()
            results, rows = stored.results, stored.rows
            run = Run(folder, results, Images(rows), rows, *_settings(results), "", stored, split=results.split)
        except RunFileError as error:
            unread.append(SetAside(folder, error.reason))
            continue
        # What it was scored on is among the settings.
        key = (run.model, run.dataset, *sorted(run.settings.items()))
        if older := newest.get(key):
            why = "older than"
            if older.results.interventions and not run.results.interventions:
                older, run, why = run, older, "without the interventions of"
            same = "which has the same configuration, images and regions"
            aside.append(SetAside(older.folder, f"{why} {run.folder}, {same}"))
        newest[key] = run
    unread.sort(key=lambda entry: entry.folder)
    if not newest:
        more = f" {len(unread)} unfinished or unreadable: {unread[0].folder} ({unread[0].reason})." if unread else ""
        raise UserError(
            f"No finished run (no results.json) in {', '.join(map(str, paths))}.{more} Give the folder that "
            "xbench test wrote to, by default runs."
        )
    for key, run in newest.items():
        if wrong := (damaged or {}).get(run.folder):
            what = "only its pictures and maps are left out; its numbers are in the report."
            aside.append(SetAside(run.folder, f"{what} {wrong}"))
        elif run.stored.saves_images:
            newest[key] = replace(run, pictured=True)
    wholes = sorted(newest.values(), key=lambda run: -run.results.counts.images)
    splits = {run.folder: next((one.split for one in wholes if _is_part(run, one)), run.split) for run in wholes}
    runs = _labeled([replace(run, split=splits[run.folder]) for run in newest.values()])
    return Collection(tuple(sorted(runs, key=lambda run: (run.dataset, run.label))), (*unread, *aside))


def _is_part(run: Run, whole: Run) -> bool:
    """Tell whether a run scored some of the images that another scored, with the same labels."""
    row_of = {image_id: row for row, image_id in enumerate(whole.images.image_ids)}
    rows = [row_of[image_id] for image_id in run.images.image_ids if image_id in row_of]
    return (
        (run.dataset, run.results.findings) == (whole.dataset, whole.results.findings)
        and len(rows) == len(run.images.image_ids) < len(row_of)
        and np.array_equal(whole.images.labels[rows], run.images.labels)
    )


def part_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the run of the same model and settings that scored these images and more; None without one."""
    fewer = {"limit", "images", "image_list", "annotation", "split", *_GROUND}
    return next((one for one in runs if one.but(fewer) == run.but(fewer) and _is_part(run, one)), None)


def ground(run: Run) -> Hashable:
    """Return a key of the labels and regions that a run was scored on."""
    return frozenset(run.results.scored_on.items())


def widest(runs: Sequence[Run]) -> Run:
    """Return the run with the most images, then with pictures, then with the most common labels and regions.

    Runs of words come last: their pairs are not scored on the grid.
    """
    common = Counter(map(ground, runs))
    return max(
        runs, key=lambda run: (not run.results.in_words, run.results.counts.images, run.pictured, common[ground(run)])
    )


def own_settings(runs: Sequence[Run]) -> dict[str, Run]:
    """Return one run per model: on the most common labels and regions, then with the most images, then with official
    prompts, then with the smallest image size.
    """
    common = Counter(map(ground, runs))

    def preference(run: Run) -> tuple[int, int, bool, int, str, str]:
        size, official = run.settings.get("image_size", "0"), run.settings.get("prompts") in ("default", "official")
        told = str(sorted(run.told_by.items()))
        images = run.results.counts.images
        return -common[ground(run)], -images, not official, int(size) if size.isdigit() else 0, run.label, told

    chosen: dict[str, Run] = {}
    for run in sorted(runs, key=preference):
        chosen.setdefault(run.model, run)
    return chosen


def setting_in_words(key: str, value: str) -> str:
    """Return a setting as in labels: `320 px`, `name prompts`."""
    if key == "image_size" and value.isdecimal():
        return f"{value} px"
    if key == "elsewhere_sha256" and value == "none":
        return "without another split"
    shown = value[:8] if key.endswith("_sha256") else value
    return f"{value} prompts" if key == "prompts" else f"{key.replace('_', ' ')} {shown}"


def _labeled(runs: Sequence[Run]) -> list[Run]:
    """Label runs with the settings that differ from their model's own and vary on some dataset and split."""
    groups: defaultdict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.model, run.dataset, run.split].append(run)
    varying: dict[tuple[str, str, str], set[str]] = {}
    anywhere: defaultdict[str, set[str]] = defaultdict(set)
    for group, of_group in groups.items():
        keys = {key for run in of_group for key in run.settings}
        varying[group] = {key for key in keys if len({run.settings.get(key, "none") for run in of_group}) > 1}
        anywhere[group[0]] |= varying[group]
    # Digests are a last resort: texts differ wherever their source does. Not the other way round: two sources may
    # have one name, and one source may have had other texts before.
    alike = _alike(runs, ("prompt_texts",))
    # And so does what runs were scored on where options of the dataset do.
    unexplained = {key: _alike(runs, _GROUND[place:]) for place, key in enumerate(_GROUND)}
    labeled = []
    for run in runs:
        own, told_by = varying[run.model, run.dataset, run.split], {}
        for key in sorted(anywhere[run.model]):
            # What was asked of one dataset is no matter of another.
            of_data = key in run.data_settings or key in unexplained
            if (
                (key == "prompt_texts" and "prompts" in anywhere[run.model] and run.model not in alike)
                or (key == "split" and run.split == run.results.split)
                or (of_data and key not in own)
                or (key in unexplained and run.model not in unexplained[key])
            ):
                continue
            told_by[key] = run.settings.get(key, "none")
        labeled.append(replace(run, told_by=told_by))
    own_runs = own_settings([run for run in labeled if run.is_reference])
    own_runs |= own_settings([run for run in labeled if not run.is_reference])
    titles = Counter(map(model_title, own_runs))
    for place, run in enumerate(labeled):
        title = model_title(run.model) if titles[model_title(run.model)] == 1 else run.model
        if run.trained_on and "supervised" not in title:
            title = f"{title} (supervised)"
        base = own_runs[run.model].told_by
        differing = [setting_in_words(key, value) for key, value in run.told_by.items() if base.get(key) != value]
        labeled[place] = replace(run, label=f"{title} ({', '.join(differing)})" if differing else title)
    return labeled


def _alike(runs: Sequence[Run], names: Sequence[str]) -> set[str]:
    """Return the models with several runs on one dataset that differ only in these settings."""
    others = Counter((run.model, run.dataset, *sorted(run.but(names).items())) for run in runs)
    return {str(model) for (model, *_), count in others.items() if count > 1}


# Options that have a place of their own, or move no number of a run that has finished.
_NO_SETTING = {"class", "checkpoint", "text_encoder", "prompt_source", "prompts", "book", "asked", "limit"}
_NO_SETTING |= {"batch_size", "map_scale", "trained_on", "interventions", "pairs", "options"}
_NO_DATA = _NO_SETTING - {"options"} | {"on_error", "split"}
_GROUND = ("scored_images", "scored_labels", "scored_regions")


def _settings(results: Results) -> tuple[dict[str, str], frozenset[str]]:
    """Return the settings that distinguish runs, long ones as digests, and the names of the dataset's options."""
    provenance = results.provenance
    model, data = provenance.get("model") or {}, provenance.get("data") or {}
    prompts = provenance.get("prompts")
    own = {"class": model["class"], **model["options"]} if "options" in model else {}
    settings: dict[str, Any] = {
        "split": results.split,
        "precision": provenance.get("precision"),
        "limit": data.get("limit"),
        "answers": results.answered or None,
        **{key: value for key, value in model.items() if key not in _NO_SETTING},
        **(provenance.get("evaluation") or {}),
        "scored_images": results.counts.images,
        "scored_labels": _digest([results.scored_on[finding].labels for finding in results.findings]),
        "scored_regions": _digest([results.scored_on[finding].regions for finding in results.findings]),
    }
    if prompts is not None:
        source = model.get("prompt_source")
        settings["prompts"] = ("default" if own else "official") if source is None else Path(str(source)).stem
        # A file of prompts may also reword what is asked in addition to the findings.
        settings["prompt_texts"] = _digest(prompts if source is None else model.get("asked", prompts))
    if provenance.get("checkpoint_sha256"):
        settings["checkpoint"] = str(provenance["checkpoint_sha256"])[:8]
    for name, source in (("annotation", provenance.get("annotation_sha256")), ("book", model.get("book"))):
        if source:
            settings[name] = _digest(source)
    # Several parts may have options of one name.
    settings |= {f"model_{key}" if key in settings else key: value for key, value in own.items()}
    of_data = {f"data_{key}" if key in settings else key: data[key] for key in data if key not in _NO_DATA}
    words = {key: _in_words(value) for key, value in (settings | of_data).items() if value is not None}
    return words, frozenset(of_data)


def _in_words(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else _digest(value)


def _digest(value: Any) -> str:
    return digest(value)[:8]
