"""Journal of finished batches on disk, so that a killed run can be resumed.

Each batch is a file with a line of JSON and Arrow tables, which is renamed into place when complete, with a checksum in
its name. If a process or machine dies at any time, a batch is either intact or counts as unfinished. Nothing is
pickled.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
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
    """Data that a finished batch adds to a run."""

    batch: int  # number in the dataset's order, from 0
    tables: Mapping[str, Any]  # tables of readable images by file name, or the result of `encoded`
    failures: tuple[Failure, ...]
    notes: tuple[Note, ...]


def append_record(folder: Path, record: BatchRecord) -> None:
    """Write a batch to the journal in a folder, which finishes it."""
    content = _encode(record)
    # Not forced to disk, which would take longer than the batch; the checksum reveals missing data.
    write_whole(folder / f"{record.batch:06d}-{zlib.crc32(content):08x}.arrow", content, forced=False)


def finished_batches(folder: Path) -> dict[int, Path]:
    """Return the journal's intact files by batch, in the dataset's order."""
    # Repeated batches are equal.
    found = {int(path.name.partition("-")[0]): path for path in folder.glob("*.arrow") if _intact(path)}
    return dict(sorted(found.items()))


def all_batches(folder: Path, expected: int) -> Iterator[BatchRecord]:
    """Yield all batches in order; raise a UserError at the end if any is missing."""
    finished = set[int]()
    # Longer numbers are larger. Repeated batches are equal.
    for path in sorted(folder.glob("*.arrow"), key=lambda path: (len(path.name), path.name)):
        if (content := _intact(path)) is not None and (record := _decode(content)).batch not in finished:
            finished.add(record.batch)
            yield record
    if len(finished) != expected:
        raise UserError(
            f"{folder} holds {len(finished)} of {expected} finished batches, because other processes wrote to another "
            "disk: --trainer.default_root_dir must be a folder that all nodes share."
        )


def read_record(path: Path) -> BatchRecord:
    """Read a finished batch; raise a ValueError if its file changed since `finished_batches`."""
    content = _intact(path)
    if content is None:
        raise ValueError(f"{path} changed while it was read")
    return _decode(content)


def _decode(content: bytes) -> BatchRecord:
    from xbench.types import Failure, Note

    end = content.index(b"\n") + 1
    about = json.loads(content[:end])
    tables = {}
    for name, size in about["tables"].items():
        # Copied, because a view would keep the whole content, including maps, in memory.
        tables[name] = decoded(name, content[end : end + size])
        end += size
    failures, notes = (Failure(*one) for one in about["failures"]), (Note(*one) for one in about["notes"])
    return BatchRecord(about["batch"], tables, tuple(failures), tuple(notes))


def read_about(folder: Path) -> dict[str, Any] | None:
    """Read the fingerprint of a journal; None if it is missing or damaged."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def _intact(path: Path) -> bytes | None:
    """Return the content of a journal file; None if its checksum does not match."""
    name = _NAME.fullmatch(path.name)
    content = path.read_bytes() if name else b""
    return content if name and zlib.crc32(content) == int(name[2], 16) else None


def encoded(table: pa.Table) -> pa.Buffer | bytes:
    """Encode a table without its schema, which takes longer than a batch's rows; empty tables become empty."""
    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
    return batches[0].serialize() if batches else b""


def decoded(name: str, content: Any) -> pa.Table:
    """Decode the result of `encoded`."""
    batches = [pa.ipc.read_record_batch(pa.py_buffer(content), SCHEMAS[name])] if len(content) else []
    return pa.Table.from_batches(batches, schema=SCHEMAS[name])


def _encode(record: BatchRecord) -> bytes:
    parts = {name: encoded(part) if isinstance(part, pa.Table) else part for name, part in record.tables.items()}
    about: dict[str, Any] = {"batch": record.batch, "tables": {name: len(part) for name, part in parts.items()}}
    about |= {"failures": [astuple(failure) for failure in record.failures], "notes": record.notes}
    return b"".join([f"{json.dumps(about)}\n".encode(), *parts.values()])
