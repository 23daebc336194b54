"""Readers of untrusted files: folders, archives, arrays and tables. Nothing in them is executed."""

from __future__ import annotations

import csv
import io
import math
import posixpath
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.strict import check_distinct

ARRAYS = (".npy", ".npz")
PICTURES = (".png", ".tif", ".tiff")

_LARGEST = 2**30  # bytes of a file or array; a map of 8,192 x 8,192 takes a quarter
_MODES = ("1", "L", "I", "I;16", "I;16B", "F")  # Pillow's modes with one number per pixel


class Files:
    """Files in a folder, a zip file or an uncompressed tar archive, without hidden ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        found: list[tuple[str, int, Callable[[], Any]]]  # name, size and how to open it
        with named(root):
            if root.is_dir():
                files = [(path, path.relative_to(root).as_posix()) for path in root.rglob("*") if path.is_file()]
                found = [(name, path.stat().st_size, partial(path.open, "rb")) for path, name in files]
            elif zipfile.is_zipfile(root):
                zipped = zipfile.ZipFile(root)
                infos = [info for info in zipped.infolist() if not info.is_dir()]
                found = [(info.filename, info.file_size, partial(zipped.open, info)) for info in infos]
            else:
                # Random access to a compressed tar file would unpack it again for each map.
                tar = tarfile.open(root, "r:")  # noqa: SIM115
                found = [(info.name, info.size, partial(tar.extractfile, info)) for info in tar if info.isfile()]
        members: dict[str, tuple[str, int, Callable[[], Any]]] = {}
        for member in found:
            name, path = member[0], posixpath.normpath(member[0]).lstrip("/")
            if (twin := members.setdefault(path, member)) is not member:
                both = f"{name} twice" if twin[0] == name else f"{twin[0]} and {name}, which are one file"
                raise UsageError(f"{root} holds {both}.")
        shown = (path for path in members if not any(part[:1] == "." for part in path.split("/")))
        self._members = {path: members[path] for path in sorted(shown)}
        self.names = tuple(self._members)

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise a UserError if it is unreadable or larger than 1 GiB."""
        _, size, opened = self._members[name]
        with named(self.root, name):
            if size > _LARGEST:
                raise ValueError(f"it has {size} bytes, and no map has more than {_LARGEST}")
            with opened() as stream:
                content: bytes = stream.read()
            if len(content) != size:
                raise ValueError("it is cut off, or was changed")
            return content


@contextmanager
def named(root: Path, name: str = "", of: str = "") -> Iterator[None]:
    """Turn any error from damaged files into a UserError that names the file; `of` describes the content."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # readers of arrays, pictures and archives raise many kinds
        place = f"{root}/{name}" if name else f"{root}"
        what = f" ({of})" if of else ""
        problem = str(error) or type(error).__name__
        raise UsageError(f"{place}{what} cannot be read: {' '.join(problem.split())[:300]}.") from error


def read_csv(path: Path, *wanted: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the position and stripped values of each row; raise a ValueError for a row of another length."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        names = [name.strip() for name in next(reader, [])]
        check_distinct(names, "column")
        if lacking := [name for name in wanted if name not in names]:
            raise ValueError(f"it lacks the columns {', '.join(lacking)}")
        for values in ([value.strip() for value in row] for row in reader if any(map(str.strip, row))):
            if len(values) < len(names) or any(values[len(names) :]):
                cut = ", as if it was cut off" * (len(values) < len(names))
                raise ValueError(f"row {reader.line_num}: {len(values)} values for the {len(names)} columns{cut}")
            yield f"row {reader.line_num}", dict(zip(names, values, strict=False))


def read_npy(content: bytes) -> NDArray[Any]:
    """Return the array in an npy file; raise a ValueError for objects or missing values."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its format {version} is not that of a plain array")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject or dtype.names is not None:
        raise ValueError("it holds Python objects or records: save plain numbers")
    # Check before allocating, because a short header may claim any shape.
    if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"its {len(content)} bytes are not an array {shape} of {dtype}; it may be cut off")
    file.seek(0)
    return np.asarray(np.load(file, allow_pickle=False))


def read_npz(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in an npz file by name, checked like `read_npy`."""
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(member.file_size for member in archive.infolist()) > _LARGEST:
            raise ValueError(f"unpacked it has more than {_LARGEST} bytes")
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"it holds {name} twice")
            arrays[name] = read_npy(archive.read(member))
    return arrays


def read_picture(content: bytes) -> NDArray[Any]:
    """Return the gray values (h, w) of a PNG or TIFF file; raise a ValueError for colors and several pages."""
    with Image.open(io.BytesIO(content), formats=("PNG", "TIFF")) as picture:
        if picture.mode not in _MODES:
            raise ValueError(f"its pixels are {picture.mode}; a map has one number per pixel and no colors")
        if getattr(picture, "n_frames", 1) != 1:
            raise ValueError("it has several pages")
        if math.prod(picture.size) > _LARGEST // 8:
            raise ValueError(f"it has {picture.size} pixels")
        return np.asarray(picture)


def as_map(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return a map (h, w) as float32 without leading axes of length 1; raise a ValueError for other arrays and NaN."""
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"its shape is {array.shape}; a map has rows and columns")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"its values are {array.dtype}; a map has real numbers")
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("it holds NaN, infinity or values beyond float32")
    return values
