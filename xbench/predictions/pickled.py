"""Heat maps as the authors of CheXlocalize publish them: pickles, of which nothing is executed."""

from __future__ import annotations

import io
import math
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_STEPS = 10_000
"""Of a pickle: a heat map takes a few hundred, and what steps can build is no larger than their square."""

_MAGIC = 0x1950A86A20F9469CFC6C, 1001
"""What a storage in PyTorch's format of pickled tensors begins with."""


def read_pickle(content: bytes) -> tuple[NDArray[Any], float | None]:
    """Return the map in a pickled dict, and its probability; a ValueError for whatever else a pickle asks for.

    The keys are `map`, an array or torch tensor (1, 1, h, w), and perhaps `prob`. The steps of the pickle are followed
    here and build nothing but plain values: no function of any library is called, and no size in the file is believed.
    """
    holds = _load(io.BytesIO(content))
    if not isinstance(holds, dict) or "map" not in holds:
        raise ValueError("it holds no dict with a map")
    probability = holds.get("prob")
    return _array(holds["map"]), None if probability is None else float(_array(probability).reshape(()))


@dataclass
class _Made:
    """What a known function or class would make of arguments, and the state that follows."""

    kind: str
    given: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True)
class _Name:
    """A known function or class."""

    kind: str


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


def _known(module: Any, name: Any) -> _Name:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("it names what has no name")
    try:
        return _Name(_KNOWN[module.replace("numpy._core", "numpy.core"), name])
    except KeyError:
        raise ValueError(f"it asks for {module:.60}.{name:.60}, which no map needs, and nothing was run") from None


def _load(file: io.BytesIO) -> Any:
    """Follow the steps of the pickle that begins where a file stands, and leave the file behind it."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    given: Any
    for step, (opcode, given, _) in enumerate(pickletools.genops(file)):
        name, items = opcode.name, []
        if step >= _MOST_STEPS:
            raise ValueError(f"it takes more than {_MOST_STEPS} steps, and no map needs so many")
        if name in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS", "POP_MARK"):
            begin = marks.pop()
            items = stack[begin:]
            del stack[begin:]
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "SETITEM", "BUILD", "REDUCE", "NEWOBJ", "STACK_GLOBAL"):
            count = {"TUPLE1": 1, "APPEND": 1, "BUILD": 1, "TUPLE3": 3}.get(name, 2)
            items = [stack.pop() for _ in range(count)][::-1]
        match name:
            case "STOP":
                return stack.pop()
            case "MARK":
                marks.append(len(stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_TUPLE" | "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append((*items,))
            case "EMPTY_LIST" | "LIST":
                stack.append(items)
            case "APPEND" | "APPENDS":
                stack[-1].extend(items)
            case "EMPTY_DICT" | "DICT" | "SETITEM" | "SETITEMS":
                if name in ("EMPTY_DICT", "DICT"):
                    stack.append({})
                # To hash a tuple of tuples may take for ever.
                if not isinstance(stack[-1], dict) or not all(isinstance(key, (str, int)) for key in items[::2]):
                    raise ValueError("it has keys that are no names")
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL" | "STACK_GLOBAL":
                stack.append(_known(*(items or given.split(" ", 1))))
            case "REDUCE" | "NEWOBJ":
                if not isinstance(items[0], _Name) or not isinstance(items[1], tuple):
                    raise ValueError("it calls what is no function")
                stack.append(items[1][0] if items[0].kind == "size" else _Made(items[0].kind, items[1]))
            case "BINPERSID":
                stack.append(_Made("elsewhere", stack.pop()))
            case "BUILD":
                if not isinstance(stack[-1], _Made):
                    raise ValueError("it gives a state to what has none")
                stack[-1].state = items[0]
            case "MEMOIZE" | "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[len(memo) if given is None else given] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[given])
            case "PROTO" | "FRAME" | "POP_MARK":
                pass
            case "POP":
                stack.pop()
            case _ if given is None or opcode.stack_before or name in ("PERSID", "EXT1", "EXT2", "EXT4"):
                raise ValueError(f"it uses {name}, which no map needs")
            case _:
                stack.append(given)
    raise ValueError("it has no end")


def _array(what: Any) -> NDArray[Any]:
    if isinstance(what, (bool, int, float)):
        return np.asarray(float(what))
    kind = what.kind if isinstance(what, _Made) else ""
    if kind == "tensor":
        return _strided(*what.given[:4])
    if kind == "scalar":
        return np.frombuffer(_bytes(what.given[1]), _dtype(what.given[0]), 1).reshape(())
    if kind == "buffer":
        content, dtype, shape, order = what.given
        return np.frombuffer(_bytes(content), _dtype(dtype)).reshape(_numbers(*shape), order=order)
    if kind == "array":
        _, shape, dtype, fortran, content = what.state
        return np.frombuffer(_bytes(content), _dtype(dtype)).reshape(_numbers(*shape), order="F" if fortran else "C")
    raise ValueError("its map or probability is neither number, array nor tensor")


def _bytes(what: Any) -> bytes:
    """Return bytes; those of protocol 2 and below are text."""
    if isinstance(what, _Made) and what.kind == "bytes" and what.given[1:] == ("latin1",):
        what = what.given[0]
    if isinstance(what, str):
        return what.encode("latin1")
    if not isinstance(what, (bytes, bytearray)):
        raise ValueError("its values are no bytes")
    return bytes(what)


def _numbers(*given: Any) -> tuple[int, ...]:
    """Return sizes, strides or offsets; none is so large that arithmetic takes long."""
    if len(given) > 32 or not all(type(one) is int and 0 <= one < 2**40 for one in given):
        raise ValueError("its tensor has a size, stride or offset that is none")
    return given


def _dtype(what: Any) -> np.dtype[Any]:
    name, order = what.given[0], what.state[1] if what.state else "="
    known = ("f2", "f4", "f8", "b1", "u1", "i1", "i2", "i4", "i8")
    if what.kind != "dtype" or name not in known or order not in ("<", ">", "=", "|"):
        raise ValueError("its values are no plain numbers")
    return np.dtype(f"{order}{name}")


def _strided(storage: Any, offset: int, size: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    """Take a tensor from its storage, as far as it lies in it."""
    file = io.BytesIO(_bytes(storage.given[0]))
    magic, version, system, stored, _ = (_load(file) for _ in range(5))
    if (magic, version) != _MAGIC or not system["little_endian"] or stored.kind != "elsewhere":
        raise ValueError("its storage is not in PyTorch's format of pickled tensors")
    number = int.from_bytes(file.read(8), "little")
    values = np.frombuffer(file.read(), _STORAGES[stored.given[1].kind], number)
    _numbers(offset, *size, *strides)
    if len(size) != len(strides) or math.prod(size) > values.size:
        raise ValueError("its tensor does not fit its values")
    last = offset + sum((length - 1) * step for length, step in zip(size, strides, strict=True))
    if 0 not in size and last >= values.size:
        raise ValueError("its tensor is larger than its values")
    bytes_of = tuple(step * values.itemsize for step in strides)
    return np.lib.stride_tricks.as_strided(values[offset:], size, bytes_of).copy()
