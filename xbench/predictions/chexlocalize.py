"""Readers of CheXlocalize's files: pickled heat maps, drawn masks and points, tuned thresholds."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from xbench.findings.names import canonical
from xbench.geometry.shapes import coco_runs, mask_of
from xbench.predictions.files import named, read_csv
from xbench.runtime.errors import UserError
from xbench.runtime.strict import decimal, read_json

Pair = tuple[str, str]
"""Image and finding."""

Tuned = dict[str, dict[str, Any]]
"""By finding: `threshold` of the mask and `cutoff` of the probability; None without a file."""

_LARGEST = 2**31
_MOST_STEPS = 10_000  # of a pickle; a heat map takes a few hundred
_REFUSED = {"ADDITEMS", "FROZENSET", "PERSID", "EXT1", "EXT2", "EXT4", "INST", "OBJ", "NEXT_BUFFER"}
_REFUSED |= {"NEWOBJ", "NEWOBJ_EX"}
_MAGIC = 0x1950A86A20F9469CFC6C, 1001  # magic number and version of PyTorch's pickled storages
_STORAGES = {
    **{"DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BoolStorage": "?", "ByteStorage": "u1"},
    **{"CharStorage": "i1", "ShortStorage": "<i2", "IntStorage": "<i4", "LongStorage": "<i8"},
}
_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v2"): "tensor",
    ("torch.storage", "_load_from_bytes"): "storage",
    ("collections", "OrderedDict"): "hooks",
    ("torch", "Size"): "size",
    ("numpy", "dtype"): "dtype",
    ("numpy", "ndarray"): "array",
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy.core.numeric", "_frombuffer"): "buffer",
    ("numpy.core.multiarray", "scalar"): "scalar",
    ("_codecs", "encode"): "bytes",
    **{(module, name): name for module in ("torch", "torch.cuda") for name in _STORAGES},
}


def read_pickle(content: bytes) -> tuple[NDArray[Any], float | None]:
    """Return map and probability from a pickled dict; raise a ValueError for any other content.

    The keys are `map`, an array or torch tensor (1, 1, h, w), and optionally `prob`. Pickles are untrusted: no function
    that the file names is called, and every size is checked.
    """
    holds = _load(io.BytesIO(content))
    if not isinstance(holds, dict) or "map" not in holds:
        raise ValueError("it holds no dict with a map")
    probability = holds.get("prob")
    return _array(holds["map"]), None if probability is None else float(_array(probability).reshape(()))


def read_drawn(path: Path) -> dict[Pair, Any] | None:
    """Return drawn masks (for `decoded`) or points by image and finding; None for other JSON."""
    with named(path):
        content = read_json(path, _LARGEST)
    if not isinstance(content, dict) or not all(isinstance(of, dict) for of in content.values()):
        return None
    return {(image, finding): entry for image, of in content.items() for finding, entry in of.items()}


def drawn_in(path: Path) -> Literal["masks", "points"] | None:
    """Return the kind of annotation in a JSON file; None for a list, as in COCO results."""
    if (content := read_drawn(path)) is None:
        return None
    return "points" if isinstance(next(iter(content.values()), None), list) else "masks"


def read_points(path: Path) -> dict[Pair, list[list[float]]]:
    """Return the points of each pair in pixels of its image, moved to pixel centers."""
    found = {}
    for pair, points in (read_drawn(path) or {}).items():
        with named(path, of=f"image {pair[0]}, finding {pair[1]}"):
            numbers = np.array(points).reshape(-1, 2) if points else np.zeros((0, 2))
            if numbers.shape != (len(points), 2) or numbers.dtype.kind not in "if" or not np.isfinite(numbers).all():
                raise ValueError(f"{points!r:.80} are not points")
            found[pair] = (np.trunc(numbers) + 0.5).tolist()
    return found


def decoded(mask: Any) -> NDArray[np.float32]:
    """Decode a mask (h, w) of 0 and 1 from COCO's compressed run lengths, or raise a ValueError."""
    with suppress(TypeError, KeyError, ValueError, UserError):
        (height, width), text = mask["size"], mask["counts"]
        sides = isinstance(height, int) and isinstance(width, int) and 0 < height * width < 2**30
        if sides and re.fullmatch("[0-o]+", text):
            return mask_of(coco_runs(text, height, width), height, width).astype(np.float32)
    raise ValueError(f"{mask!r:.80} is not a mask in run lengths")


