"""Everything that a prepared image depends on, written down, so that no copy made from anything else is taken for it.

What all images of a run share is a description, whose digest names the folder of their copies: options, geometry,
libraries, source code. What is an image's own is its key: what the annotations say about it, and the state of its
files.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import albumentations as A
import lightning.pytorch as pl
import numpy as np
from numpy.typing import NDArray
from PIL import features

import xbench
from xbench.errors import UserError
from xbench.geometry.preprocessing import Preprocessing
from xbench.runtime.digests import files_sha256

if TYPE_CHECKING:
    from xbench.data.datamodule import ChestXrayDataModule
    from xbench.data.records import Record

__all__ = ["describe", "digest", "files_state", "record_key"]

Description = dict[str, Any]
"""Plain values, ready for JSON."""

_PACKAGE = Path(xbench.__file__).parent
# What turns a record into a prepared image; xbench.types and xbench.errors only name things.
_SOURCES = ("data/**/*.py", "geometry/coverage.py", "geometry/preprocessing.py")
_LIBRARIES = (
    "numpy",
    "opencv-python-headless",
    "opencv-python",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
    "pillow",
    "albumentations",
    "albucore",
    "pydicom",
    "pylibjpeg",
    "pylibjpeg-libjpeg",
    "pylibjpeg-openjpeg",
    "pycocotools",
)
# Classes of these are covered by the versions above, or have no part in the pixels.
_LIBRARY_CLASSES = frozenset({"abc", "albumentations", "builtins", "lightning", "torch", "typing"})
# Options and attributes of every dataset that choose images, but not what they look like; neutral ones do neither.
_NOT_IN_PIXELS = frozenset(
    {
        "batch_arrived",
        "batch_size",
        "finished",
        "gamma",
        "grid",
        "limit",
        "notes",
        "on_error",
        "prepared",
        "records",
        "stall_guard",
    }
)
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_PROBES = ((48, 64), (331, 250), (400, 701), (512, 512))


def describe(data: ChestXrayDataModule, preprocessing: Preprocessing) -> Description:
    """Describe what all prepared images of a dataset depend on, for a model with the given preprocessing.

    Mean and standard deviation are not part of it, for they are applied later. The geometry is described twice: by what
    it says of itself and by what it does to a few pictures, which also tells when its code or a library has changed.

    A data module from outside the package is described by the Python files in its folder and by all its attributes,
    since only the package's own are known to load an image from its record alone.

    Raises:
        UserError: Something is of a kind that cannot be written down reliably.
    """
    classes = [*type(data).__mro__, *_geometry_classes(preprocessing)]
    return {
        "dataset": _name(type(data)),
        "findings": list(data.findings),
        "grid": data.grid if isinstance(data.grid, str) else list(data.grid),
        "options": _options(data),
        "geometry": _geometry(preprocessing),
        "geometry_on_probes": _behaviour(preprocessing),
        "libraries": _versions(),
        "machine": platform.machine(),
        "sources": {_name(cls): text for cls in classes if (text := _source(cls)) is not None}
        | {"xbench": _own_sources()},
    }


def digest(description: Description) -> str:
    """Return the digest of a description, 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def record_key(record: Record) -> bytes | None:
    """Return the key of a record's image, 32 bytes, from the record and the present state of the image's files.

    Time stamps are of two kinds because an edit may keep the size and restore the time of modification, but not the
    time of the last change.

    Returns:
        None if the image cannot be prepared: its files are unknown or missing, or its source cannot be written down.
    """
    state = files_state(record)
    if state is None:
        return None
    try:
        text = _spell((record.image_id, record.source, state))
    except (_UnspeakableError, RecursionError, UserError):
        return None
    return hashlib.sha256(text.encode()).digest()


