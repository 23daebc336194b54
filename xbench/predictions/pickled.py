"""Heat maps as the authors of CheXlocalize publish them: pickles, of which nothing is executed."""

from __future__ import annotations

import io
import math
import pickle
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def read_pickle(content: bytes) -> tuple[NDArray[Any], float | None]:
    """Return the map in a pickled dict, and its probability; a ValueError for whatever else a pickle asks for.

    The keys are `map`, an array or torch tensor (1, 1, h, w), and perhaps `prob`. Names in the file find stand-ins
    below, which keep what they are given: no function of another library is called while the pickle is read.
    """
    holds = _Unpickler(io.BytesIO(content)).load()
    if not isinstance(holds, dict) or "map" not in holds:
        raise ValueError("it holds no dict with a map")
    probability = holds.get("prob")
    return _array(holds["map"]), None if probability is None else float(_array(probability).reshape(()))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module.replace("numpy._core", "numpy.core"), name]
        except KeyError:
            raise ValueError(f"it asks for {module}.{name}, which no map needs, and nothing was run") from None

    def persistent_load(self, pid: Any) -> Any:
        raise ValueError("it refers to objects elsewhere")


class _Stand:
    """Keeps the arguments that a constructor is given, and the state that follows."""

    state: Any = None

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Storage(_Stand):
    """Bytes of a torch storage."""


class _Tensor(_Stand):
    """Storage, offset, size, strides, and what no map needs."""


class _Dtype(_Stand):
    """Name of a dtype; the state has the order of bytes."""


class _Scalar(_Stand):
    """Dtype and bytes."""


class _Buffer(_Stand):
    """Bytes, dtype, shape and order."""


class _Array(_Stand):
    """The state has version, shape, dtype, order and bytes."""


def _encode(text: str, encoding: str) -> bytes:
    # Bytes in pickles of protocol 2.
    if encoding != "latin1":
        raise ValueError(f"it encodes text in {encoding!r:.40}")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
    ("torch.storage", "_load_from_bytes"): _Storage,
    ("collections", "OrderedDict"): _Stand,
    ("torch", "Size"): tuple,
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _Buffer,
    ("numpy.core.multiarray", "scalar"): _Scalar,
    ("_codecs", "encode"): _encode,
}


def _array(what: Any) -> NDArray[Any]:
    if isinstance(what, _Tensor):
        return _strided(*what.given[:4])
    if isinstance(what, _Scalar):
        return np.frombuffer(what.given[1], _dtype(what.given[0]), 1).reshape(())
    if isinstance(what, _Buffer):
        content, dtype, shape, order = what.given
        return np.frombuffer(content, _dtype(dtype)).reshape(shape, order=order)
    if isinstance(what, _Array):
        _, shape, dtype, fortran, content = what.state
        return np.frombuffer(content, _dtype(dtype)).reshape(shape, order="F" if fortran else "C")
    if isinstance(what, (bool, int, float)):
        return np.asarray(float(what))
    raise ValueError("its map or probability is neither number, array nor tensor")


def _dtype(what: Any) -> np.dtype[Any]:
    order = what.state[1] if what.state else "="
    name = what.given[0]
    if name not in {"f2", "f4", "f8", "b1", "u1", "i1", "i2", "i4", "i8"} or order not in ("<", ">", "=", "|"):
        raise ValueError(f"its values are {name!r:.20}, and no plain numbers")
    return np.dtype(f"{order}{name}")


def _strided(storage: Any, offset: int, size: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    """Take a tensor from its storage, which torch would enlarge to whatever a file claims."""
    with warnings.catch_warnings():
        # Of how old the file's storages and formats are.
        warnings.simplefilter("ignore")
        loaded = torch.load(io.BytesIO(storage.given[0]), map_location="cpu", weights_only=True)
        values = torch.empty(0, dtype=loaded.dtype).set_(loaded.untyped()).numpy()
    if len(size) != len(strides) or min((offset, *size, *strides)) < 0 or math.prod(size) > values.size:
        raise ValueError("its tensor does not fit its values")
    last = offset + sum((length - 1) * step for length, step in zip(size, strides, strict=True))
    if 0 not in size and last >= values.size:
        raise ValueError("its tensor is larger than its values")
    bytes_of = tuple(step * values.itemsize for step in strides)
    return np.lib.stride_tricks.as_strided(values[offset:], size, bytes_of).copy()