def read_tuned(
    paths: Sequence[Path],
    findings: Sequence[str],
    thresholds: Sequence[str],
    cutoffs_of: Callable[[str], Sequence[float]],
) -> Tuned:
    """Read the authors' tuned thresholds and probability cut-offs.

    The files are `tuning_results.csv` (threshold, task) and `probability_tuning_results.csv` (prob_threshold, mIoU,
    task). `thresholds` are the permitted ones, with one decimal. As in the authors' code, the first permitted cut-off
    with the largest mIoU is taken.
    """
    tuned: Tuned = {finding: {"threshold": None, "cutoff": None} for finding in findings}
    for path in paths:
        with named(path, of="--tune"):
            rows = [row for _, row in read_csv(path)]
            kind = "cutoff" if rows and {"prob_threshold", "mIoU", "task"} <= {*rows[0]} else "threshold"
            if kind == "threshold" and not (rows and {"threshold", "task"} <= {*rows[0]}):
                raise ValueError(
                    "give a finished run, or CheXlocalize's tuning_results.csv (threshold, task) and "
                    "probability_tuning_results.csv (prob_threshold, mIoU, task)"
                )
            if any(values[kind] is not None for values in tuned.values()):
                raise ValueError(f"another file has each finding's {kind} too")
            if not {canonical(row["task"]) or row["task"] for row in rows} & {*findings}:
                raise ValueError(f"it has no row of {', '.join(findings)}")
            best: dict[str, float] = {}
            for row in rows:
                finding = canonical(row["task"]) or row["task"]
                if finding not in tuned:
                    continue
                if kind == "cutoff":
                    cutoff, score = decimal(row["prob_threshold"]), decimal(row["mIoU"])
                    if cutoff in cutoffs_of(finding) and score > best.get(finding, -math.inf):
                        tuned[finding]["cutoff"], best[finding] = cutoff, score
                    continue
                threshold = f"{(number := decimal(row['threshold'])):.1f}"
                known = threshold in thresholds and abs(float(threshold) - number) < 1e-9
                if not known or tuned[finding]["threshold"] is not None:
                    raise ValueError(f"{finding} has the threshold {number}: give one of {', '.join(thresholds)}, once")
                tuned[finding]["threshold"] = threshold
    return tuned


class _Known:
    """Record of a call to a known function or class, with its arguments and state. Nothing is called."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        self.kind, self.arguments, self.state = kind, arguments, None

    def __call__(self, *arguments: Any) -> _Known:
        return _Known(self.kind, *arguments)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Names(dict[Any, Any]):
    """Dict with simple keys, because hashing nested tuples can take forever."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, str | int):
            raise ValueError("it has keys that are not names")
        super().__setitem__(key, value)


class _Unpickler(pickle._Unpickler):
    """Unpickler of plain values and `_Known`; the Python version does not allocate memory in advance."""

    def load_dict(self: Any) -> None:
        names, items = _Names(), self.pop_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            names[key] = value
        self.append(names)

    def load_reduce(self: Any) -> None:
        if not isinstance(self.stack[-1], tuple):  # a string would be unpacked into its letters
            raise ValueError("it calls a function without a tuple of arguments")
        pickle._Unpickler.dispatch[pickle.REDUCE[0]](self)

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.EMPTY_DICT[0]: lambda self: self.append(_Names()),
        pickle.DICT[0]: load_dict,
        pickle.REDUCE[0]: load_reduce,
    }

    def find_class(self, module: str, name: str) -> _Known:
        if (kind := _KNOWN.get((module.replace("numpy._core", "numpy.core"), name))) is None:
            raise ValueError(f"it asks for {module:.60}.{name:.60}, which no map needs, and nothing was run")
        return _Known(kind)

    def persistent_load(self, pid: Any) -> _Known:
        return _Known("elsewhere", *pid[:5])


