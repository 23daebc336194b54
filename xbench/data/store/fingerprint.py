"""Decide when a prepared image is stale.

The digest of a description (options, geometry, libraries, machine and code) names the folder of a run's images. A key
covers one image: its record and the state of its files.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import numpy as np
from PIL import features

from xbench.data.records import Record
from xbench.geometry.preprocessing import Preprocessing
from xbench.geometry.shapes import Shape
from xbench.runs.fingerprint import IMAGE_PACKAGES, package_versions
from xbench.runtime.digests import digest, modules_of, outside, source_sha256
from xbench.runtime.errors import UserError

if TYPE_CHECKING:
    import albumentations as A

    from xbench.data.datamodule import ChestXrayDataModule

# Code that turns a record into a prepared image; xbench.types and xbench.runtime.errors do not affect pixels.
_GEOMETRY = ("regions", "shapes", "preprocessing", "transforms")
_CODE = ("data/**/*.py", *(f"geometry/{name}.py" for name in _GEOMETRY))
# Attributes that choose or score images without changing their pixels. The grid has its own entry.
_NOT_IN_PIXELS = {"batch_arrived", "batch_size", "finished", "gamma", "grid", "limit", "notes", "on_error", "prepared"}
_NOT_IN_PIXELS |= {"records", "setup", "stall_guard", "_stated"}


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
        stats = [(os.path.abspath(path), os.stat(path)) for path in record.files]
    except OSError:
        return None
    return tuple((path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in stats)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return [_name(type(value)), *(getattr(value, field.name) for field in fields(value))]
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
