"""What a running evaluation has finished so far, on disk, so that a run that is killed can go on.

Each process appends to a file of its own, one record per batch, each with its length and checksum: whatever moment
writing is cut off at, the records before are whole, and a torn last one is noticed and done again. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
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

from xbench.errors import UserError
from xbench.geometry.coverage import Coverage
from xbench.runs.maps import SavedImage
from xbench.runs.scores import BatchScores, ImageScores, PairCounts
from xbench.types import Failure, Note

__all__ = ["BatchRecord", "Journal", "Records", "difference", "read_about"]

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
        kept: What the run keeps of its images besides numbers, in the dataset's order.
    """

    batch: int
    scores: BatchScores | None
    failures: tuple[Failure, ...]
    notes: tuple[Note, ...]
    kept: tuple[SavedImage, ...]


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


class Records:
    """The finished batches of a journal, in the dataset's order; each is read anew when its turn comes.

    What is torn or damaged counts as not done. Of a batch that was done twice the first record counts.

    Args:
        folder: The journal's folder.

    Raises:
        OSError: A file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        places: dict[int, tuple[Path, int]] = {}
        for path in sorted(folder.glob("*.records")):
            with path.open("rb") as file:
                while (payload := _payload(file)) is not None:
                    record = _unpack(payload)
                    if record is None:
                        break
                    places.setdefault(record.batch, (path, file.tell() - _FRAME.size - len(payload)))
        self._places = dict(sorted(places.items()))

    @property
    def batches(self) -> tuple[int, ...]:
        """Numbers of the batches, ascending."""
        return tuple(self._places)

    def forget(self, count: int) -> None:
        """Leave out the last so many batches."""
        for batch in self.batches[len(self._places) - count :]:
            del self._places[batch]

    def __iter__(self) -> Iterator[BatchRecord]:
        """Go through the records.

        Raises:
            OSError: A file cannot be read.
            ValueError: It has changed since.
        """
        for batch, (path, start) in self._places.items():
            with path.open("rb") as file:
                file.seek(start)
                payload = _payload(file)
            record = None if payload is None else _unpack(payload)
            if record is None or record.batch != batch:
                raise ValueError(f"{path} has changed while it was read")
            yield record


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


def _payload(file: BufferedReader) -> bytes | None:
    """Read the next record; None if there is no whole one."""
    frame = file.read(_FRAME.size)
    if len(frame) < _FRAME.size:
        return None
    magic, length, checksum = _FRAME.unpack(frame)
    # A damaged length must not ask for memory without bound.
    if magic != _MAGIC or length > os.fstat(file.fileno()).st_size - file.tell():
        return None
    payload = file.read(length)
    return payload if zlib.crc32(payload) == checksum else None


def _pack(record: BatchRecord) -> bytes:
    """A JSON header with its length before it, then arrays and files one after the other."""
    blobs: list[bytes] = []

    def array(values: NDArray[Any]) -> dict[str, Any]:
        blobs.append(np.ascontiguousarray(values).tobytes())
        return {"dtype": values.dtype.str, "shape": values.shape}

    def table(rows: ImageScores | PairCounts) -> dict[str, Any]:
        return {
            field.name: array(value) if isinstance(value := getattr(rows, field.name), np.ndarray) else value
            for field in fields(rows)
        }

    header: dict[str, Any] = {
        "batch": record.batch,
        "failures": [asdict(failure) for failure in record.failures],
        "notes": record.notes,
        "scores": None,
    }
    if record.scores is not None:
        header["scores"] = {
            "images": table(record.scores.images),
            "pairs": table(record.scores.pairs),
            "constant": record.scores.constant,
        }
    header["kept"] = [
        {
            "index": image.index,
            "image_id": image.image_id,
            "image_sha256": image.image_sha256,
            "view": image.view,
            "saliency": array(image.saliency),
            "regions": [
                [
                    *(column, coverage.shape, array(coverage.whole), array(coverage.partial)),
                    *(array(coverage.share), array(coverage.kept)),
                ]
                for column, coverage in image.regions.items()
            ],
            "scored": image.scored,
            "picture": None if image.picture is None else array(np.frombuffer(image.picture, np.uint8)),
        }
        for image in record.kept
    ]
    text = json.dumps(header).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *blobs))


def _unpack(payload: bytes) -> BatchRecord | None:
    """Read a record; None if it is malformed, however well its checksum fits."""
    try:
        (length,) = _LENGTH.unpack_from(payload)
        header = json.loads(payload[_LENGTH.size : _LENGTH.size + length])
        position = _LENGTH.size + length

        def array(about: Mapping[str, Any]) -> NDArray[Any]:
            nonlocal position
            dtype, shape = np.dtype(about["dtype"]), tuple(map(int, about["shape"]))
            if dtype.hasobject or any(side < 0 for side in shape):
                raise ValueError("no array of numbers")
            start, count = position, math.prod(shape)
            position += count * dtype.itemsize
            if position > len(payload):
                raise ValueError("beyond the end")
            return np.frombuffer(payload, dtype, count, start).reshape(shape).copy()

        def table(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: array(value) if isinstance(value, dict) else value for name, value in values.items()}

        scores = None
        if header["scores"] is not None:
            scores = BatchScores(
                ImageScores(**table(header["scores"]["images"])),
                PairCounts(**table(header["scores"]["pairs"])),
                tuple((int(index), str(name), int(column)) for index, name, column in header["scores"]["constant"]),
            )
        kept = []
        for image in header["kept"]:
            left, top, right, bottom = map(float, image["view"])
            kept.append(
                SavedImage(
                    index=int(image["index"]),
                    image_id=str(image["image_id"]),
                    image_sha256=str(image["image_sha256"]),
                    view=(left, top, right, bottom),
                    saliency=array(image["saliency"]),
                    regions={
                        int(column): Coverage.checked((int(height), int(width)), *map(array, parts))
                        for column, (height, width), *parts in image["regions"]
                    },
                    scored=tuple(map(int, image["scored"])),
                    picture=None if image["picture"] is None else array(image["picture"]).tobytes(),
                )
            )
        return BatchRecord(
            batch=int(header["batch"]),
            scores=scores,
            failures=tuple(Failure(**failure) for failure in header["failures"]),
            notes=tuple(Note(*map(str, note)) for note in header["notes"]),
            kept=tuple(kept),
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, struct.error):
        return None
