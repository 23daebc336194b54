"""Journal of finished batches on disk, so that a killed run can be resumed.

Each process appends its batches to a file of its own, because file systems of clusters create files slowly. A batch is
a line with its number, size and checksum, then JSON and Arrow tables. If a process or machine dies at any time, a batch
is either intact or counts as unfinished. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from xbench.runs.files import SCHEMAS
from xbench.runtime.errors import UserError

if TYPE_CHECKING:
    from xbench.types import Failure, Note

ABOUT = "about.json"
_HEAD = re.compile(rb"(\d{1,12}) (\d{1,15}) ([0-9a-f]{8})\n")
_JOINED_BYTES = 2**22  # at most, unless a batch has more


@dataclass(frozen=True)
class BatchRecord:
    """Data that a finished batch adds to a run."""

    batch: int  # number in the dataset's order, from 0
    tables: Mapping[str, Any]  # tables of readable images by file name, or the result of `encoded`
    failures: Sequence[Failure]
    notes: Sequence[Note]


class Place(NamedTuple):
    """Where the journal holds a batch."""

    path: Path
    start: int
    size: int
    checksum: int  # CRC-32 that starts from the batch's number


def append_records(path: Path, *records: BatchRecord) -> None:
    """Append batches to the journal's file of this process and attempt, which finishes them."""
    written: list[Any] = []
    for record in records:
        content, checksum = _encode(record), record.batch
        for part in content:
            checksum = zlib.crc32(part, checksum)
        written += [f"{record.batch} {sum(map(len, content))} {checksum:08x}\n".encode(), *content]
    # Not forced to disk, which would take longer than the batches; the checksums reveal missing data.
    with open(path, "ab") as file:
        file.writelines(written)


def finished_batches(folder: Path) -> dict[int, Place]:
    """Return the places of the journal's intact batches by number, in the dataset's order."""
    return {batch: place for batch, place, _ in _intact(_places(folder))}


def all_batches(folder: Path, expected: int) -> Iterator[BatchRecord]:
    """Yield all batches in order, several in a record; raise a UserError at the end if any is missing."""
    finished, contents = 0, list[bytes]()
    for _, _, content in _intact(_places(folder)):
        if contents and sum(map(len, contents)) + len(content) > _JOINED_BYTES:
            yield _decode(contents)
            contents.clear()
        contents.append(content)
        finished += 1
    if contents:
        yield _decode(contents)
    if finished != expected:
        raise UserError(
            f"{folder} holds {finished} of {expected} finished batches, because other processes wrote to another "
            "disk: --trainer.default_root_dir must be a folder that all nodes share."
        )


def read_record(batch: int, place: Place) -> BatchRecord:
    """Read a finished batch; raise a ValueError if it changed since `finished_batches`."""
    for _, _, content in _intact({batch: place}):
        return _decode([content])
    raise ValueError(f"{place.path} changed while it was read")


def _places(folder: Path) -> dict[int, Place]:
    """Return the last place of each batch, sorted; what follows a torn batch in its file is lost."""
    found: dict[int, Place] = {}
    for path in sorted(folder.glob("*.arrow")):  # later attempts last
        with open(path, "rb") as file:
            end = os.fstat(file.fileno()).st_size
            while head := _HEAD.fullmatch(file.readline(64)):
                place = Place(path, file.tell(), int(head[2]), int(head[3], 16))
                if file.seek(place.size, os.SEEK_CUR) > end:
                    break
                found[int(head[1])] = place
    return dict(sorted(found.items()))


def _intact(places: Mapping[int, Place]) -> Iterator[tuple[int, Place, bytes]]:
    """Yield number, place and content of each batch whose checksum matches."""
    for path, batches in groupby(places.items(), key=lambda batch: batch[1].path):
        with open(path, "rb") as file:
            for batch, place in batches:
                file.seek(place.start)
                if zlib.crc32(content := file.read(place.size), batch) == place.checksum:
                    yield batch, place, content


def _decode(contents: Sequence[bytes]) -> BatchRecord:
    """Return a record of several batches, with the number of the first."""
    from xbench.types import Failure, Note

    parts, heads = dict[str, list[memoryview]](), list[Any]()
    for content in contents:
        end = content.index(b"\n") + 1
        heads.append(json.loads(content[:end]))
        for name, size in heads[-1]["tables"].items():
            parts.setdefault(name, []).append(memoryview(content)[end : end + size])
            end += size
    tables = {name: decoded(name, *of_name) for name, of_name in parts.items()}
    failures = [Failure(*one) for head in heads for one in head["failures"]]
    notes = [Note(*one) for head in heads for one in head["notes"]]
    return BatchRecord(heads[0]["batch"], tables, tuple(failures), tuple(notes))


def read_about(folder: Path) -> dict[str, Any] | None:
    """Read the fingerprint of a journal; None if it is missing or damaged."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def encoded(table: pa.Table) -> pa.Buffer | bytes:
    """Encode a table without its schema, which takes longer than a batch's rows; empty tables become empty."""
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
    return batches[0].serialize() if batches else b""


def decoded(name: str, *contents: Any) -> pa.Table:
    """Decode results of `encoded` and join them."""
    parts = [content for content in contents if len(content)]
    # A view would keep the whole content, including maps, in memory. Joining copies, too.
    parts = parts if len(parts) > 1 else [*map(bytes, parts)]
    batches = [pa.ipc.read_record_batch(pa.py_buffer(part), SCHEMAS[name]) for part in parts]
    return pa.Table.from_batches(batches, schema=SCHEMAS[name]).combine_chunks()


def _encode(record: BatchRecord) -> list[Any]:
    parts = {name: encoded(part) if isinstance(part, pa.Table) else part for name, part in record.tables.items()}
    about: dict[str, Any] = {"batch": record.batch, "tables": {name: len(part) for name, part in parts.items()}}
    about |= {"failures": [astuple(failure) for failure in record.failures], "notes": record.notes}
    return [f"{json.dumps(about)}\n".encode(), *parts.values()]
