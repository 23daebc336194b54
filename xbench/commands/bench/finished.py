"""Which runs are finished and would come out the same today."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from xbench.commands.configs import check_yaml
from xbench.data.datamodule import ChestXrayDataModule
from xbench.evaluation.provenance import options_that_count, versions
from xbench.runs.files import CONFIG, RESULTS, RunFileError
from xbench.runs.finished import FinishedRun
from xbench.runs.results import Results
from xbench.runs.scores import labels_digest
from xbench.runtime.digests import file_sha256, source_sha256

# Options that name no file, or one that is compared by its digest.
_COMPARED = frozenset({"annotations", "book", "cache", "checkpoint", "concepts", "image_list", "root", "split"})


class DataState:
    """What a dataset is today.

    Args:
        data: Its data module, which is set up.

    Attributes:
        annotations: Digests of its annotation files by name.

    Raises:
        UserError: It cannot be set up.
    """

    def __init__(self, data: ChestXrayDataModule) -> None:
        data.setup("test")
        self.data = data
        self.annotations = {path.name: file_sha256(path) for path in data.annotation_files()}

    @cached_property
    def labels(self) -> list[tuple[str, dict[str, int]]]:
        """Name and labels of every image; once and image by image, for some datasets draw an image to tell."""
        return [
            (record.image_id, {finding: int(record.labels.get(finding, -1)) for finding in self.data.findings})
            for record in self.data.records
        ]

    def relabelled(self, results: Results) -> list[str]:
        """Return the findings whose labels are not those that a run was scored on, or whose images are others.

        Regions cannot be compared before they are drawn; what they are drawn from is, by digest or time stamp.
        """
        left_out = {skipped.image_id for skipped in results.counts.skipped}
        scored = [(image_id, labels) for image_id, labels in self.labels if image_id not in left_out]
        return [
            finding
            for finding, digests in (results.scored_on or {}).items()
            if digests.labels != labels_digest((image_id, labels.get(finding, -1)) for image_id, labels in scored)
        ]


@dataclass(frozen=True)
class Finished:
    """A finished run.

    Attributes:
        folder: Where its files lie.
        results: Its results.
        changed: In words what is no longer as it was then; empty if nothing is.
    """

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
                self._configs[path] = _read_config(path)
            if _counted(self._configs[path], config) == wanted:
                yield path.parent

    def all(self) -> list[Results]:
        """Return the results of all finished runs that can be read."""
        found = []
        for path in self._out.glob(f"*/*/{RESULTS}"):
            with suppress(RunFileError):
                found.append(FinishedRun.open(path.parent).results)
        return found


def _read_config(path: Path) -> Any:
    """Read a configuration; None if there is none, as in a run that was started from Python."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = path.read_text(encoding="utf-8")
        check_yaml(text)
        return yaml.load(text, Loader=loader)
    except (OSError, ValueError, yaml.YAMLError):
        return None


def _counted(config: Any, wanted: Mapping[str, Any]) -> str:
    """Write the options of a configuration that count, as a text; empty if it chooses other classes than `wanted`."""
    classes = [wanted[part]["class_path"] for part in ("model", "data")]
    try:
        if [config[part]["class_path"] for part in ("model", "data")] != classes:
            return ""
        model, data = (_class(wanted[part]) for part in ("model", "data"))
        return json.dumps(options_that_count(config, model, data), sort_keys=True, default=str)
    # Another program's file may hold anything.
    except (KeyError, TypeError, AttributeError, ValueError):
        return ""


def _changes(config: Mapping[str, Any], results: Results, data: DataState, folder: Path) -> Iterator[str]:
    """Say what is no longer as it was when a run was made."""
    provenance = results.provenance
    then, now = provenance.get("versions") or {}, versions()
    yield from (f"{name} {then.get(name)} is now {now[name]}" for name in now if then.get(name) != now[name])
    if provenance.get("source_sha256") != source_sha256(_class(config["model"]), _class(config["data"])):
        yield "the code of xbench or of the user's classes"
    model = provenance.get("model") or {}
    book = (model.get("book") or {}).get("files") or {}
    for file, digest in {model.get("checkpoint"): provenance.get("checkpoint_sha256"), **book}.items():
        if file and digest:
            with suppress(OSError):
                if file_sha256(Path(file).expanduser()) == digest:
                    continue
            yield str(file)
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


def _class(chosen: Mapping[str, Any]) -> type:
    module, _, name = chosen["class_path"].rpartition(".")
    chosen_class: type = getattr(import_module(module), name)
    return chosen_class


def _newest(path: Path) -> float:
    """Return when a file, or anything in a folder, was last changed; minus infinity if there is no such thing."""
    try:
        paths = [path, *(path.iterdir() if path.is_dir() else ())]
        # Renaming and copying with old time stamps change only the second of the two.
        return max(max(stat.st_mtime, stat.st_ctime) for stat in map(os.stat, paths))
    except (OSError, ValueError):
        return float("-inf")