def files_state(record: Record) -> tuple[tuple[str, int, int, int], ...] | None:
    """Return path, size and both time stamps of each file of a record; None if they are unknown or one is missing."""
    if record.files is None:
        return None
    try:
        return tuple(
            (os.path.abspath(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            for path in record.files
            for stat in [os.stat(path)]
        )
    except OSError:
        return None


class _UnspeakableError(Exception):
    """A value without a text that is the same in every process and different for every other value."""


def _spell(value: Any) -> str:
    """Write a value as a text that no other value has."""
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"{_name(type(value))}({_spell_all(value)})"
    if isinstance(value, dict):
        pairs = (f"{_spell(key)}:{_spell(item)}" for key, item in value.items())
        return f"{_name(type(value))}{{{','.join(pairs)}}}"
    if isinstance(value, (set, frozenset)):
        return f"{_name(type(value))}{{{','.join(sorted(map(_spell, value)))}}}"
    if isinstance(value, PurePath):
        return f"path({os.path.abspath(value)!r})"
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufSU":
        return f"array({value.dtype.str},{value.shape},{hashlib.sha256(value.tobytes()).hexdigest()})"
    if is_dataclass(value) and not isinstance(value, type):
        form, names = _form(type(value))
        return f"{form}({_spell_all([getattr(value, name) for name in names])})"
    raise _UnspeakableError(_name(type(value)))


def _spell_all(values: Sequence[Any]) -> str:
    # Annotations may have thousands of points, and the short way takes a fifth of the time.
    return repr([*values]) if _PLAIN.issuperset(map(type, values)) else ",".join(map(_spell, values))


@cache
def _form(cls: type) -> tuple[str, tuple[str, ...]]:
    """Name and code of a dataclass, and its fields."""
    return f"{_name(cls)}@{_source(cls)}", tuple(field.name for field in fields(cls))


def _options(data: ChestXrayDataModule) -> dict[str, str]:
    """Attributes of a data module that has classes from outside the package, for its `load` may look at any."""
    if all(_source(cls) is None for cls in type(data).__mro__):
        return {}
    return _spell_attributes(data, _NOT_IN_PIXELS | data.neutral_options | vars(pl.LightningDataModule()).keys())


def _geometry(preprocessing: Preprocessing) -> Any:
    try:
        pipeline = preprocessing.geometry.to_dict()
        # Through JSON and back, so that what cannot be written is found here.
        text: Any = json.loads(json.dumps(pipeline, sort_keys=True, default=_refuse))
    except (TypeError, ValueError, NotImplementedError, AttributeError, _UnspeakableError) as error:
        raise UserError(
            f"The model's preprocessing cannot be written down ({error}), and so its images cannot be prepared."
        ) from error
    if type(preprocessing) is not Preprocessing:
        text["attributes"] = _spell_attributes(preprocessing, vars(Preprocessing([])).keys())
    return text


def _refuse(value: Any) -> Any:
    raise _UnspeakableError(_name(type(value)))


def _spell_attributes(owner: object, ignored: Set[str]) -> dict[str, str]:
    spelled = {}
    for name, value in vars(owner).items():
        if name in ignored:
            continue
        try:
            spelled[name] = _spell(value)
        except (_UnspeakableError, RecursionError) as error:
            raise UserError(
                f"Images of {_name(type(owner))} cannot be prepared: what its attribute {name!r} holds ({error}) "
                "cannot be told from other values. Keep plain values, paths, arrays and dataclasses of these there."
            ) from None
    return spelled


def _geometry_classes(preprocessing: Preprocessing) -> Iterator[type]:
    yield from type(preprocessing).__mro__
    transforms: list[A.BasicTransform | A.BaseCompose] = [preprocessing.geometry]
    while transforms:
        transform = transforms.pop()
        yield from type(transform).__mro__
        transforms += getattr(transform, "transforms", ())


def _behaviour(preprocessing: Preprocessing) -> str:
    """Digest of what the geometry makes of pictures of several shapes."""
    found = hashlib.sha256()
    for height, width in _PROBES:
        try:
            pixels, view = preprocessing.pixels(_probe(height, width))
            found.update(f"{pixels.dtype} {pixels.shape} {view}".encode() + pixels.tobytes())
        # Some geometries need images of a certain size, and raise whatever their library does.
        except Exception as error:
            found.update(_name(type(error)).encode())
    return found.hexdigest()


def _probe(height: int, width: int) -> NDArray[np.uint8]:
    """A picture (H, W) with smooth parts, edges and grain."""
    y, x = np.ogrid[:height, :width]
    grain = (x * 2654435761 + y * 40503 + x * y * 97) >> 7
    return ((x * 255 // width + y * 131 // height + (x // 17 + y // 23) % 2 * 60 + grain % 32) % 256).astype(np.uint8)


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = None
    # Pillow may be built with any.
    for codec in ("libjpeg_turbo", "jpg", "zlib"):
        found[f"pillow with {codec}"] = features.version(codec)
    return found


def _source(cls: type) -> str | None:
    """Digest of the code of a class; None where a version or the package's own sources cover it.

    What a class of the user's calls may lie in the files beside it, so these count as well.

    Raises:
        UserError: There is no file, as for a class typed into a notebook.
    """
    return _source_of(cls.__module__)


@cache
def _source_of(module: str) -> str | None:
    if module.partition(".")[0] in _LIBRARY_CLASSES:
        return None
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or not file.endswith(".py"):
        raise UserError(
            f"Images cannot be prepared with classes of {module}, which has no Python file: put them into one."
        )
    path = Path(file).resolve()
    if _PACKAGE.resolve() not in path.parents:
        return files_sha256(path.parent, path.parent.glob("*.py"))
    return None if path in _own_files() else files_sha256(path.parent, [path])


# Once: an edit while the process runs does not change what it runs.
@cache
def _own_sources() -> str:
    return files_sha256(_PACKAGE.resolve(), _own_files())


def _own_files() -> frozenset[Path]:
    return frozenset(path for pattern in _SOURCES for path in _PACKAGE.resolve().glob(pattern))


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
