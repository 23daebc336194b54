"""Recompute every number of a run from its tables and compare.

Reads rows, computes with the functions that the run itself calls, and compares exactly; `--deep` also measures the
stored predictions again. The independent second form of each number is in the tests. Needs no torch unless deep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from xbench.commands.arguments import verify_parser
from xbench.runs.files import IMAGES, PAIRS, PICTURES, PREDICTIONS, RESULTS, SCHEMAS, TRUTH, Table, reading
from xbench.runs.finished import FinishedRun
from xbench.runs.protocols import check_protocol, stored_protocols
from xbench.runs.summary import numbers_of, summarise
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UserError

_SHOWN = 20
_ABSENT = "no entry"


@dataclass(frozen=True)
class Disagreement:
    """A number that does not follow from the tables.

    Attributes:
        place: Where it stands, such as `results.json / grounding / per_class / Nodule / dice_best`.
        stored: What is there.
        derived: What the tables give.
    """

    place: str
    stored: Any
    derived: Any

    def __str__(self) -> str:
        """Return it on one line."""
        return f"{_shown(self.place)}: stored {_shown(self.stored)}, derived {_shown(self.derived)}"


def verify(arguments: Sequence[str]) -> None:
    """Print whether the numbers of a run follow from its tables; `arguments` is the run's folder."""
    given = verify_parser().parse_args(arguments)
    folder = given.run.expanduser()
    run = FinishedRun.open(folder, PAIRS)
    found, wrong = _compared(run, given.deep)
    # Names of findings may look like markup.
    console = Console(highlight=False, markup=False)
    if not wrong:
        deep = ", and the rows from the stored predictions" if given.deep else ""
        console.print(f"All {found} numbers of {folder} follow from its tables{deep}.", soft_wrap=True)
        if PICTURES in run.results.tables and not (folder / PICTURES).exists():
            console.print(f"{PICTURES} was deleted; no number depends on it.", soft_wrap=True)
        return
    for one in wrong[:_SHOWN]:
        console.print(str(one), soft_wrap=True)
    raise UserError(
        f"{folder}: {len(wrong)} of {found} numbers do not follow from the run's tables (first: {wrong[0]}). A "
        "file was changed after the run, or belongs to another one: do not use these results, run the command again."
    )


def disagreements(folder: Path, deep: bool = False) -> list[Disagreement]:
    """Return the numbers of a run that contradict its tables.

    A file that is missing, damaged or of another run raises a `UserError`.
    """
    return _compared(FinishedRun.open(folder, PAIRS), deep)[1]


_Number = tuple[str, Any, Any]
"""Place, stored and derived value."""


def _compared(run: FinishedRun, deep: bool) -> tuple[int, list[Disagreement]]:
    """Return how many numbers were compared, and those that differ."""
    found = [*_numbers(run), *(_measured_again(run) if deep else ())]
    return len(found), [Disagreement(*number) for number in found if not _equal(number[1], number[2])]


def _numbers(run: FinishedRun) -> Iterator[_Number]:
    stored, rows = run.results, run.rows
    yield from _digests(run)
    evaluation = stored.provenance.get("evaluation") or {}
    thresholds = len(stored.grounding.thresholds)
    if stored.answers is None and len(rows.counts.row):
        thresholds = rows.counts.mask.shape[1]
    yield f"{RESULTS} / provenance / evaluation / thresholds", evaluation.get("thresholds", thresholds), thresholds
    answers = None if run.answers is None else [*chain(*run.answers.values())]
    with reading(run.folder):
        if thresholds < 3 or thresholds % 2 == 0:
            raise ValueError(f"{PAIRS} has {thresholds} thresholds, and those of a run are odd in number")
        names = stored.model, stored.dataset, stored.split
        derived = summarise(names, rows, numbers_of(rows), thresholds, (), (), stored.provenance, answers)
    content, again = asdict(stored), asdict(derived)
    # What no table holds.
    for name in ("skipped", "notes"):
        del content["counts"][name], again["counts"][name]
    for name in ("provenance", "tables"):
        del content[name], again[name]
    yield from leaves(RESULTS, content, again)
    for name in stored_protocols(run.folder):
        for place, kept, follows in check_protocol(run, name):
            yield from leaves(place, kept, follows)


