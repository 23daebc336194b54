"""What a running evaluation has finished so far, on disk, so that a run that is killed can go on.

Each finished batch is a file of a line of JSON and Arrow tables, renamed into place once it is written, with a checksum
in its name. So whenever a process is killed, and even if a machine dies before its disk has everything, a batch either
reads as it was written or counts as not done. Nothing is pickled.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from xbench.runs.files import SCHEMAS
from xbench.runtime.errors import UserError
from xbench.runtime.files import write_whole

if TYPE_CHECKING:
    from xbench.types import Failure, Note

ABOUT = "about.json"
_NAME = re.compile(r"(\d+)-([0-9a-f]{8})\.arrow")


@dataclass(frozen=True)
class BatchRecord:
    """Everything that a finished batch adds to a run."""

    batch: int  # its number in the dataset's order, from 0
    tables: Mapping[str, Any]  # by file of the run, those of its images that could be read; or what `encoded` returned
    failures: tuple[Failure, ...]
    notes: tuple[Note, ...]


def append_record(folder: Path, record: BatchRecord) -> None:
    """Write a batch to the journal in a folder; it counts as finished from here on."""
    content = _encode(record)
    # Not forced to the disk, which would take longer than the batch: the checksum tells what did not get there.
    write_whole(folder / f"{record.batch:06d}-{zlib.crc32(content):08x}.arrow", content, forced=False)


def finished_batches(folder: Path) -> dict[int, Path]:
    """Return the batches that the journal in a folder has, in the dataset's order, each with its file.

    A file that is cut off, damaged or no journal's counts as not there.
    """
    # A batch that was done twice is the same both times.
    found = {int(path.name.partition("-")[0]): path for path in folder.glob("*.arrow") if _intact(path)}
    return dict(sorted(found.items()))


def all_batches(folder: Path, expected: int) -> list[Path]:
    """Return the files of so many batches in the dataset's order; a UserError if the journal has not all of them."""
    finished = finished_batches(folder)
    if len(finished) != expected:
        raise UserError(
            f"{folder} holds {len(finished)} of {expected} batches that were done, so the other processes wrote "
            "elsewhere: --trainer.default_root_dir must be a folder that all nodes see."
        )
    return [*finished.values()]


def read_record(path: Path) -> BatchRecord:
    """Read what a finished batch adds to a run; raise a ValueError if it changed since `finished_batches` saw it."""
    content = _intact(path)
    if content is None:
        raise ValueError(f"{path} has changed while it was read")
    from xbench.types import Failure, Note  # it imports torch

    end = content.index(b"\n") + 1
    about = json.loads(content[:end])
    tables = {}
    for name, size in about["tables"].items():
        # A copy: a table that points into the content would keep all of it, with every map, in memory.
        tables[name] = decoded(name, content[end : end + size])
        end += size
    failures, notes = (Failure(*one) for one in about["failures"]), (Note(*one) for one in about["notes"])
    return BatchRecord(about["batch"], tables, tuple(failures), tuple(notes))


def read_about(folder: Path) -> dict[str, Any] | None:
    """Read what a journal's numbers depend on; None if that is not there or damaged."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def _intact(path: Path) -> bytes | None:
    """Content of a file of the journal; None if it is not what its name says."""
    name = _NAME.fullmatch(path.name)
    content = path.read_bytes() if name else b""
    return content if name and zlib.crc32(content) == int(name[2], 16) else None


def encoded(table: pa.Table) -> pa.Buffer | bytes:
    """Return a table of a run without its schema, which takes longer than the rows of a batch; of no rows nothing."""
    batches = table.combine_chunks().to_batches()
    return batches[0].serialize() if batches else b""


def decoded(name: str, content: Any) -> pa.Table:
    """Return the table of a run from what `encoded` returned."""
    batches = [pa.ipc.read_record_batch(pa.py_buffer(content), SCHEMAS[name])] if len(content) else []
    return pa.Table.from_batches(batches, schema=SCHEMAS[name])


def _encode(record: BatchRecord) -> bytes:
    parts = {name: encoded(part) if isinstance(part, pa.Table) else part for name, part in record.tables.items()}
    about: dict[str, Any] = {"batch": record.batch, "tables": {name: len(part) for name, part in parts.items()}}
    about |= {"failures": [astuple(failure) for failure in record.failures], "notes": record.notes}
    return b"".join([f"{json.dumps(about)}\n".encode(), *parts.values()])
