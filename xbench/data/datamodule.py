"""Base class of the datasets."""

from __future__ import annotations

import inspect
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from glob import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import lightning.pytorch as pl
import numpy as np

from xbench.data.records import TIMEOUT, Grid, Radiograph, Record
from xbench.data.samples import Samples
from xbench.data.store import PreparedStore, describe
from xbench.data.workers.handover import Loader
from xbench.data.workers.isolation import StallGuard
from xbench.data.workers.sampler import DealtBatchSampler
from xbench.findings.attributes import known_attributes
from xbench.findings.conditions import Intervention, draw
from xbench.findings.names import findings_problem, is_folder_name, is_name
from xbench.findings.phrases import Wording
from xbench.findings.queries import PHRASES, Query
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.runs.fingerprint import plain
from xbench.runtime.digests import digest
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.files import cache_folder, expand
from xbench.runtime.processes import usable_cores
from xbench.types import Batch, Note


class ChestXrayDataModule(pl.LightningDataModule, ABC):
    """Base class of datasets: subclasses set `findings` and implement `read_records` and `load`.

    Args:
        split: Name of the split, one of `splits`.
        limit: Use only this many images, the first ones.
        batch_size: Images per batch. It changes results in their last bits.
        num_workers: Processes that load images; None for one per core, at most four.
        on_error: `stop` ends the run at the first unreadable image; `skip` leaves such images out, and counts and names
            them in the results.
        grid: Height and width of the evaluation grid in pixels, one number for both; or `native`, to score each image
            on its own pixels, which takes time and memory in proportion.
        gamma: Share of a grid pixel that an annotation must cover for the pixel to belong to the region.
        cache: Folder of prepared images, which `prepare` decodes and resizes once; true for `$XBENCH_CACHE`, or
            `xbench` in the user's folder for caches; false to decode every image in every run.
        timeout: Seconds after which an image that is still being decoded counts as unreadable, as on a network file
            system that hangs. Needs Linux and `num_workers` above 0, which also isolate decoders that crash.
        wordings: Other words in which phrases are scored again, to test whether maps follow the words: `name` of the
            finding, the package's `phrase` for it, `negation` of the phrase, and the phrase of `other` regions of the
            same image.
        interventions: Changes that test whether scores depend on the region: fills that hide it or an equal patch
            elsewhere (`mean`, `blur`, `inpaint`, `noise`, `black`), `keep` nothing but the region, `no_image`, other
            `prompts`; for maps `deletion`, `insertion`, `road` and `randomisation`. See docs/interventions.md.
        pairs: Largest number of pairs to change, in equal shares of the findings; None for all.
        curve_pairs: Largest number of pairs for `deletion`, `insertion`, `road` and `randomisation`, the first of the
            same draw.
    """

    name: str = ""  # short name in results and run folders; by default the class name in lower case
    findings: tuple[str, ...]  # in the order of the results
    # All labeled classes, including the findings, for models whose scores depend on the other prompts.
    classes: tuple[str, ...] = ()
    splits: tuple[str, ...] = ("test",)  # the first is the default
    # Options that do not change numbers. A class adds its own.
    neutral_options: ClassVar[frozenset[str]] = frozenset({"cache", "num_workers", "timeout"})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def __init__(
        self,
        split: str | None = None,
        limit: int | None = None,
        batch_size: int = 8,
        num_workers: int | None = None,
        on_error: Literal["stop", "skip"] = "stop",
        grid: int | tuple[int, int] | Literal["native"] = 224,
        gamma: float = 0.5,
        cache: bool | str = True,
        timeout: float = TIMEOUT,
        wordings: list[Wording] | None = None,
        interventions: list[Intervention] | None = None,
        pairs: int | None = None,
        curve_pairs: int = 50,
    ) -> None:
        super().__init__()
        self.split = self.splits[0] if split is None else split
        num_workers = min(4, usable_cores()) if num_workers is None else num_workers
        sides = (1,) if grid == "native" else (grid,) if isinstance(grid, int) else grid
        problems = {
            f"split {split}: {self.name} has {', '.join(self.splits)}": self.split not in self.splits,
            f"limit {limit} leaves no image: give at least 1": limit is not None and limit < 1,
            f"batch_size {batch_size} must be at least 1": batch_size < 1,
            f"num_workers {num_workers} must be at least 0": num_workers < 0,
            f"gamma {gamma} must lie in (0, 1]": not 0 < gamma <= 1,
            f"grid {grid}: each side must be at least 1 pixel": min(sides) < 1,
            f"pairs {pairs} leaves nothing to change: give at least 1": pairs is not None and pairs < 1,
            f"pairs {pairs} has no effect without interventions: name some, such as [mean,keep]": pairs
            and not interventions,
            f"curve_pairs {curve_pairs} leaves no pair: give at least 1": curve_pairs < 1,
            f"timeout {timeout}: give a number of seconds above 0": not 0 < timeout < math.inf,
        }
        if problem := next((problem for problem, is_one in problems.items() if is_one), None):
            raise UsageError(f"--data.{problem}.")
        self.limit = limit
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.on_error = on_error
        self.grid: Grid = (grid, grid) if isinstance(grid, int) else grid
        self.gamma = gamma
        self.cache = cache
        self.timeout = timeout
        self.wordings: Sequence[Wording] = wordings or []
        self.interventions: Sequence[Intervention] = interventions or []
        self.pairs = pairs
        self.curve_pairs = curve_pairs
        self.chosen: Mapping[str, frozenset[str]] = {}  # names of the queries to change, by image
        self.records: Sequence[Record] = ()  # filled by `setup`
        self.notes: list[Note] = []  # about the annotation files; filled by `read_records`
        self.prepared: PreparedStore | None = None
        self.batch_arrived = 0.0  # time at which the last batch arrived, before its transfer to the device
        self.finished: frozenset[int] = frozenset()  # numbers of the batches finished by an earlier attempt

    def options(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the options that may change a number, as plain values; files and folders count by their contents.

        `given` is all options of a configuration; by default the attributes named like arguments of the constructor.
        """
        if given is None:
            owners = [owner for owner in type(self).__mro__ if issubclass(owner, ChestXrayDataModule)]
            names = [name for owner in owners for name in inspect.signature(owner.__init__).parameters]
            given = {name: getattr(self, name) for name in sorted({*names}) if hasattr(self, name)}
        moving = {name: value for name, value in given.items() if name not in self.neutral_options}
        return {name: plain(value) for name, value in moving.items() if not _is_place(value)}

    @abstractmethod
    def read_records(self, annotated: bool) -> Sequence[Record]:
        """Return the images of the split, in a fixed order; UserError if malformed. Prediction has no annotations."""

    @abstractmethod
    def load(self, record: Record) -> Radiograph:
        """Decode an image and draw its regions, in a worker process; UserError if either is impossible."""

    def annotation_files(self) -> Sequence[Path]:
        """Return the files with the ground truth; their digests go into the results."""
        return ()

    def where_images_are(self) -> str:
        """Return a sentence about where images are expected, for error messages."""
        return ""

    def checked_records(self, annotated: bool) -> Sequence[Record]:
        """Read the records up to the limit; UserError for invalid or duplicate names and invalid labels."""
        if not is_folder_name(self.name) or not is_name(self.split):
            raise UserError(
                f"The dataset name {self.name!r:.60} or the split name {self.split!r:.60} is invalid: set `name` and "
                "`splits` in its class to printable characters, not starting with = + - @; `name` becomes a folder."
            )
        problem = f"{self.findings!r:.60} is a string, not a tuple" if isinstance(self.findings, str) else None
        problem = problem or (findings_problem(self.findings) if self.findings else None)
        records = () if problem else self.read_records(annotated)[: self.limit]
        if not problem and not self.findings and any(record.queries is None for record in records):
            problem = findings_problem(())
        if PHRASES in self.findings:
            problem = f"{PHRASES!r} is the name for phrases without a finding"
        if problem:
            raise UserError(f"{self.name}: among its `findings`, {problem}. Correct `findings` in its class.")
        # Line breaks and control characters would break tables, messages and pages.
        for name in (*(record.image_id for record in records), *(note.image_id for note in self.notes)):
            if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 255:
                raise UserError(
                    f"{self.name}: the image name {name!r:.60} is invalid: give each image a name of 1 to 255 "
                    "printable characters."
                )
        kept, seen = list[Record](), set[str]()
        for record in records:
            name, labels = record.image_id, record.labels
            if name in seen:
                problem = "two records have this `image_id`: give each image one record, with all its annotations"
            elif record.queries is not None and (problem := _queries_problem(record.queries, self.findings)):
                pass
            elif not isinstance(record.patient_id, str | None):
                problem = f"its patient_id, {record.patient_id!r:.60}, is not a string"
            # Other mappings compute labels on demand, such as phantoms'.
            elif isinstance(labels, (dict, MappingProxyType)):
                # Skip numpy, which is slow, for plain numbers.
                other = (finding for finding, label in labels.items() if type(label) is not int or abs(label) > 1)
                wrong = (finding for finding in other if np.ndim(labels[finding]) or labels[finding] not in (1, 0, -1))
                if (finding := next(wrong, None)) is not None:
                    problem = (
                        f"it has the label {labels[finding]!r:.60} for {finding}: give 1 if the finding is present, "
                        "0 if it is absent, and -1 or no key if that is unknown"
                    )
            if problem:
                raise UserError(f"{self.name}: image {name}: {problem}.")
            seen.add(name)
            if record.attributes:
                attributes, odd = known_attributes(record.attributes)
                self.notes += [Note(text, name) for text in odd]
                record = replace(record, attributes=attributes)
            kept.append(record)
        return kept

    def setup(self, stage: str) -> None:
        """Read the records; UserError if there are none, or if images are missing and `on_error` is `stop`."""
        self.notes = []
        self.finished = frozenset()
        self.stall_guard = StallGuard(self.name)
        self.records = self.checked_records(annotated=stage != "predict")
        if not self.records:
            raise UserError(f"{self.name}: the split {self.split!r} has no images, so there is nothing to score.")
        missing = [record.image_id for record in self.records if record.missing]
        # Checked now because the images may come hours into the run.
        if missing and self.on_error == "stop":
            raise UserError(
                f"{self.name}: {len(missing)} of {len(self.records)} annotated images have no file (first: "
                f"{', '.join(missing[:3])}). {self.where_images_are()} Add these files, or leave out such images "
                "with --data.on_error skip (they are counted and named)."
            )
        if self.interventions:
            self.chosen = drawn_pairs(self.records, self.findings, self.pairs or sys.maxsize)

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of the numbers: the findings, and `PHRASES` if there are phrases without a finding."""
        queries = (query for record in self.records for query in record.queries or ())
        return (*self.findings, *([PHRASES] if any(query.finding is None for query in queries) else ()))

    def leave_out(self, findings: Collection[str]) -> None:
        """Score without some findings. External predictions that lack them call this in their `setup`."""
        self.findings = tuple(finding for finding in self.findings if finding not in findings)

    def test_dataloader(self) -> Loader:
        """Return this process's batches, preprocessed for the trainer's model, or in [0, 1] on the grid without one."""
        trainer = self.trainer
        if trainer is None:
            size = (224, 224) if self.grid == "native" else self.grid
            preprocessing, rank, processes = Preprocessing(stretch(size)), 0, 1
        else:
            preprocessing = trainer.lightning_module.preprocessing  # type: ignore[assignment]
            rank, processes = trainer.global_rank, trainer.world_size
        return Loader(
            self.samples(preprocessing),
            batch_sampler=DealtBatchSampler(len(self.records), self.batch_size, rank, processes, self.finished),
            num_workers=self.num_workers,
            # One batch per worker: they are large on the native grid, and other processes wait for those of a slow one.
            prefetch_factor=1 if self.num_workers and (self.grid == "native" or processes > 1) else None,
            collate_fn=Samples.collate,
            pin_memory=trainer is not None and trainer.strategy.root_device.type == "cuda",
        )

    predict_dataloader = test_dataloader

    def samples(self, preprocessing: Preprocessing) -> Samples:
        """Return the samples for a model's preprocessing, read from the store if there is one."""
        self.prepared = None if preprocessing.undecoded else self.find_store(preprocessing)
        how = preprocessing, self.grid, self.gamma, self.prepared, self.timeout, self.interventions, self.chosen
        return Samples(self.records, self.load, self.findings, *how)

    def store_for(self, preprocessing: Preprocessing) -> PreparedStore:
        """Return the store for a model's preprocessing, existing or not; UserError if images cannot be prepared."""
        if self.cache is False:
            raise UsageError("--data.cache false leaves no place for prepared images.")
        description = describe(self, preprocessing)
        return PreparedStore(self._cache_folder() / f"{self.name}-{digest(description)[:16]}", description)

    def find_store(self, preprocessing: Preprocessing) -> PreparedStore | None:
        """Return the store of prepared images, or None if it is empty or missing."""
        # Check the folder first, because `describe` is slow.
        if self.cache is not False and any(self._cache_folder().glob(f"{escape(self.name)}-*")):
            with suppress(UserError):
                store = self.store_for(preprocessing)
                return store if len(store) else None
        return None

    def _cache_folder(self) -> Path:
        return expand(self.cache) if isinstance(self.cache, str) else cache_folder()

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Record when the batch arrived; UserError for stalled reading, or unreadable images with `on_error` `stop`."""
        self.batch_arrived = time.perf_counter()
        # Raised here because a worker would wrap the message in its traceback.
        if batch.failures and self.on_error == "stop":
            failure = batch.failures[0]
            raise UserError(
                f"{self.name}: image {failure.image_id} cannot be read. {failure.reason} Repair the file, or leave out "
                "such images with --data.on_error skip (the run counts and names them)."
            )
        timed_out = {failure.index: failure.timed_out for failure in batch.failures}
        for index in sorted({*timed_out, *batch.truth.index.tolist()}):
            self.stall_guard.see(self.records[index].image_id, timed_out.get(index, False))
        return batch


def drawn_pairs(records: Sequence[Record], findings: Sequence[str], most: int) -> dict[str, frozenset[str]]:
    """Draw at most `most` pairs of an image and a present query; return the names of queries by image.

    Findings, with their phrases, have equal shares, or all their pairs. A larger draw includes a smaller one.
    """
    groups: dict[str | None, list[tuple[bytes, str, str]]] = {}
    for record in records:
        for query in record.looked_for(findings):
            if record.labels.get(query.name) == 1:
                key = draw(record.image_id, query.name), record.image_id, query.name
                groups.setdefault(query.finding, []).append(key)
    drawn: dict[str, set[str]] = {}
    # Ties are broken by name, so that the order of the records does not matter.
    in_turn = sorted(groups, key=lambda finding: (len(groups[finding]), finding or ""))
    for before, group in enumerate(groups[finding] for finding in in_turn):
        share = min(len(group), most // (len(groups) - before))
        most -= share
        for _, image_id, name in sorted(group)[:share]:
            drawn.setdefault(image_id, set()).add(name)
    return {image_id: frozenset(names) for image_id, names in drawn.items()}


def _queries_problem(queries: Sequence[Query], findings: Sequence[str]) -> str | None:
    for number, (name, finding, text, language) in enumerate(queries):
        is_text = text is None or (isinstance(text, str) and text.strip() and text.isprintable())
        if not is_name(name) or not is_text:
            return f"its query {name!r:.60} needs a name and, if it is a phrase, a text, of printable characters"
        if language is not None and not (is_name(language) and len(language) <= 16):
            return f"its query {name!r:.60} has the language {language!r:.60}: give a tag such as `en`, or None"
        if any(name == other.name for other in queries[:number]):
            return f"two of its queries are called {name!r:.60}"
        if name == PHRASES:
            return f"its query {name!r} has the name of the group of phrases without a finding"
        if (name in findings) is (text is not None) or (finding not in (None, *findings) if text else finding != name):
            return f"its query {name!r:.60} is neither one of `findings` nor a phrase with a name of its own"
    return None


def _is_place(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_is_place, value))
    return isinstance(value, (str, Path)) and os.path.exists(expand(value))