def _digests(run: FinishedRun) -> Iterator[_Number]:
    """The SHA-256 of each table; that of pictures, which may be deleted before a run is shared, only if it is there."""
    tables = run.results.tables
    with reading(run.folder):
        for name in {**SCHEMAS, **tables}:
            there = (run.folder / name).exists()
            if there or (name in tables and name != PICTURES):
                yield f"{name} / SHA-256", tables.get(name, _ABSENT), file_sha256(run.folder / name)


def _measured_again(run: FinishedRun) -> Iterator[_Number]:
    """Each column of the rows that is measured, from the stored predictions and the stored truth.

    Labels, patients and the agreement of readers stand in the rows alone, and so are taken from there.
    """
    from xbench.commands.rescore import score_batch

    FinishedRun.open(run.folder, IMAGES, PREDICTIONS, TRUTH)
    answers = run.results.answers
    read_as = {} if answers is None else {"family": answers.family, "frame": answers.frame}
    if answers is None:
        said = ("image_id", "query", "condition", "logit", "probability")
        with reading(run.folder):
            stored, again = (Table(run.folder / name).read(columns=[*said]) for name in (PAIRS, PREDICTIONS))
        yield f"{PREDICTIONS} / rows", len(stored), len(again)
        for column in said if len(stored) == len(again) else ():
            yield from _first_difference(f"{PAIRS} / {column}", stored[column], again[column])
    for view in run.under_conditions:
        with reading(run.folder):
            tables = [score_batch(view, run.rules, read_as, batch) for batch in view.saved_batches()]
        for name in (PAIRS, PREDICTIONS):
            if tables and name in tables[0]:
                again = pa.concat_tables(table[name] for table in tables)
                with reading(run.folder):
                    stored = Table(run.folder / name).read()
                stored = stored.filter(pc.equal(stored["condition"], view.condition))
                yield f"{name} / rows", len(stored), len(again)
                for column in stored.column_names if len(stored) == len(again) else ():
                    yield from _first_difference(f"{name} / {column}", stored[column], again[column])


def _first_difference(place: str, stored: pa.ChunkedArray, derived: pa.ChunkedArray) -> Iterator[_Number]:
    """The first row in which two columns of one length differ."""
    first, second = stored.combine_chunks(), derived.combine_chunks()
    if first.equals(second):
        yield place, "equal", "equal"
        return
    pairs = zip(first.to_pylist(), second.to_pylist(), strict=True)
    differ = np.flatnonzero([one != other for one, other in pairs])
    for row in differ[:1].tolist():
        yield f"{place} / row {row}", first[row].as_py(), second[row].as_py()


def leaves(place: str, stored: Any, derived: Any) -> Iterator[_Number]:
    """Yield every leaf of nested mappings and lists: its place, and both values."""
    if isinstance(stored, Mapping) and isinstance(derived, Mapping):
        for key in {**derived, **stored}:
            yield from leaves(f"{place} / {key}", stored.get(key, _ABSENT), derived.get(key, _ABSENT))
    elif isinstance(stored, list | tuple) and isinstance(derived, list | tuple):
        yield f"{place} / length", len(stored), len(derived)
        for key, (one, other) in enumerate(zip(stored, derived, strict=False)):
            yield from leaves(f"{place} / {key}", one, other)
    else:
        yield place, stored, derived


def _equal(stored: Any, derived: Any) -> bool:
    # A number and a text that looks like it differ, and so do 1 and True.
    return bool(stored == derived) and isinstance(stored, bool) == isinstance(derived, bool)


def _shown(value: Any) -> str:
    """A value on one line, however long it is and whatever it holds."""
    text = "nothing" if value is None or value == "" else str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 200 else f"{text[:197]}..."
