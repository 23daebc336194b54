"""What a running evaluation has finished so far, on disk, so that a run that is killed can go on.

Each process appends to a file of its own, one record per batch, each with its length and checksum: whatever moment
writing is cut off at, the records before are whole, and a torn last one is noticed and done again. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.cases import PackedCase
from xbench.errors import UserError
from xbench.rows import ImageRows, PairCounts
from xbench.scoring import BatchScores
from xbench.types import Failure, Note

__all__ = ["BatchRecord", "Journal", "difference", "read_about", "read_records"]

ABOUT = "about.json"
_FRAME = struct.Struct("<4sQI")
_MAGIC = b"xbj1"
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class BatchRecord:
    """Everything that a finished batch adds to a run.

    Attributes:
        batch: Number of the batch in the dataset's order, from 0.
        scores: Its scores; None if every image failed.
        failures: Images that could not be read.
        notes: What was odd.
        cases: Its scored pairs as pictures show them.
        pictures: Its radiographs as JPEG files, by name of the image.
    """

    batch: int
    scores: BatchScores | None
    failures: tuple[Failure, ...]
    notes: tuple[Note, ...]
    cases: tuple[PackedCase, ...]
    pictures: Mapping[str, bytes]


class Journal:
    """The file that a process appends its finished batches to.

    Args:
        folder: The journal's folder; files of earlier attempts stay as they are.
        rank: This process.

    Raises:
        UserError: The file cannot be written.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._file: FileIO | None = None

    def append(self, record: BatchRecord) -> None:
        """Append a batch; it counts as finished from here on.

        Raises:
            UserError: The disk is full or has become read-only.
        """
        payload = _pack(record)
        content = memoryview(_FRAME.pack(_MAGIC, len(payload), zlib.crc32(payload)) + payload)
        try:
            if self._file is None:
                self._file = self._create()
            while content:
                content = content[self._file.write(content) or 0 :]
        except OSError as error:
            raise UserError(
                f"The run cannot note what it has finished in {self._folder}: {error.strerror or error}. Everything "
                "finished before is kept: make room, and run the same command with --resume true."
            ) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _create(self) -> FileIO:
        """Open a new file: behind a record that an earlier attempt left torn, nothing would be found again."""
        for attempt in range(1, 1_000_000):
            try:
                return open(self._folder / f"{attempt:04d}-{self._rank}.records", "xb", buffering=0)
            except FileExistsError:
                continue
        raise UserError(f"{self._folder} holds a million attempts: delete it.")


def read_records(folder: Path) -> dict[int, BatchRecord]:
    """Read the finished batches of a journal, by their number. What is torn or damaged counts as not done.

    Raises:
        OSError: A file cannot be read.
    """
    records: dict[int, BatchRecord] = {}
    for path in sorted(folder.glob("*.records")):
        with path.open("rb") as file:
            for payload in _payloads(file):
                record = _unpack(payload)
                if record is None:
                    break
                records.setdefault(record.batch, record)
    return dict(sorted(records.items()))


def read_about(folder: Path) -> dict[str, Any] | None:
    """Read what a journal's numbers depend on; None if that is not there or damaged."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def difference(one: Any, other: Any, place: str = "") -> str | None:
    """Return the first place where two nested plain values differ, with both; None where they are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            found = difference(one.get(key), other.get(key), f"{place}.{key}" if place else str(key))
            if found:
                return found
        return None
    if one == other:
        return None
    said = [text if len(text := json.dumps(value)) <= 80 else f"{text[:77]}..." for value in (one, other)]
    return f"{place} is {said[1]} and was {said[0]}"


def _payloads(file: BufferedReader) -> Iterator[bytes]:
    size = os.fstat(file.fileno()).st_size
    while True:
        frame = file.read(_FRAME.size)
        if len(frame) < _FRAME.size:
            return
        magic, length, checksum = _FRAME.unpack(frame)
        # A damaged length must not ask for memory without bound.
        if magic != _MAGIC or length > size - file.tell():
            return
        payload = file.read(length)
        if zlib.crc32(payload) != checksum:
            return
        yield payload


def _pack(record: BatchRecord) -> bytes:
    """A JSON header with its length before it, then arrays and files one after the other."""
    blobs: list[bytes] = []

    def array(values: NDArray[Any]) -> dict[str, Any]:
        blobs.append(np.ascontiguousarray(values).tobytes())
        return {"dtype": values.dtype.str, "shape": values.shape}

    def table(rows: ImageRows | PairCounts) -> dict[str, Any]:
        return {
            field.name: array(value) if isinstance(value := getattr(rows, field.name), np.ndarray) else value
            for field in fields(rows)
        }

    header: dict[str, Any] = {
        "batch": record.batch,
        "failures": [asdict(failure) for failure in record.failures],
        "notes": record.notes,
        "cases": [],
        "pictures": {},
        "scores": None,
    }
    if record.scores is not None:
        header["scores"] = {
            "images": table(record.scores.images),
            "pairs": table(record.scores.pairs),
            "constant": record.scores.constant,
        }
    for case in record.cases:
        header["cases"].append({**asdict(case), "saliency": len(case.saliency), "region": len(case.region)})
        blobs += [case.saliency, case.region]
    for image_id, picture in record.pictures.items():
        header["pictures"][image_id] = len(picture)
        blobs.append(picture)
    text = json.dumps(header).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *blobs))


def _unpack(payload: bytes) -> BatchRecord | None:
    """Read a record; None if it is malformed, however well its checksum fits."""
    try:
        (length,) = _LENGTH.unpack_from(payload)
        header = json.loads(payload[_LENGTH.size : _LENGTH.size + length])
        position = _LENGTH.size + length

        def blob(size: int) -> bytes:
            nonlocal position
            if size < 0 or position + size > len(payload):
                raise ValueError("beyond the end")
            position += size
            return payload[position - size : position]

        def array(about: Mapping[str, Any]) -> NDArray[Any]:
            dtype, shape = np.dtype(about["dtype"]), tuple(map(int, about["shape"]))
            if dtype.hasobject or any(side < 0 for side in shape):
                raise ValueError("no array of numbers")
            count = int(np.prod(shape, dtype=np.int64))
            return np.frombuffer(blob(count * dtype.itemsize), dtype).reshape(shape).copy()

        def table(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: array(value) if isinstance(value, dict) else value for name, value in values.items()}

        scores = None
        if header["scores"] is not None:
            scores = BatchScores(
                ImageRows(**table(header["scores"]["images"])),
                PairCounts(**table(header["scores"]["pairs"])),
                tuple((int(index), str(name), int(column)) for index, name, column in header["scores"]["constant"]),
            )
        cases = []
        for case in header["cases"]:
            left, top, right, bottom = map(float, case["view"])
            height, width = map(int, case["shape"])
            stored = {"saliency": blob(case["saliency"]), "region": blob(case["region"])}
            cases.append(PackedCase(**case | stored | {"view": (left, top, right, bottom), "shape": (height, width)}))
        return BatchRecord(
            batch=int(header["batch"]),
            scores=scores,
            failures=tuple(Failure(**failure) for failure in header["failures"]),
            notes=tuple(Note(*map(str, note)) for note in header["notes"]),
            cases=tuple(cases),
            pictures={str(image_id): blob(size) for image_id, size in header["pictures"].items()},
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, struct.error):
        return None
