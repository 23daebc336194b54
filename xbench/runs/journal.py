"""What a running evaluation has finished so far, on disk, so that a run that is killed can go on.

Each finished batch is a file of arrays, renamed into place once it is written, with a checksum in its name. So whenever
a process is killed, and even if a machine dies before its disk has everything, a batch either reads as it was written
or counts as not done. Nothing is pickled.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from xbench.geometry.coverage import Coverage
from xbench.geometry.shapes import Shape
from xbench.runs.answers import AnswerRow
from xbench.runs.maps import SavedImage
from xbench.runs.scores import BatchScores, ImageScores, PairCounts
from xbench.runtime.errors import UserError
from xbench.types import Failure, Note

ABOUT = "about.json"
_NAME = re.compile(r"(\d+)-([0-9a-f]{8})\.safetensors")
_TREE = "record"
"""Name of the array that holds everything but arrays, as JSON."""


@dataclass(frozen=True)
class BatchRecord:
    """Everything that a finished batch adds to a run."""

    batch: int  # its number in the dataset's order, from 0
    scores: BatchScores | None  # None if every image failed
    failures: tuple[Failure, ...]
    notes: tuple[Note, ...]
    kept: tuple[SavedImage, ...]  # in the dataset's order


def append_record(folder: Path, record: BatchRecord) -> None:
    """Write a batch to the journal in a folder; it counts as finished from here on."""
    content = _encode(record)
    path = folder / f"{record.batch:06d}-{zlib.crc32(content):08x}.safetensors"
    partial = path.with_suffix(".partial")
    try:
        # Not forced to the disk, which would take longer than the batch: the checksum tells what did not get there.
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise UserError(
            f"The run cannot note what it has finished in {folder}: {error.strerror or error}. Everything "
            "finished before is kept: make room, and run the same command with --resume true."
        ) from error


def finished_batches(folder: Path) -> dict[int, Path]:
    """Return the batches that the journal in a folder has, in the dataset's order, each with its file.

    A file that is cut off, damaged or no journal's counts as not there.
    """
    # A batch that was done twice is the same both times.
    found = {int(path.name.partition("-")[0]): path for path in folder.glob("*.safetensors") if _intact(path)}
    return dict(sorted(found.items()))


def read_record(path: Path) -> BatchRecord:
    """Read what a finished batch adds to a run; raise a ValueError if it changed since `finished_batches` saw it."""
    content = _intact(path)
    if content is None:
        raise ValueError(f"{path} has changed while it was read")
    arrays = safetensors.numpy.load(content)
    record = json.loads(
        arrays[_TREE].tobytes(), object_hook=lambda value: arrays[value["array"]] if [*value] == ["array"] else value
    )
    scores = record["scores"]
    if scores is not None:
        images = scores["images"] | {"region_digests": scores["images"]["region_digests"].view("S16")}
        constant = tuple(map(tuple, scores["constant"]))
        answers = tuple(map(AnswerRow.checked, scores["answers"]))
        scores = BatchScores(ImageScores(**images), PairCounts(**scores["pairs"]), constant, answers)
    for image in record["kept"]:
        image |= {name: tuple(image[name]) for name in ("view", "scored")}
        image["regions"] = {
            int(column): Coverage(**region | {"shape": tuple(region["shape"])})
            for column, region in image["regions"].items()
        }
        image["instances"] = {
            int(column): tuple(Shape(**item | {"size": tuple(item["size"])}) for item in items)
            for column, items in image["instances"].items()
        }
        image["image_size"] = image["image_size"] and tuple(image["image_size"])
        if image["picture"] is not None:
            image["picture"] = image["picture"].tobytes()
    return BatchRecord(
        batch=record["batch"],
        scores=scores,
        failures=tuple(Failure(**failure) for failure in record["failures"]),
        notes=tuple(Note(*note) for note in record["notes"]),
        kept=tuple(SavedImage(**image) for image in record["kept"]),
    )


def read_about(folder: Path) -> dict[str, Any] | None:
    """Read what a journal's numbers depend on; None if that is not there or damaged."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) else None


def difference(one: Any, other: Any, place: str = "") -> str | None:
    """Return the first place where two nested plain values differ, with both; None where they are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one | other:
            found = difference(one.get(key), other.get(key), f"{place}.{key}" if place else str(key))
            if found:
                return found
        return None
    if one == other:
        return None
    said = [text if len(text := json.dumps(value)) <= 80 else f"{text[:77]}..." for value in (one, other)]
    return f"{place} is {said[1]} and was {said[0]}"


def _intact(path: Path) -> bytes | None:
    """Content of a file of the journal; None if it is not what its name says."""
    name = _NAME.fullmatch(path.name)
    content = path.read_bytes() if name else b""
    return content if name and zlib.crc32(content) == int(name[2], 16) else None


def _encode(record: BatchRecord) -> bytes:
    arrays: dict[str, NDArray[Any]] = {}

    def plain(value: Any) -> dict[str, Any]:
        """What JSON does not know: arrays by their names, and the fields of everything else."""
        if isinstance(value, np.ndarray | bytes):
            name = str(len(arrays))
            array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.ascontiguousarray(value)
            # safetensors has no type for texts of a fixed length.
            arrays[name] = array.view(np.uint8) if array.dtype.kind == "S" else array
            return {"array": name}
        names = (
            type(value).__slots__ if isinstance(value, Coverage | Shape) else [field.name for field in fields(value)]
        )
        return {name: getattr(value, name) for name in names}

    arrays[_TREE] = np.frombuffer(json.dumps(record, default=plain).encode(), np.uint8)
    return safetensors.numpy.save(arrays)
