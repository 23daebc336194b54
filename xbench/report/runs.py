"""Finished runs, found and read, each with a label that tells it from the others."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xbench.cases import MAPS, PICTURES, REGIONS, Cases, kept_digests, read_kept, readable
from xbench.errors import UserError
from xbench.report.names import model_title
from xbench.results import Results, read_results
from xbench.rows import CURVES, PER_IMAGE, ImageRows, PairCounts, read_pair_counts, read_per_image

__all__ = ["Collection", "Run", "SetAside", "collect"]

INSTRUMENTS = ("oracle", "centre", "random")
"""Models that show what a number is worth; no model of interest."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: Where its files lie.
        results: Its `results.json`.
        images: Its scores per image and finding.
        pairs: Its pixel counts per scored pair.
        settings: What the numbers depend on besides model and dataset, as words: split, prompts, image_size ...
        pictured: Whether the run kept what pictures are drawn from, and all of it can be read.
        label: Title of the model, with the settings that tell it from other runs of the same model and dataset, such
            as `CARZero (prompts name)`. Runs of one configuration on several datasets share it.
    """

    folder: Path
    results: Results
    images: ImageRows
    pairs: PairCounts
    settings: Mapping[str, str]
    label: str
    pictured: bool = False

    @property
    def model(self) -> str:
        """Name of the model, as in results.json."""
        return self.results.model

    @property
    def dataset(self) -> str:
        """Name of the dataset, as in results.json."""
        return self.results.dataset

    @property
    def instrument(self) -> bool:
        """Whether the model is one of the references that show what a number is worth."""
        return self.model in INSTRUMENTS

    def cases(self) -> Cases | None:
        """Return what pictures are drawn from; None if the run did not keep it, or a file of it is damaged."""
        return Cases(self.folder) if self.pictured else None


@dataclass(frozen=True)
class SetAside:
    """A run that the report leaves out, or shows without its pictures, and why."""

    folder: Path
    reason: str


@dataclass(frozen=True)
class Collection:
    """Runs of a report, sorted by dataset and label, and those left out."""

    runs: tuple[Run, ...]
    set_aside: tuple[SetAside, ...]


def collect(paths: Sequence[Path]) -> Collection:
    """Find the finished runs in folders and below them.

    Of several runs of one model, dataset and settings the newest counts; the others are set aside, and so is whatever
    is unfinished or cannot be read.

    Raises:
        UserError: A path is no folder, or holds no finished run.
    """
    found: list[Run] = []
    aside: list[SetAside] = []
    for folder in _run_folders(paths):
        try:
            found.append(_read(folder))
        except FileNotFoundError as error:
            aside.append(SetAside(folder, f"unfinished: it has no {Path(error.filename or '').name}"))
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            aside.append(SetAside(folder, f"unreadable: {' '.join(str(error).split())}"))
    if not found:
        more = f" {len(aside)} unfinished or unreadable: {aside[0].folder} ({aside[0].reason})." if aside else ""
        raise UserError(
            f"There is no finished run, that is no results.json, in {', '.join(map(str, paths))}.{more} Give the "
            "folder that python -m xbench.cli test wrote to, runs by default."
        )
    newest: dict[tuple[Any, ...], Run] = {}
    for run in sorted(found, key=lambda run: run.folder.name):
        key = (run.model, run.dataset, *sorted(run.settings.items()))
        if older := newest.get(key):
            aside.append(SetAside(older.folder, f"an older run of the same configuration as {run.folder}"))
        newest[key] = run
    chosen = []
    for run in newest.values():
        kept = all((run.folder / name).is_file() for name in (MAPS, REGIONS, PICTURES))
        problem = _problem_of_pictures(run) if kept else None
        if problem is not None:
            aside.append(SetAside(run.folder, f"its pictures and maps only, its numbers are in the report. {problem}"))
        chosen.append(replace(run, pictured=kept and problem is None))
    runs = sorted(_labelled(chosen), key=lambda run: (run.dataset, run.label))
    return Collection(tuple(runs), tuple(aside))


def _run_folders(paths: Iterable[Path]) -> list[Path]:
    folders: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder: give the folder of a run, or one above it.", exit_status=2)
        # A run's configuration is written first and its results last.
        for name in ("results.json", "config.yaml"):
            folders |= {file.parent for file in path.rglob(name) if (file.parent / "config.yaml").is_file()}
        folders |= {file.parent for file in path.rglob("results.json")}
    return sorted(folders)


def _read(folder: Path) -> Run:
    # pyarrow's own message does not carry the name.
    for name in (PER_IMAGE, CURVES):
        if (folder / "results.json").is_file() and not (folder / name).is_file():
            raise FileNotFoundError(2, "no such file", str(folder / name))
    results = read_results(folder / "results.json")
    images = read_per_image(folder / PER_IMAGE, results.findings)
    images.check_complete()
    pairs = read_pair_counts(folder / CURVES, results.findings, images.image_ids)
    if len(images.image_ids) != results.images:
        raise ValueError(f"results.json counts {results.images} images, {PER_IMAGE} has {len(images.image_ids)}")
    scored = list(zip(*images.scored.nonzero(), strict=True))
    if sorted(zip(pairs.index, pairs.column, strict=True)) != scored:
        raise ValueError(f"{PER_IMAGE} has {len(scored)} scored pairs, {CURVES} has {len(pairs.index)} or others")
    if pairs.mask.shape[1] != len(results.thresholds):
        raise ValueError(f"results.json names {len(results.thresholds)} thresholds, {CURVES} has {pairs.mask.shape[1]}")
    return Run(folder, results, images, pairs, _settings(results), model_title(results.model))


def _problem_of_pictures(run: Run) -> str | None:
    """Return what is wrong with the files that pictures are drawn from; None if they are sound."""
    try:
        with readable(run.folder):
            kept, rows, findings = Cases(run.folder), run.images, run.results.findings
            scored = [(rows.image_ids[row], findings[column]) for row, column in np.argwhere(rows.scored)]
            # Every page of all three files is read on the way.
            pictured = {image.image_id for image in read_kept(run.folder) if image.picture is not None}
            digests = kept_digests(run.folder, rows.image_ids, findings)
            if (
                [*kept] != scored
                or kept.findings != [*findings]
                or not pictured.issuperset(image_id for image_id, _ in scored)
                or (rows.digested and (digests != rows.region_digests).any())
            ):
                raise ValueError(f"{MAPS}, {REGIONS} or {PICTURES} is of other images or findings than {PER_IMAGE}")
    except UserError as error:
        return str(error)
    return None


def _labelled(runs: Sequence[Run]) -> list[Run]:
    """Add to the labels of a model's runs the settings that vary among its runs on some one dataset and split."""
    values: defaultdict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for run in runs:
        for key in {key for other in runs if other.model == run.model for key in other.settings}:
            values[run.model, run.dataset, run.results.split, key].add(run.settings.get(key, "none"))
    # Digests are a last resort: texts differ wherever their source does. Not the other way round: two sources may
    # have one name, and one source may have had other texts before.
    named = Counter((run.model, run.dataset, *_but(run.settings, "prompt_texts")) for run in runs)
    alike = {model for (model, *_), count in named.items() if count > 1}
    labelled = []
    for run in runs:
        varying = sorted({key for (model, _, _, key), seen in values.items() if model == run.model and len(seen) > 1})
        varying = [key for key in varying if key != "prompt_texts" or "prompts" not in varying or run.model in alike]
        said = ", ".join(f"{key.replace('_', ' ')} {run.settings.get(key, 'none')}" for key in varying)
        labelled.append(replace(run, label=f"{run.label} ({said})" if said else run.label))
    return labelled


