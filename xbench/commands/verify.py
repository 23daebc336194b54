"""Command `verify`: recompute every number of runs from their tables and compare.

Uses the functions of the run itself and compares exactly; `--deep` also measures the stored predictions again. Tests
compare each number with an independent form. Needs no torch unless deep.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from xbench.runs.files import IMAGES, PAIRS, PICTURES, PREDICTIONS, RESULTS, SCHEMAS, TRUTH, Table, reading
from xbench.runs.finished import FinishedRun
from xbench.runs.protocols import check_protocol, stored_protocols
from xbench.runs.summary import numbers_of, summarize
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UserError

_SHOWN = 20
_ABSENT = "no entry"


class Compared(NamedTuple):
    """Two values of a `place`, such as `results.json / counts / images`: the stored one, and a derived one."""

    place: str
    stored: Any
    derived: Any

    @property
    def differs(self) -> bool:
        """Whether the two differ; 1 differs from True and from "1"."""
        return self.stored != self.derived or isinstance(self.stored, bool) != isinstance(self.derived, bool)

    def __str__(self) -> str:
        return f"{shown(self.place)}: stored {shown(self.stored)}, derived {shown(self.derived)}"


def verify(given: Namespace) -> None:
    """Print whether the numbers of each run follow from its tables, up to the first whose numbers do not."""
    # Names of findings may look like markup.
    console = Console(highlight=False, markup=False)
    for folder in chain(*(_runs(path.expanduser()) for path in given.run)):
        run = FinishedRun.open(folder, PAIRS)
        numbers = [*verified(run, given.deep)]
        wrong = [number for number in numbers if number.differs]
        for one in wrong[:_SHOWN]:
            console.print(str(one), soft_wrap=True)
        if wrong:
            raise UserError(
                f"{folder}: {len(wrong)} of {len(numbers)} numbers do not follow from its tables (first: {wrong[0]}). "
                "A file was changed after the run or belongs to another one: do not use these results; repeat the run."
            )
        deep = ", and its rows from the stored predictions" if given.deep else ""
        console.print(f"All {len(numbers)} numbers of {folder} follow from its tables{deep}.", soft_wrap=True)
        if PICTURES in run.results.tables and not (folder / PICTURES).exists():
            console.print(f"{PICTURES} was deleted; no number depends on it.", soft_wrap=True)


def _runs(folder: Path) -> list[Path]:
    """Return a run's folder itself, or the finished runs below a folder; the folder as it is if there are none."""
    if (folder / RESULTS).exists():
        return [folder]
    return sorted(file.parent for file in folder.rglob(RESULTS)) or [folder]


def verified(run: FinishedRun, deep: bool = False) -> Iterator[Compared]:
    """Yield each number of a run with its derived value; if `deep`, also rows measured again."""
    stored, rows = run.results, run.rows
    with reading(run.folder):
        for name in {**SCHEMAS, **stored.tables}:
            there = (run.folder / name).exists()
            # Pictures may be deleted before a run is shared.
            if there or (name in stored.tables and name != PICTURES):
                yield Compared(f"{name} / SHA-256", stored.tables.get(name, _ABSENT), file_sha256(run.folder / name))
    evaluation = stored.provenance.get("evaluation") or {}
    thresholds = len(stored.grounding.thresholds)
    if stored.masks > 1 and len(rows.counts.row):
        thresholds = rows.counts.mask.shape[1]
    place = f"{RESULTS} / provenance / evaluation / thresholds"
    yield Compared(place, evaluation.get("thresholds", thresholds), thresholds)
    with reading(run.folder):
        answers = [*chain(*run.answers.values())] if stored.answered else None
        if thresholds < 3 or thresholds % 2 == 0:
            raise ValueError(f"{PAIRS} has {thresholds} thresholds, but their number must be odd")
        names = stored.model, stored.dataset, stored.split
        derived = summarize(names, rows, numbers_of(rows), thresholds, (), (), stored.provenance, answers, run.changed)
    content, again = asdict(stored), asdict(derived)
    # Not in any table.
    for name in ("skipped", "notes"):
        del content["counts"][name], again["counts"][name]
    for name in ("provenance", "tables"):
        del content[name], again[name]
    yield from compared(RESULTS, content, again)
    for name in stored_protocols(run.folder):
        for place, kept, follows in check_protocol(run, name):
            yield from compared(place, kept, follows)
    if deep:
        yield from _measured_again(run)


def _measured_again(run: FinishedRun) -> Iterator[Compared]:
    """Yield each measured column of the rows, from stored predictions and truth."""
    from xbench.commands.rescore import score_batch

    FinishedRun.open(run.folder, IMAGES, PREDICTIONS, TRUTH)
    read_as = run.results.read_as
    if not read_as:
        columns = ["image_id", "query", "condition", "logit", "probability"]
        with reading(run.folder):
            stored = Table(run.folder / PAIRS).read(columns)
            again = Table(run.folder / PREDICTIONS).read([*columns, "asked"])
        yield from _columns(PAIRS, stored, again.filter(pc.is_null(again["asked"])))
    for view in run.under_conditions:
        with reading(run.folder):
            tables = [score_batch(view, run.rules, read_as, batch) for batch in view.saved_batches()]
        for name in tables[0] if tables else ():
            again = pa.concat_tables(table[name] for table in tables)
            with reading(run.folder):
                stored = Table(run.folder / name).read()
            yield from _columns(name, stored.filter(pc.equal(stored["condition"], view.condition)), again)


def _columns(name: str, stored: pa.Table, derived: pa.Table) -> Iterator[Compared]:
    """Yield the number of rows of two tables, and per column the first row with a difference."""
    yield Compared(f"{name} / rows", len(stored), len(derived))
    for column in stored.column_names if len(stored) == len(derived) else ():
        first, second = stored[column].combine_chunks(), derived[column].combine_chunks()
        if first.equals(second):
            yield Compared(f"{name} / {column}", "equal", "equal")
            continue
        pairs = zip(first.to_pylist(), second.to_pylist(), strict=True)
        for row in np.flatnonzero([one != other for one, other in pairs])[:1].tolist():
            yield Compared(f"{name} / {column} / row {row}", first[row].as_py(), second[row].as_py())


def compared(place: str, stored: Any, derived: Any) -> Iterator[Compared]:
    """Yield every leaf of nested mappings and lists."""
    if isinstance(stored, Mapping) and isinstance(derived, Mapping):
        for key in {**derived, **stored}:
            yield from compared(f"{place} / {key}", stored.get(key, _ABSENT), derived.get(key, _ABSENT))
    elif isinstance(stored, list | tuple) and isinstance(derived, list | tuple):
        yield Compared(f"{place} / length", len(stored), len(derived))
        for key, (one, other) in enumerate(zip(stored, derived, strict=False)):
            yield from compared(f"{place} / {key}", one, other)
    else:
        yield Compared(place, stored, derived)


def shown(value: Any, length: int = 200) -> str:
    """Return any value on one line of limited length."""
    text = "nothing" if value is None or value == "" else str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= length else f"{text[: length - 3]}..."
