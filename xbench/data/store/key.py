"""What makes a prepared image stale.

What all images of a run depend on is a description, whose digest names the folder of their copies: options, geometry,
libraries, machine, and the code of the package and of every class from outside of it. What one image depends on is its
key: what the annotations say about it, and the state of its files.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import numpy as np
from PIL import features

import xbench
from xbench.data.records import Record
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.geometry.shapes import Shape
from xbench.runtime.digests import files_sha256
from xbench.runtime.errors import UserError

if TYPE_CHECKING:
    import albumentations as A

    from xbench.data.datamodule import ChestXrayDataModule

_PACKAGE = Path(xbench.__file__).parent
# The code that turns a record into a prepared image; xbench.types and xbench.runtime.errors only name things.
_CODE = ("data/**/*.py", "geometry/coverage.py", "geometry/shapes.py", "geometry/preprocessing.py")
_LIBRARIES = (
    *("numpy", "opencv-python-headless", "opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless"),
    *("pillow", "albumentations", "albucore", "pydicom", "pylibjpeg", "pylibjpeg-libjpeg", "pylibjpeg-openjpeg"),
    "pycocotools",
)
# The versions above cover the classes of these packages, or they have no part in the pixels.
_LIBRARY_CLASSES = frozenset({"abc", "albumentations", "builtins", "lightning", "torch", "typing"})
# Attributes of every data module that choose or score images, but do not change what they look like. The grid has an
# entry of its own.
_NOT_IN_PIXELS = {"batch_arrived", "batch_size", "finished", "gamma", "grid", "limit", "notes", "on_error", "prepared"}
_NOT_IN_PIXELS |= {"records", "stall_guard"}


def describe(data: ChestXrayDataModule, preprocessing: Preprocessing) -> dict[str, Any]:
    """Describe, in plain values, what all prepared images of a dataset depend on, for a model's preprocessing.

    Mean and standard deviation are left out, for they are applied later. The package's own datasets load an image from
    its record alone. A data module from outside may look at any of its attributes and call any code in its folder, so
    all of these count. What cannot be written as plain values is refused with a `UserError`.
    """
    modules = {cls.__module__ for cls in (*type(data).__mro__, *type(preprocessing).__mro__)}
    transforms: list[A.BasicTransform | A.BaseCompose] = [preprocessing.geometry]
    while transforms:
        transform = transforms.pop()
        modules |= {cls.__module__ for cls in type(transform).__mro__}
        # Of a `Lambda`, which is written down by its name alone.
        modules |= {function.__module__ for function in getattr(transform, "custom_apply_fns", {}).values()}
        transforms += getattr(transform, "transforms", ())
    code = {module: found for module in modules if (found := _code_of(module)) is not None}
    own = all(_code_of(cls.__module__) is None for cls in type(data).__mro__)
    try:
        geometry = [json.loads(_text(preprocessing.geometry.to_dict()))]
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise UserError(
            f"The model's preprocessing cannot be written down ({error}), and so its images cannot be prepared."
        ) from error
    if type(preprocessing) is not Preprocessing:
        own_attributes = vars(Preprocessing(stretch((1, 1)))).keys()
        geometry += [_name(type(preprocessing)), _attributes(preprocessing, own_attributes)]
    # Pillow may be built with any of these.
    libraries = {f"pillow with {codec}": features.version(codec) for codec in ("libjpeg_turbo", "jpg", "zlib")}
    for library in _LIBRARIES:
        try:
            libraries[library] = version(library)
        except PackageNotFoundError:
            libraries[library] = None
    ignored = _NOT_IN_PIXELS | data.neutral_options | vars(pl.LightningDataModule()).keys()
    return {
        "dataset": _name(type(data)),
        "findings": list(data.findings),
        "grid": data.grid if isinstance(data.grid, str) else list(data.grid),
        "options": {} if own else _attributes(data, ignored),
        "geometry": geometry,
        "libraries": libraries,
        "machine": platform.machine(),
        "code": code | {"xbench": _own_code()},
    }


def digest(description: dict[str, Any]) -> str:
    """Return the digest of a description, 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def record_key(record: Record) -> str | None:
    """Return the key of a record's image, 64 hexadecimal digits, from the record and the present state of its files.

    None if the image cannot be prepared: its files are unknown or missing, or its source is not of plain values.
    """
    if (state := files_state(record)) is not None:
        with suppress(TypeError, ValueError, RecursionError, UserError):
            return hashlib.sha256(_text((record.image_id, record.source, state)).encode()).hexdigest()
    return None


def files_state(record: Record) -> tuple[tuple[str, int, int, int], ...] | None:
    """Return path, size and both time stamps of each file of a record; None if they are unknown or one is missing.

    Two time stamps, because an edit may keep the size and restore the time of modification, but not the time of the
    last change.
    """
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


def _text(value: Any) -> str:
    """Write a value as a text that is the same in every process; TypeError or ValueError if it has none."""
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        return [_name(kind), _code_of(kind.__module__), *(getattr(value, field.name) for field in fields(kind))]
    if isinstance(value, Shape):
        return ["shape", *(getattr(value, name) for name in Shape.__slots__)]
    if isinstance(value, PurePath):
        return ["path", os.path.abspath(value)]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufSU":
        return ["array", value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(_text, value))]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    raise TypeError(_name(type(value)))


def _attributes(owner: object, ignored: Collection[str]) -> dict[str, str]:
    texts = {}
    for name, value in vars(owner).items():
        if name in ignored:
            continue
        try:
            texts[name] = _text(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(
                f"Images of {_name(type(owner))} cannot be prepared: its attribute {name!r} holds something that "
                f"cannot be written down ({error}). Keep plain values, paths, arrays and dataclasses of these there."
            ) from None
    return texts


@cache
def _code_of(module: str) -> str | None:
    """Digest the code of a module; None where a version or the digest of the package's own code covers it.

    A module from outside the package may call what lies in the files beside it, so these count as well. One without a
    file, as for a class typed into a notebook, is refused with a `UserError`.
    """
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
def _own_code() -> str:
    return files_sha256(_PACKAGE.resolve(), _own_files())


def _own_files() -> frozenset[Path]:
    return frozenset(path for pattern in _CODE for path in _PACKAGE.resolve().glob(pattern))


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
