"""Prepared images on disk, decoded and resized once instead of in every run.

A folder holds the description, `about.json`, and a file per image, named by its key: a CRC-32 and the arrays as
safetensors. The digest of the description (options, geometry, libraries, machine and code) names the folder. A key
covers one image: its record and the state of its files. Outdated images stay until the folder is deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import numpy as np
from numpy.typing import NDArray
from PIL import features
from safetensors.numpy import load, save

from xbench.data.records import PreparedImage, Record
from xbench.geometry.preprocessing import Preprocessing
from xbench.geometry.regions import Coverage
from xbench.geometry.shapes import Shape
from xbench.runs.fingerprint import IMAGE_PACKAGES, package_versions
from xbench.runtime.digests import digest, modules_of, outside, source_sha256
from xbench.runtime.errors import UserError
from xbench.runtime.files import write_whole, writing
from xbench.runtime.locks import Busy, try_lock

if TYPE_CHECKING:
    import albumentations as A

    from xbench.data.datamodule import ChestXrayDataModule

# Code that turns a record into a prepared image; xbench.types and xbench.runtime.errors do not affect pixels.
_GEOMETRY = ("regions", "shapes", "preprocessing", "transforms")
_CODE = ("data/**/*.py", *(f"geometry/{name}.py" for name in _GEOMETRY))
# Attributes that choose or score images without changing their pixels. The grid has its own entry.
_NOT_IN_PIXELS = {"batch_arrived", "batch_size", "finished", "gamma", "grid", "limit", "notes", "on_error", "prepared"}
_NOT_IN_PIXELS |= {"records", "setup", "stall_guard", "_stated"}
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
        return len([*self.folder.glob(f"*{_SUFFIX}")])

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.glob("*"))

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


def describe(data: ChestXrayDataModule, preprocessing: Preprocessing) -> dict[str, Any]:
    """Describe what all prepared images of a dataset depend on for a model's preprocessing, in plain values.

    The package's datasets load an image from its record alone; for an external data module, all its attributes and the
    code in its folder count. Raise a `UserError` for values that cannot be serialized.
    """
    code: list[type | Callable[..., Any]] = [type(data), type(preprocessing)]
    transforms: list[A.BasicTransform | A.BaseCompose] = [preprocessing.geometry]
    while transforms:
        transform = transforms.pop()
        # `Lambda` serializes only the names of its functions.
        code += [type(transform), *getattr(transform, "custom_apply_fns", {}).values()]
        transforms += getattr(transform, "transforms", ())
    for module, file in outside(*code).items():
        if file is None or file.suffix != ".py":
            raise UserError(
                f"Images cannot be prepared with classes of {module}, which has no Python file: put them into one."
            )
    own = {name for name in modules_of(*code) if name.startswith("xbench.")}
    files = {f"{name.removeprefix('xbench.').replace('.', '/')}.py" for name in own}
    try:
        geometry = [json.loads(_text(preprocessing.geometry.to_dict()))]
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise UserError(
            f"The model's preprocessing cannot be serialized ({error}), so its images cannot be prepared."
        ) from error
    if type(preprocessing) is not Preprocessing:
        own_attributes = vars(Preprocessing(None)).keys() | {"geometry"}
        geometry += [_name(type(preprocessing)), _attributes(preprocessing, own_attributes)]
    ignored = _NOT_IN_PIXELS | data.neutral_options | vars(pl.LightningDataModule()).keys()
    return {
        "dataset": _name(type(data)),
        "findings": list(data.findings),
        "grid": data.grid if isinstance(data.grid, str) else list(data.grid),
        "options": _attributes(data, ignored) if outside(type(data)) else {},
        "geometry": geometry,
        "libraries": package_versions(IMAGE_PACKAGES),
        "codecs": {codec: features.version(codec) for codec in ("libjpeg_turbo", "jpg", "zlib")},
        "machine": platform.machine(),
        "code": source_sha256(*code, files=(*_CODE, *sorted(files))),
    }


def record_key(record: Record) -> str | None:
    """Return the key of a record's image, 64 hexadecimal digits; None if it cannot be prepared."""
    if (state := files_state(record)) is not None:
        with suppress(TypeError, ValueError, RecursionError):
            about: tuple[Any, ...] = (record.image_id, record.source, state)
            if record.queries is not None:
                about = (*about, [query.name for query in record.queries])
            return digest(about, _plain)
    return None


def files_state(record: Record) -> tuple[tuple[str, int, int, int], ...] | None:
    """Return path, size and both time stamps of each file; None if one is missing. Edits may restore one stamp only."""
    if record.files is None:
        return None
    try:
        stats = [(os.path.abspath(path), os.stat(path)) for path in map(os.fspath, record.files)]
    except OSError:
        return None
    return tuple((path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in stats)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return ["path", os.path.abspath(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [_name(type(value)), *(getattr(value, field.name) for field in fields(value))]
    if isinstance(value, Shape):
        return ["shape", *(getattr(value, name) for name in Shape.__slots__)]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufSU":
        return ["array", value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(_text, value))]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    raise TypeError(_name(type(value)))


def _attributes(owner: object, ignored: Collection[str]) -> dict[str, str]:
    texts = {}
    for name in vars(owner).keys() - ignored:
        try:
            texts[name] = _text(getattr(owner, name))
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(
                f"Images of {_name(type(owner))} cannot be prepared: its attribute {name!r} holds something that "
                f"cannot be serialized ({error}). Keep only plain values, paths, arrays and dataclasses of these there."
            ) from None
    return texts


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