def _but(settings: Mapping[str, str], name: str) -> list[tuple[str, str]]:
    return sorted((key, value) for key, value in settings.items() if key != name)


_NO_SETTING = {
    *("class", "checkpoint", "text_encoder", "prompt_source", "book", "asked", "limit", "batch_size", "prompts"),
}


def _settings(results: Results) -> dict[str, str]:
    """What distinguishes runs of one model on one dataset; digests instead of what is long."""
    provenance = results.provenance
    model, data = provenance.get("model") or {}, provenance.get("data") or {}
    prompts = provenance.get("prompts")
    settings: dict[str, Any] = {
        "split": results.split,
        "precision": provenance.get("precision"),
        "limit": data.get("limit"),
        **{key: value for source in (model, data) for key, value in source.items() if key not in _NO_SETTING},
        **(provenance.get("evaluation") or {}),
    }
    if prompts is not None:
        source = model.get("prompt_source")
        settings["prompts"] = "official" if source is None else Path(str(source)).stem
        # In other words, what is asked besides the findings may be worded otherwise too.
        settings["prompt_texts"] = _digest(prompts if source is None else model.get("asked", prompts))
    for name in ("checkpoint_sha256", "annotation_sha256"):
        if provenance.get(name):
            settings[name.removesuffix("_sha256")] = _digest(provenance[name])
    if model.get("book"):
        settings["book"] = _digest(model["book"])
    words = {key: _in_words(value) for key, value in settings.items() if value is not None}
    return words


def _in_words(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else _digest(value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
