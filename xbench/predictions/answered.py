"""Boxes and answers that were made elsewhere: CSV, COCO results, or JSON line by line."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xbench.predictions.files import named
from xbench.predictions.segmentations import drawn_in, read_points
from xbench.runtime.errors import UserError
from xbench.runtime.strict import check_distinct, decimal, unique_keys

SUFFIXES = (".csv", ".json", ".jsonl")
_CORNERS = ("x0", "y0", "x1", "y1")
_LARGEST = 2**30

Ids = tuple[Mapping[Any, str], Mapping[Any, str]]
"""Names of images, and of findings, by the ids of a COCO annotation file."""


@dataclass(frozen=True)
class Answered:
    """What was answered, by image and finding as the file calls them.

    Attributes:
        kind: `boxes`, as the text that a model of the family `endpoint` would have written, or raw `answers`.
        texts: The text of each pair.
    """

    kind: Literal["boxes", "answers"]
    texts: dict[tuple[str, str], str]


def read_answered(path: Path, ids: Ids | None = None) -> Answered:
    """Read boxes or answers.

    A CSV file has the columns image, finding, x0, y0, x1, y1 and perhaps score, and a row without corners says that
    there is no box. COCO results have image_id, category_id, bbox (left, top, width, height) and score. A line of JSON
    has image, finding and either boxes (lists of x0, y0, x1, y1), perhaps with scores, or answer, the raw text. A box
    that a file declares is not sorted: x0 < x1 and y0 < y1, or it is refused.

    JSON of points by image and finding is that of CheXlocalize's human benchmark, in pixels of the images.

    Args:
        path: The file.
        ids: What COCO results call images and findings by; another number becomes `id NUMBER`. Without, it is a name.

    Raises:
        UserError: It cannot be read, or holds something else.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    texts: dict[tuple[str, str], str] = {}
    with named(path):
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        if path.suffix.lower() == ".json" and drawn_in(path) == "points":
            drawn = read_points(path)
            texts = {pair: json.dumps({"points" if points else "boxes": points}) for pair, points in drawn.items()}
            return Answered("boxes", texts)
        for where, entry in _entries(path):
            try:
                if not isinstance(entry, dict):
                    raise ValueError(f"{entry!r:.60} has no keys")
                if path.suffix.lower() != ".jsonl":
                    entry = _of_row(entry) if path.suffix.lower() == ".csv" else _of_result(entry, ids)
                pair = _name(entry["image"]), _name(entry["finding"])
                if "answer" in entry:
                    if not isinstance(entry["answer"], str):
                        raise ValueError("answer is no text")
                    if pair in texts:
                        raise ValueError(f"image {pair[0]}, finding {pair[1]} has two answers")
                    texts[pair] = entry["answer"]
                else:
                    found.setdefault(pair, []).extend(_boxes(entry["boxes"], entry.get("scores")))
            except KeyError as error:
                raise ValueError(f"{where} lacks {error.args[0]}") from None
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{where}: {error}") from None
        if found and texts:
            raise ValueError("some of it are boxes and some are answers")
    if texts:
        return Answered("answers", texts)
    return Answered("boxes", {pair: json.dumps({"boxes": boxes}) for pair, boxes in found.items()})


def _boxes(boxes: Any, scores: Any) -> list[dict[str, Any]]:
    each = [None] * len(boxes) if scores is None and isinstance(boxes, list) else scores
    if not isinstance(boxes, list) or not isinstance(each, list) or len(boxes) != len(each):
        raise ValueError("boxes and scores must be lists of the same length")
    found = []
    for box, score in zip(boxes, each, strict=True):
        x0, y0, x1, y1 = numbers = _numbers(box)
        if x1 <= x0 or y1 <= y0:
            wrong = f"the box {numbers} has x1 <= x0 or y1 <= y0: are the last two numbers width and height?"
            raise ValueError(f"{wrong} Where there is no box, leave a row without corners, or an empty list")
        entry: dict[str, Any] = {"box": numbers}
        if score is not None:
            if isinstance(score, bool | str) or not 0 <= float(score) <= 1:
                raise ValueError(f"the score {score!r:.40} is not from 0 to 1")
            entry["confidence"] = float(score)
        found.append(entry)
    return found


def _numbers(box: Any) -> list[float]:
    numbers = [float(one) for one in box if type(one) in (int, float)] if isinstance(box, list) else []
    if len(numbers) != 4 or len(box) != 4 or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{box!r:.80} is no box of four numbers")
    return numbers


def _name(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r:.60} is no name of an image or a finding")
    return str(value)


def _of_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a CSV file as a line of JSON has it."""
    corners = [row[name] for name in _CORNERS]
    boxes = [[decimal(corner) for corner in corners]] if any(corners) else []
    scores = [decimal(row["score"])] if boxes and row.get("score") else None
    return row | {"boxes": boxes, "scores": scores}


def _of_result(result: dict[str, Any], ids: Ids | None) -> dict[str, Any]:
    """Return one of COCO's results as a line of JSON has it."""
    names = []
    for value, known in zip((result["image_id"], result["category_id"]), ids or ({}, {}), strict=True):
        name = _name(value)
        # A number that the annotation file does not have must not pass for an image of that name.
        names.append(known.get(value, f"id {name}" if ids is not None and isinstance(value, int) else name))
    left, top, width, height = _numbers(result["bbox"])
    if width <= 0 or height <= 0:
        raise ValueError(f"its bbox has width {width} and height {height}, as if it held corners")
    boxes, scores = [[left, top, left + width, top + height]], [result["score"]] if "score" in result else None
    return {"image": names[0], "finding": names[1], "boxes": boxes, "scores": scores}


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield where an entry of the file is, and the entry as it is written there."""
    if path.suffix.lower() == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip() for name in next(reader, [])]
            check_distinct(names, "column")
            if lacking := [name for name in ("image", "finding", *_CORNERS) if name not in names]:
                raise ValueError(f"it lacks the columns {', '.join(lacking)}")
            for values in ([value.strip() for value in row] for row in reader if any(map(str.strip, row))):
                if len(values) < len(names) or any(values[len(names) :]):
                    cut = ", as if it was cut off" * (len(values) < len(names))
                    raise ValueError(f"row {reader.line_num}: {len(values)} values for the {len(names)} columns{cut}")
                yield f"row {reader.line_num}", dict(zip(names, values, strict=False))
    elif path.suffix.lower() == ".jsonl":
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        yield f"line {number}", json.loads(line, object_pairs_hook=unique_keys)
                    except ValueError as error:
                        raise ValueError(f"line {number}: {error}") from None
    else:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique_keys)
        if not isinstance(content, list):
            raise UserError(f"{path} is no list of COCO results.", exit_status=2)
        yield from ((f"entry {number}", entry) for number, entry in enumerate(content, start=1))
