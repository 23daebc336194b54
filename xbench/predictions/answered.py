"""Boxes and answers that were made elsewhere: CSV, COCO results, or JSON line by line."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xbench.errors import UserError
from xbench.predictions.files import named
from xbench.predictions.segmentations import drawn_in, read_points

SUFFIXES = (".csv", ".json", ".jsonl")
_CORNERS = ("x0", "y0", "x1", "y1")
_LARGEST = 2**30


@dataclass(frozen=True)
class Answered:
    """What was answered, by image and finding as the file calls them.

    Attributes:
        kind: `boxes`, as the text that a model of the family `endpoint` would have written, or raw `answers`.
        texts: The text of each pair.
    """

    kind: Literal["boxes", "answers"]
    texts: dict[tuple[str, str], str]


def read_answered(path: Path) -> Answered:
    """Read boxes or answers.

    A CSV file has the columns image, finding, x0, y0, x1, y1 and perhaps score, and a row without corners says that
    there is no box. COCO results have image_id, category_id, bbox (left, top, width, height) and score. A line of JSON
    has image, finding and either boxes (lists of x0, y0, x1, y1), perhaps with scores, or answer, the raw text.

    JSON of points by image and finding is that of CheXlocalize's human benchmark, in pixels of the images.

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
                pair = str(entry["image"]), str(entry["finding"])
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
            except (TypeError, ValueError) as error:
                raise ValueError(f"{where}: {error}") from None
        if found and texts:
            raise ValueError("some of it are boxes and some are answers")
    if texts:
        return Answered("answers", texts)
    return Answered("boxes", {pair: json.dumps({"boxes": boxes}) for pair, boxes in found.items()})


def _boxes(boxes: Any, scores: Any) -> list[dict[str, Any]]:
    found = []
    for box, score in zip(boxes, [None] * len(boxes) if scores is None else scores, strict=True):
        numbers = [float(number) for number in box]
        if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
            raise ValueError(f"{box!r:.80} is no box of four numbers")
        entry: dict[str, Any] = {"box": numbers}
        if score is not None:
            if not 0 <= float(score) <= 1:
                raise ValueError(f"the score {score!r:.40} is not from 0 to 1")
            entry["confidence"] = float(score)
        found.append(entry)
    return found


def _entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where something stands, and it, as a line of JSON has it."""
    if path.suffix.lower() == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                corners = [row[name] for name in _CORNERS]
                boxes = [corners] if any(corner not in (None, "") for corner in corners) else []
                score = row.get("score") or None
                yield (
                    f"row {number}",
                    row | {"boxes": boxes, "scores": None if score is None else [score][: len(boxes)]},
                )
    elif path.suffix.lower() == ".jsonl":
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"line {number}", _entry(json.loads(line))
    else:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, list):
            raise UserError(f"{path} is no list of COCO results.", exit_status=2)
        for number, one in enumerate(content, start=1):
            entry = _entry(one)
            left, top, width, height = map(float, entry["bbox"])
            box = [left, top, left + width, top + height]
            scores = [entry["score"]] if "score" in entry else None
            yield (
                f"entry {number}",
                {"image": entry["image_id"], "finding": entry["category_id"]}
                | {
                    "boxes": [box],
                    "scores": scores,
                },
            )


def _entry(one: Any) -> dict[str, Any]:
    if not isinstance(one, dict):
        raise ValueError(f"{one!r:.60} has no keys")
    return one
