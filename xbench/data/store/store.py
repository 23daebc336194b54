"""Prepared images on disk, decoded and resized once instead of in every run.

A folder holds the description, `about.json`, and a file per image, named by its key: a CRC-32 and the arrays as
safetensors. Outdated images stay until the folder is deleted.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from xbench.data.records import PreparedImage, Record
from xbench.data.store.fingerprint import record_key
from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape
from xbench.runtime.errors import UserError
from xbench.runtime.files import write_whole, writing

_SUFFIX = ".image"
_CRC_BYTES = 4
_COVERAGE = ("whole", "partial", "share", "kept")


class PreparedStore:
    """Prepared images by key, in a folder that may not exist yet; `description` comes from `describe`."""

    def __init__(self, folder: Path, description: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self._description = dict(description or {})

    def __len__(self) -> int:
        """Return the number of images, including outdated ones."""
        return sum(path.suffix == _SUFFIX for path in self._files())

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self._files())

    def holding(self, records: Iterable[Record]) -> int:
        """Return the number of records with an up-to-date image."""
        there = {*os.listdir(self.folder)} if self.folder.is_dir() else ()
        return sum(f"{record_key(record)}{_SUFFIX}" in there for record in records)

    def read(self, record: Record) -> PreparedImage | None:
        """Return the image of a record; None if it is missing, outdated or damaged."""
        with suppress(OSError):
            return unpack((self.folder / f"{record_key(record)}{_SUFFIX}").read_bytes())
        return None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open the store for adding images; UserError if another process has it open or it cannot be written."""
        from xbench.runtime.locks import Busy, try_lock

        try:
            with self._naming_the_folder():
                lock = try_lock(self.folder / "lock", inherited=False)
        except Busy as error:
            raise UserError(
                f"Another process is preparing the same images in {self.folder} ({error}): wait for it to end."
            ) from None
        try:
            with self._naming_the_folder():
                for path in self.folder.glob("*.partial"):
                    path.unlink()
                (self.folder / "about.json").write_text(json.dumps(self._description, indent=2) + "\n")
            yield
        finally:
            os.close(lock)

    def add(self, key: str, content: bytes) -> None:
        """Add the output of `pack` under the record's key from before reading; UserError if it cannot be written."""
        # Not flushed to disk, which can take longer than decoding: the checksum detects files torn by a crash.
        with self._naming_the_folder():
            write_whole(self.folder / f"{key}{_SUFFIX}", content, forced=False)

    def _files(self) -> list[Path]:
        with suppress(OSError):
            return [*self.folder.iterdir()]
        return []

    def _naming_the_folder(self) -> AbstractContextManager[None]:
        return writing(
            f"Prepared images cannot be written to {self.folder}",
            "Those written so far are kept: make room or give another folder with --data.cache, and run the command "
            "again.",
        )


def pack(image: PreparedImage) -> bytes:
    """Return the file content for a prepared image."""
    about = {name: getattr(image, name) for name in ("view", "findings", "notes", "reader_agreement", "image_size")}
    about["instances"] = {
        finding: [(item.kind, item.size, item.coordinates.tolist(), item.reader, item.outline) for item in items]
        for finding, items in image.instances.items()
    }
    arrays: dict[str, NDArray[Any]] = {
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        "pixels": image.pixels,
        "display": image.display,
    }
    for number, coverage in enumerate(image.coverage):
        arrays |= {f"{number} {part}": getattr(coverage, part) for part in _COVERAGE}
    content = save(arrays)
    return zlib.crc32(content).to_bytes(_CRC_BYTES, "little") + content


def unpack(content: bytes) -> PreparedImage | None:
    """Return the image in a file's content; None if the checksum is wrong."""
    arrays_only = content[_CRC_BYTES:]
    # The checksum of empty content is 0, as in files left empty by a crash.
    if not arrays_only or zlib.crc32(arrays_only) != int.from_bytes(content[:_CRC_BYTES], "little"):
        return None
    arrays = load(arrays_only)
    about, display = json.loads(arrays["about"].tobytes()), arrays["display"]
    parts = ([arrays[f"{number} {part}"] for part in _COVERAGE] for number in range(len(about["findings"])))
    coverage = (Coverage(display.shape, *of_finding) for of_finding in parts)
    instances = {
        finding: tuple(
            Shape(kind, tuple(size), np.array(numbers, np.float64), reader, outline)
            for kind, size, numbers, reader, outline in items
        )
        for finding, items in about["instances"].items()
    }
    view, found, notes = (tuple(about[name]) for name in ("view", "findings", "notes"))
    agreement = {finding: tuple(scores) for finding, scores in about["reader_agreement"].items()}
    size = about["image_size"] and tuple(about["image_size"])
    return PreparedImage(arrays["pixels"], view, display, found, tuple(coverage), notes, agreement, size, instances)
