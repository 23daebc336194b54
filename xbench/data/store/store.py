"""Prepared images on disk, so that they are decoded and resized once and not in every run.

A folder holds `rows.bin`, the images one after the other; `index.bin`, an entry of fixed size for each; and
`about.json`, what all of them depend on. Both binary files only ever grow, the rows first: whatever moment writing is
cut off at, the images indexed so far are whole. Nothing is believed without its checksum, nothing is ever unpickled,
and what cannot be read counts as absent. Images that no record asks for any more stay until the folder is deleted.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbench.data.annotations.folder import expand
from xbench.data.records import PreparedImage
from xbench.data.store.key import describe, digest, record_key
from xbench.errors import UserError
from xbench.geometry.coverage import Coverage
from xbench.geometry.preprocessing import Preprocessing
from xbench.runtime.paths import cache_folder

if TYPE_CHECKING:
    from xbench.data.datamodule import ChestXrayDataModule
    from xbench.data.records import Record

__all__ = ["PreparedStore", "find_store", "pack", "store_for", "unpack"]

# Key, offset, length, CRC-32 of the row; then the CRC-32 of these.
_ENTRY = struct.Struct("<32sQQI")
_CRC = struct.Struct("<I")
_ENTRY_SIZE = _ENTRY.size + _CRC.size
_LENGTH = struct.Struct("<I")
_PIXEL_TYPES = ("|u1", "<f4")
_MALFORMED = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(OverflowError, RecursionError, MemoryError, struct.error),
)


def store_for(data: ChestXrayDataModule, preprocessing: Preprocessing) -> PreparedStore:
    """Return the store of a dataset's images for a model with the given preprocessing, whether it exists or not.

    Raises:
        UserError: `--data.cache false`, or images of this dataset or for this model cannot be prepared.
    """
    if data.cache is False:
        raise UserError("--data.cache false leaves no place for prepared images.", exit_status=2)
    description = describe(data, preprocessing)
    return PreparedStore(_cache_folder(data) / f"{data.name}-{digest(description)}", description)


def find_store(data: ChestXrayDataModule, preprocessing: Preprocessing) -> PreparedStore | None:
    """Return the store of a dataset's images if there is one to read, else None."""
    # A look at the folder first: those who never prepared anything do not pay for a description.
    if data.cache is False or not any(_cache_folder(data).glob(f"{escape(data.name)}-*")):
        return None
    try:
        store = store_for(data, preprocessing)
    except UserError:
        return None
    return store if len(store) else None


def _cache_folder(data: ChestXrayDataModule) -> Path:
    return expand(data.cache) if isinstance(data.cache, str) else cache_folder()


