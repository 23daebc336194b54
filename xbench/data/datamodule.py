"""What the harness asks of a dataset, and everything that datasets share."""

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
from functools import partial
from glob import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import lightning.pytorch as pl
import numpy as np
from torch.utils.data import DataLoader

from xbench.data.decoding import unreadable
from xbench.data.records import TIMEOUT, Grid, Radiograph, Record
from xbench.data.samples import Samples
from xbench.data.store.fingerprint import describe
from xbench.data.store.store import PreparedStore
from xbench.data.workers.isolation import StallGuard, one_thread
from xbench.data.workers.sampler import DealtBatchSampler
from xbench.findings.attributes import known_attributes
from xbench.findings.conditions import Intervention, draw
from xbench.findings.names import findings_problem, is_folder_name, is_name
from xbench.findings.phrases import Wording
from xbench.findings.queries import PHRASES, Query
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.runs.fingerprint import plain
from xbench.runtime.digests import digest
from xbench.runtime.distributed import shared_counter
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.paths import cache_folder, expand
from xbench.runtime.processes import usable_cores
from xbench.types import Batch, Failure, Note, Sample


class ChestXrayDataModule(pl.LightningDataModule, ABC):
    """A chest radiograph dataset for evaluation.

    A subclass sets `findings` and gives `read_records` and `load`.

    Args:
        split: Name of the split, one of `splits`.
        limit: Take only the first so many images.
        batch_size: Images per batch. The forward pass depends on it in its last bits, and therefore so do results.
        num_workers: Processes that load images; None for as many as there are cores, four at most.
        on_error: `stop` ends the run at the first image that cannot be read; `skip` leaves such images out, counts them
            and names them in the results.
        grid: Height and width of the evaluation grid in pixels, one number for both; or `native`, to score each image
            on its own pixels, which takes as much more time and memory as there are more of them.
        gamma: Share of a grid pixel that an annotation must cover for the pixel to belong to the region.
        cache: Folder of the images that `prepare` has decoded and resized, which are then read from there; true for
            `$XBENCH_CACHE`, or `xbench` in the user's folder for caches; false to decode every image in every run.
        timeout: Seconds after which an image that is still being decoded counts as one that cannot be read, as on a
            network file system that hangs. On Linux and with `num_workers` above 0, which also keep a decoder that
            crashes apart from the run: each worker decodes in a process of its own that can be replaced.
        wordings: Other words in which phrases are scored again, for reports that say whether maps follow the words:
            `name` of the finding, the package's `phrase` for it, `negation` of the phrase, and the phrase of `other`
            regions of the same image.
        interventions: What is done to see whether scores depend on the region: fills that hide it, and an equal patch
            elsewhere (`mean`, `blur`, `inpaint`, `noise`, `black`), `keep` nothing but the region, `no_image`, other
            `prompts`; and of maps `deletion`, `insertion`, `road` and `randomisation`. docs/interventions.md has each.
        pairs: At most so many pairs of an image and what it shows are changed, in equal shares of the findings; None
            for all.
        curve_pairs: At most so many pairs, the first of the same draw, for `deletion`, `insertion`, `road` and
            `randomisation`.
    """

    name: str = ""  # short name in results and run folders; the class name in lower case unless the class sets it
    findings: tuple[str, ...]  # in the order of the results
    # All classes that its labels know, the findings among them; empty if it has no others. A model whose scores depend
    # on what is asked together may ask for all of them.
    classes: tuple[str, ...] = ()
    splits: tuple[str, ...] = ("test",)  # the first is the default
    # Options that move no number: runs that differ in these alone are the same run. A class adds its own to these.
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
            f"pairs {pairs} has no use without interventions: name some, such as [mean,keep]": pairs
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
        self.chosen: Mapping[str, frozenset[str]] = {}  # by image, names of the queries that interventions are about
        self.records: Sequence[Record] = ()  # the images of the split, from `setup` on
        self.notes: list[Note] = []  # what is odd about the annotation files; `read_records` fills it
        self.prepared: PreparedStore | None = None
        self.batch_arrived = 0.0  # when the last batch was there, before it went to the device
        self.finished: frozenset[int] = frozenset()  # numbers of the batches that an earlier attempt has done

    def options(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the options that may move a number, as plain values, for the results to tell runs apart by them.

        Those that name a file or a folder are left out, for what lies there is digested. `given` is all options as a
        configuration has them; by default what the constructor has kept under their own names.
        """
        if given is None:
            owners = [owner for owner in type(self).__mro__ if issubclass(owner, ChestXrayDataModule)]
            names = [name for owner in owners for name in inspect.signature(owner.__init__).parameters]
            given = {name: getattr(self, name) for name in sorted({*names}) if hasattr(self, name)}
        moving = {name: value for name, value in given.items() if name not in self.neutral_options}
        return {name: plain(value) for name, value in moving.items() if not _is_place(value)}

    @abstractmethod
    def read_records(self, annotated: bool) -> Sequence[Record]:
        """Read the annotation files and list the images of the split, in a fixed order.

        Prediction (`annotated` is False) must do without annotations. Raise a `UserError` where files are missing or
        malformed.
        """

    @abstractmethod
    def load(self, record: Record) -> Radiograph:
        """Decode the image of a record and draw its annotated regions. Runs in worker processes.

        Raise a `UserError` where the image or its annotation cannot be read.
        """

    def annotation_files(self) -> Sequence[Path]:
        """Return the files that the ground truth comes from; their digests go into the results."""
        return ()

    def where_images_are(self) -> str:
        """Return a sentence that says where images are expected, for the message that they are missing."""
        return ""

    def checked_records(self, annotated: bool) -> Sequence[Record]:
        """Read the records up to the limit; UserError where a name is none or there twice, or a label is none."""
        if not is_folder_name(self.name) or not is_name(self.split):
            raise UserError(
                f"A dataset is called {self.name!r:.60}, its split {self.split!r:.60}: set `name` and `splits` in its "
                "class to printable characters, with none of = + - @ as the first; `name` is that of a folder."
            )
        # Of a text, which ("Nodule") is, each letter would be one.
        problem = f"{self.findings!r:.60} is a text, and no tuple" if isinstance(self.findings, str) else None
        problem = problem or (findings_problem(self.findings) if self.findings else None)
        records = () if problem else self.read_records(annotated)[: self.limit]
        if not problem and not self.findings and any(record.queries is None for record in records):
            problem = findings_problem(())
        if PHRASES in self.findings:
            problem = f"{PHRASES!r} is what results call the phrases without a finding"
        if problem:
            raise UserError(f"{self.name}: among its `findings`, {problem}. Set `findings` in its class accordingly.")
        # They go into tables, messages and pages: line breaks and what steers a terminal must not.
        for name in (*(record.image_id for record in records), *(note.image_id for note in self.notes)):
            if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 255:
                raise UserError(
                    f"{self.name}: an image is called {name!r:.60}, which is no name of an image: give it 1 to 255 "
                    "printable characters."
                )
        kept, seen = list[Record](), set[str]()
        for record in records:
            name, labels = record.image_id, record.labels
            if name in seen:
                problem = "two records have this `image_id`: give one record to each image, with all its annotations"
            elif record.queries is not None and (problem := _queries_problem(record.queries, self.findings)):
                pass
            elif not isinstance(record.patient_id, str | None):
                problem = f"its patient_id, {record.patient_id!r:.60}, is no text"
            # Labels of another kind are worked out when they are asked for, as those of phantoms, which are drawn then.
            elif isinstance(labels, (dict, MappingProxyType)):
                # Nearly all are plain numbers, and asking numpy for the dimensions of one takes longest here.
                other = (finding for finding, label in labels.items() if type(label) is not int or abs(label) > 1)
                wrong = (finding for finding in other if np.ndim(labels[finding]) or labels[finding] not in (1, 0, -1))
                if (finding := next(wrong, None)) is not None:
                    problem = (
                        f"it has the label {labels[finding]!r:.60} for {finding}: give 1 where the finding is present, "
                        "0 where it is absent, and -1 or no key where that is unknown"
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
        """Read the records; UserError where none is left to score, or images are missing and `on_error` is `stop`."""
        self.notes = []
        self.finished = frozenset()
        self.stall_guard = StallGuard(self.name)
        self.records = self.checked_records(annotated=stage != "predict")
        if not self.records:
            raise UserError(f"{self.name}: the split {self.split!r} holds no image, so there is nothing to score.")
        missing = [record.image_id for record in self.records if record.missing]
        # Found now and not when their turn comes, hours into a run.
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
        """What numbers are grouped by: the findings, and `PHRASES` if the images have phrases without one."""
        queries = (query for record in self.records for query in record.queries or ())
        return (*self.findings, *([PHRASES] if any(query.finding is None for query in queries) else ()))

    def leave_out(self, findings: Collection[str]) -> None:
        """Score without some findings. Predictions that say nothing of them call this in their `setup`."""
        self.findings = tuple(finding for finding in self.findings if finding not in findings)

    def test_dataloader(self) -> DataLoader[Sample | Failure]:
        """Return the loader of this process's batches, with images as the trainer's model wants them.

        Without a trainer all batches come, with images stretched to the evaluation grid (the native one: to 224 x 224),
        in [0, 1].
        """
        trainer = self.trainer
        if trainer is None:
            size = (224, 224) if self.grid == "native" else self.grid
            preprocessing, rank, processes = Preprocessing(stretch(size)), 0, 1
        else:
            preprocessing = trainer.lightning_module.preprocessing  # type: ignore[assignment]
            rank, processes = trainer.global_rank, trainer.world_size
        dealt = partial(shared_counter, "dealt batches")
        return DataLoader(
            self.samples(preprocessing),
            batch_sampler=DealtBatchSampler(len(self.records), self.batch_size, rank, processes, self.finished, dealt),
            num_workers=self.num_workers,
            # One batch per worker and not the usual two: those that wait are large on the native grid, and what a slow
            # process has taken the others have to wait for.
            prefetch_factor=1 if self.num_workers and (self.grid == "native" or processes > 1) else None,
            collate_fn=Samples.collate,
            pin_memory=trainer is not None and trainer.strategy.root_device.type == "cuda",
            worker_init_fn=one_thread,
        )

    predict_dataloader = test_dataloader

    def samples(self, preprocessing: Preprocessing) -> Samples:
        """Return the records as samples for a model with the given preprocessing, from the store if there is one."""
        self.prepared = None if preprocessing.undecoded else self.find_store(preprocessing)
        how = preprocessing, self.grid, self.gamma, self.prepared, self.timeout, self.interventions, self.chosen
        return Samples(self.records, self.load, self.findings, *how)

    def store_for(self, preprocessing: Preprocessing) -> PreparedStore:
        """Return the store of the prepared images for a model with the given preprocessing, whether it exists or not.

        Raises a UserError with `--data.cache false`, or if images of this dataset or for this model cannot be prepared.
        """
        if self.cache is False:
            raise UsageError("--data.cache false leaves no place for prepared images.")
        description = describe(self, preprocessing)
        return PreparedStore(self._cache_folder() / f"{self.name}-{digest(description)[:16]}", description)

    def find_store(self, preprocessing: Preprocessing) -> PreparedStore | None:
        """Return the store of the prepared images if there is one to read, else None."""
        # A look at the folder first: those who never prepared anything do not pay for a description.
        if self.cache is not False and any(self._cache_folder().glob(f"{escape(self.name)}-*")):
            with suppress(UserError):
                store = self.store_for(preprocessing)
                return store if len(store) else None
        return None

    def _cache_folder(self) -> Path:
        return expand(self.cache) if isinstance(self.cache, str) else cache_folder()

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Note when the batch arrived; UserError for an unreadable image unless asked to skip it, or for a stall."""
        self.batch_arrived = time.perf_counter()
        # Raised here and not in the worker, which would wrap the message in its traceback.
        if batch.failures and self.on_error == "stop":
            failure = batch.failures[0]
            raise UserError(
                f"{self.name}: image {unreadable(failure.image_id, failure.reason)} Repair the file, or leave out such "
                "images with --data.on_error skip (the run counts and names them)."
            )
        timed_out = {failure.index: failure.timed_out for failure in batch.failures}
        for index in sorted({*timed_out, *batch.truth.index.tolist()}):
            self.stall_guard.see(self.records[index].image_id, timed_out.get(index, False))
        return batch


def drawn_pairs(records: Sequence[Record], findings: Sequence[str], most: int) -> dict[str, frozenset[str]]:
    """Draw at most so many pairs of an image and what is present in it; return the names of queries by image.

    Each finding gives an equal share, and one that has fewer pairs gives all; phrases belong to their finding. The
    order of `draw` decides within a finding, so that more pairs are those of a smaller draw and others.
    """
    groups: dict[str | None, list[tuple[bytes, str, str]]] = {}
    for record in records:
        for query in record.looked_for(findings):
            if record.labels.get(query.name) == 1:
                key = draw(record.image_id, query.name), record.image_id, query.name
                groups.setdefault(query.finding, []).append(key)
    drawn: dict[str, set[str]] = {}
    # Of findings with equally many pairs the name decides which gets one more, and not the order of the records.
    in_turn = sorted(groups, key=lambda finding: (len(groups[finding]), finding or ""))
    for before, group in enumerate(groups[finding] for finding in in_turn):
        share = min(len(group), most // (len(groups) - before))
        most -= share
        for _, image_id, name in sorted(group)[:share]:
            drawn.setdefault(image_id, set()).add(name)
    return {image_id: frozenset(names) for image_id, names in drawn.items()}


def _queries_problem(queries: Sequence[Query], findings: Sequence[str]) -> str | None:
    """Return why these cannot be the queries of an image; None if they can."""
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
    """Tell whether a value names a file or a folder that is there, or several."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_is_place, value))
    return isinstance(value, (str, Path)) and os.path.exists(expand(value))