def _load(file: io.BytesIO) -> Any:
    """Load the pickle at the file's position and leave the position behind it."""
    begin = file.tell()
    for step, (opcode, _, _) in enumerate(pickletools.genops(file)):  # raises for sizes beyond the end of the file
        if opcode.name in _REFUSED:
            raise ValueError(f"it uses {opcode.name}, which no map needs")
        if step >= _MOST_STEPS:
            raise ValueError(f"it takes more than {_MOST_STEPS} steps, more than any map needs")
    file.seek(begin)
    return _Unpickler(file, encoding="latin1").load()  # encoding of arrays from Python 2


def _array(what: Any) -> NDArray[Any]:
    if isinstance(what, (bool, int, float)):
        return np.asarray(float(what))
    kind, given = (what.kind, what.arguments) if isinstance(what, _Known) else ("", ())
    order: Literal["C", "F"] = "C"
    if kind == "tensor":
        return _strided(*given[:4])
    if kind == "scalar":
        (dtype, content), shape = given, ()
    elif kind == "buffer":
        content, dtype, shape, order = given
    elif kind == "array":
        _, shape, dtype, fortran, content = what.state
        order = "F" if fortran else "C"
    else:
        raise ValueError("its map or probability is neither number, array nor tensor")
    return np.frombuffer(_bytes(content), _dtype(dtype)).reshape(_numbers(*shape[:33]), order=order)


def _bytes(what: Any) -> bytes:
    """Return bytes; protocol 2 and below store them as text."""
    if isinstance(what, _Known) and what.kind == "bytes" and what.arguments[1:] == ("latin1",):
        what = what.arguments[0]
    if isinstance(what, str):
        return what.encode("latin1")
    if not isinstance(what, (bytes, bytearray)):
        raise ValueError("its values are not bytes")
    return bytes(what)


def _numbers(*given: Any) -> tuple[int, ...]:
    """Check sizes, strides or offsets: at most 32, each below 2^40."""
    if len(given) > 32 or not all(type(one) is int and 0 <= one < 2**40 for one in given):
        raise ValueError("its tensor has an invalid size, stride or offset")
    return given


def _dtype(what: Any) -> np.dtype[Any]:
    name, order = what.arguments[0], what.state[1] if what.state else "="
    known = ("f2", "f4", "f8", "b1", "u1", "i1", "i2", "i4", "i8")
    if what.kind != "dtype" or name not in known or order not in ("<", ">", "=", "|"):
        raise ValueError("its values are not plain numbers")
    return np.dtype(f"{order}{name}")


def _strided(storage: Any, offset: int, size: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    """Copy a tensor from its storage after checking that it lies within."""
    file = io.BytesIO(_bytes(storage.arguments[0]))
    magic, version, system, stored, _ = (_load(file) for _ in range(5))
    if (magic, version) != _MAGIC or not system["little_endian"] or stored.kind != "elsewhere":
        raise ValueError("its storage is not in PyTorch's format of pickled tensors")
    number = int.from_bytes(file.read(8), "little")
    values = np.frombuffer(file.read(), _STORAGES[stored.arguments[1].kind], number)
    size, strides = (one.arguments[0] if isinstance(one, _Known) else one for one in (size, strides))
    _numbers(offset, *size[:33], *strides[:33])
    if len(size) != len(strides) or math.prod(size) > values.size:
        raise ValueError("its tensor does not fit its values")
    last = offset + sum((length - 1) * step for length, step in zip(size, strides, strict=True))
    if 0 not in size and last >= values.size:
        raise ValueError("its tensor is larger than its values")
    bytes_of = tuple(step * values.itemsize for step in strides)
    return np.lib.stride_tricks.as_strided(values[offset:], size, bytes_of).copy()