class PreparedStore:
    """Prepared images by the key of their record.

    What others write after the first look is not seen. Copies in other processes look for themselves.

    Args:
        folder: Where it lies; need not exist.
        description: What its images depend on, in plain values.
    """

    def __init__(self, folder: Path, description: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self._description = dict(description or {})
        self._index: dict[bytes, _Place] | None = None
        self._rows: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_index": None, "_rows": None}

    def __len__(self) -> int:
        """Return the number of images, those included that no record asks for any more."""
        return len(self._places())

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir()) if self.folder.is_dir() else 0

    def holds(self, record: Record) -> bool:
        """Tell whether the index names the image of a record in the present state of its files."""
        return record_key(record) in self._places()

    def read(self, record: Record) -> PreparedImage | None:
        """Return the image of a record; None if it is not there, outdated or damaged."""
        places = self._places()
        key = record_key(record) if places else None
        place = None if key is None else places.get(key)
        row = None if place is None else self._read(place)
        return None if row is None else unpack(row)

    @contextmanager
    def writer(self) -> Iterator[Writer]:
        """Open the store for adding images; only one process can at a time.

        Raises:
            UserError: Another process is adding to it, or the folder cannot be written.
        """
        # Not there on Windows, where stores can then be read but not written.
        from xbench.runtime.locks import Busy, try_lock

        with ExitStack() as files:
            try:
                files.callback(os.close, try_lock(self.folder / "lock", inherited=False))
                (self.folder / "about.json").write_text(json.dumps(self._description, indent=2) + "\n")
                rows, index = (
                    files.enter_context(open(self.folder / name, "ab", buffering=0))
                    for name in ("rows.bin", "index.bin")
                )
                # An entry that was cut off would put all later ones out of step.
                index.truncate(index.tell() // _ENTRY_SIZE * _ENTRY_SIZE)
            except Busy:
                raise UserError(
                    f"Another process is preparing the same images in {self.folder}: wait for it to end."
                ) from None
            except OSError as error:
                raise _unwritable(self.folder, error) from error
            self._forget()
            yield Writer(self.folder, rows, index)
        self._forget()

    def _forget(self) -> None:
        if self._rows is not None:
            self._rows.close()
        self._index = self._rows = None

    def _places(self) -> dict[bytes, _Place]:
        if self._index is None:
            self._index = {}
            # No store, or none that this process may read.
            with suppress(OSError, ValueError):
                entries = (self.folder / "index.bin").read_bytes()
                with open(self.folder / "rows.bin", "rb") as rows:
                    self._rows = mmap.mmap(rows.fileno(), 0, access=mmap.ACCESS_READ)
                self._index = _parse_index(entries)
        return self._index

    def _read(self, place: _Place) -> bytearray | None:
        end = place.offset + place.length
        # A page of a file that someone has shortened since would end the process at the first touch.
        if self._rows is None or end > min(len(self._rows), self._rows.size()):
            return None
        with memoryview(self._rows) as rows:
            row = bytearray(rows[place.offset : end])
        return row if zlib.crc32(row) == place.crc else None


class Writer:
    """Adds images to a store.

    Args:
        folder: Of the store, for messages.
        rows: Open at its end, unbuffered.
        index: Likewise.
    """

    def __init__(self, folder: Path, rows: RawIOBase, index: RawIOBase) -> None:
        self._folder = folder
        self._rows = rows
        self._index = index

    def add(self, key: bytes, row: bytes) -> None:
        """Add an image.

        Args:
            key: Of its record, before the image was read.
            row: What `pack` returned.

        Raises:
            UserError: The disk is full, or the like.
        """
        try:
            offset = self._rows.seek(0, os.SEEK_END)
            _write(self._rows, row)
            entry = _ENTRY.pack(key, offset, len(row), zlib.crc32(row))
            _write(self._index, entry + _CRC.pack(zlib.crc32(entry)))
        except OSError as error:
            raise _unwritable(self._folder, error) from error


def pack(image: PreparedImage) -> bytes:
    """Write a prepared image as a row: the length of a JSON header, the header, then the pixels of everything.

    Raises:
        UserError: The geometry gives pixels of another type than it may.
    """
    if image.pixels.dtype.str not in _PIXEL_TYPES:
        raise UserError(f"The model's preprocessing gives {image.pixels.dtype} pixels, not uint8 or float32.")
    header = json.dumps(
        {
            "pixels": [image.pixels.dtype.str, *image.pixels.shape],
            "display": image.display.shape,
            "view": image.view,
            "findings": image.findings,
            "partial": [(len(coverage.partial), len(coverage.kept)) for coverage in image.coverage],
            "notes": image.notes,
            "reader_agreement": dict(image.reader_agreement),
        }
    ).encode()
    regions = [
        part.tobytes()
        for coverage in image.coverage
        for part in (
            *(coverage.whole, coverage.partial.astype("<u4")),
            *(coverage.share.astype("<f8"), coverage.kept.astype("<u4")),
        )
    ]
    parts = (header, image.pixels.tobytes(), image.display.tobytes(), *regions)
    return b"".join((_LENGTH.pack(len(header)), *parts))


def unpack(row: bytearray) -> PreparedImage | None:
    """Read a row, whose memory the image then shares; None if it is malformed."""
    try:
        (length,) = _LENGTH.unpack_from(row)
        header = json.loads(row[_LENGTH.size : _LENGTH.size + length])
        (kind, *size), (height, width) = header["pixels"], header["display"]
        left, top, right, bottom = map(float, header["view"])
        findings, notes = tuple(map(str, header["findings"])), tuple(map(str, header["notes"]))
        agreement = header["reader_agreement"].items()
        if kind not in _PIXEL_TYPES or len(size) != 2 or min(*size, height, width) < 1:
            return None
        pixels = np.dtype(kind).itemsize * size[0] * size[1]
        partial = [(int(count), int(kept)) for count, kept in header["partial"]]
        start = _LENGTH.size + length
        regions_start = start + pixels + height * width
        region_bytes = (height * width + 7) // 8
        sizes = [region_bytes + 12 * count + 4 * kept for count, kept in partial]
        if len(partial) != len(findings) or min((count for counts in partial for count in counts), default=0) < 0:
            return None
        if len(row) != regions_start + sum(sizes):
            return None
        coverage = []
        for counts, size_of_region in zip(partial, sizes, strict=True):
            coverage.append(_unpack_coverage(row, regions_start, (height, width), *counts))
            regions_start += size_of_region
        return PreparedImage(
            np.frombuffer(row, kind, size[0] * size[1], start).reshape(size),
            (left, top, right, bottom),
            np.frombuffer(row, np.uint8, height * width, start + pixels).reshape(height, width),
            findings,
            tuple(coverage),
            notes,
            {str(finding): (float(dice), float(iou)) for finding, (dice, iou) in agreement},
        )
    # Whatever bytes stand there, and however well their checksum fits.
    except _MALFORMED:
        return None


def _unpack_coverage(row: bytearray, start: int, shape: tuple[int, int], partial: int, kept: int) -> Coverage:
    whole = np.frombuffer(row, np.uint8, (shape[0] * shape[1] + 7) // 8, start)
    start += len(whole)
    # Copied, for the parts lie at any address.
    places = np.frombuffer(row, "<u4", partial, start).astype(np.uint32)
    share = np.frombuffer(row, "<f8", partial, start + 4 * partial).astype(float)
    return Coverage.checked(
        *(shape, whole, places, share), np.frombuffer(row, "<u4", kept, start + 12 * partial).astype(np.uint32)
    )


class _Place(NamedTuple):
    offset: int
    length: int
    crc: int


def _parse_index(entries: bytes) -> dict[bytes, _Place]:
    places = {}
    for start in range(0, len(entries) - _ENTRY_SIZE + 1, _ENTRY_SIZE):
        entry = entries[start : start + _ENTRY.size]
        if _CRC.unpack_from(entries, start + _ENTRY.size)[0] == zlib.crc32(entry):
            key, *place = _ENTRY.unpack(entry)
            places[key] = _Place(*place)
    return places


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"Prepared images cannot be written to {folder}: {error.strerror or error}. Those written so far are kept: "
        "make room or give another folder with --data.cache, and run the command again."
    )


def _write(file: RawIOBase, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) or 0 :]
