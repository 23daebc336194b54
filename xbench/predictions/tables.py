"""Readers of probabilities, boxes and answers: CSV, parquet, COCO results or JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow.csv
import pyarrow.parquet as pq

from xbench.predictions.answer import Finish
from xbench.predictions.asking import Reply
from xbench.predictions.chexlocalize import Pair, drawn_in, read_points
from xbench.predictions.files import named, read_csv
from xbench.runtime.files import check_readable
from xbench.runtime.strict import check_distinct, decimal, read_json, unique_keys

Ids = tuple[Mapping[Any, str], Mapping[Any, str]]
"""Names of images and findings by ids of a COCO annotation file."""

_CORNERS = ("x0", "y0", "x1", "y1")
_LARGEST = 2**30
_MOST_ROWS = 2 * 10**7
_MISSING = {None, *pyarrow.csv.ConvertOptions().null_values}  # as written by pandas and R


def read_scores(path: Path) -> dict[Pair, tuple[float, float]]:
    """Read logits and probabilities, CSV or parquet, with a row per image and finding or a column per finding."""
    found: dict[Pair, tuple[float, float] | None] = {}
    with named(path):
        for where, row in _parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path):
            cells = {name: None if value in _MISSING else str(value) for name, value in row.items()}
            if not {"image", "image_id"} & {*cells}:
                raise ValueError("one of its columns must be called image")
            image, probability = cells.pop("image" if "image" in cells else "image_id"), cells.get("probability")
            pairs: dict[str | None, tuple[str | None, str | None]]
            pairs = {finding: (value, value) for finding, value in cells.items()}
            if {"finding", "probability"} <= {*cells}:
                pairs = {cells["finding"]: (cells.get("logit", probability), probability)}
            for finding, numbers in pairs.items():
                if image is None or finding is None:
                    raise ValueError(f"{where} is without image or finding")
                if (image, finding) in found:
                    raise ValueError(f"it has two scores of image {image} and finding {finding}")
                found[image, finding] = _score(*numbers, image, finding)
    return {pair: numbers for pair, numbers in found.items() if numbers is not None}


def read_answered(path: Path, ids: Ids | None = None) -> tuple[Literal["boxes", "raw answers"], dict[Pair, Reply]]:
    """Read boxes or answers by image and finding; boxes become text of the family `endpoint`, highest score first.

    Formats:
      - CSV with image, finding, x0, y0, x1, y1 and optionally score; a row without corners means no box.
      - COCO results. `ids` maps ids to names; unknown numbers become `id NUMBER`. Without `ids`, an id is a name.
      - JSON lines with image, finding and either boxes, optionally with scores, or answer, optionally with finish.
      - JSON of points by image and finding, as in CheXlocalize's human benchmark, in pixels.
    """
    boxes: dict[Pair, list[dict[str, Any]]] = {}
    texts: dict[Pair, Reply] = {}
    suffix = path.suffix.lower()
    with named(path):
        check_readable(path, _LARGEST)
        if suffix == ".json" and drawn_in(path) == "points":
            drawn = ((pair, {"points" if points else "boxes": points}) for pair, points in read_points(path).items())
            return "boxes", {pair: Reply(json.dumps(content)) for pair, content in drawn}
        for where, entry in _entries(path, suffix):
            try:
                if not isinstance(entry, dict):
                    raise ValueError(f"{entry!r:.60} has no keys")
                if suffix != ".jsonl":
                    entry = _of_row(entry) if suffix == ".csv" else _of_result(entry, ids)
                pair = _name(entry["image"]), _name(entry["finding"])
                if "answer" not in entry:
                    boxes.setdefault(pair, []).extend(_boxes(entry["boxes"], entry.get("scores")))
                elif not isinstance(entry["answer"], str):
                    raise ValueError("answer is not text")
                elif pair in texts:
                    raise ValueError(f"image {pair[0]}, finding {pair[1]} has two answers")
                else:
                    texts[pair] = Reply(entry["answer"], _finish(entry))
            except KeyError as error:
                need = "image, finding, and boxes or an answer; reports need --family report"
                raise ValueError(f"{where} lacks {error.args[0]}: give {need}") from None
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{where}: {error}") from None
        if boxes and texts:
            raise ValueError("it mixes boxes and answers")
    if texts:
        return "raw answers", texts
    for of in boxes.values():
        # Equal scores stay in the order of the file, and boxes without a score come last.
        of.sort(key=lambda box: -box.get("confidence", -1))
    return "boxes", {pair: Reply(json.dumps({"boxes": of})) for pair, of in boxes.items()}


def read_reports(path: Path) -> dict[Pair, Reply]:
    """Read one text per image from JSON lines, CSV or parquet; null is a missing text.

    The columns are `image`, `text` (or `report` or `findings`) and optionally `finish`, `stop` or `length`.
    """
    found: dict[Pair, Reply] = {}
    with named(path):
        check_readable(path, _LARGEST)
        for where, row in read_rows(path):
            entry = row if isinstance(row, dict) else {}
            text = next((entry[name] for name in ("text", "report", "findings") if name in entry), 0)
            if not isinstance(text, str | None) or "image" not in entry:
                raise ValueError(f"{where} needs an image and a text")
            if (pair := (_name(entry["image"]), "")) in found:
                raise ValueError(f"image {pair[0]} has two texts")
            if text is not None:
                found[pair] = Reply(text, _finish(entry, f"{where}: "))
    return found


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the position and content of each row of CSV, parquet or JSON lines."""
    read = {".csv": read_csv, ".parquet": _parquet}.get(path.suffix.lower())
    yield from read(path) if read else _entries(path, ".jsonl")


def _finish(entry: Mapping[str, Any], where: str = "") -> Finish | None:
    finish: Finish | None = entry.get("finish") or None
    if finish not in (None, *get_args(Finish)):
        raise ValueError(f"{where}finish is {finish!r:.40}: give stop, length or nothing")
    return finish


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    file = pq.ParquetFile(path)
    if file.metadata.num_rows > _MOST_ROWS:  # a damaged file may claim any number
        raise ValueError(f"it claims {file.metadata.num_rows} rows")
    check_distinct(file.schema_arrow.names, "column")
    for number, row in enumerate(file.read().to_pylist(), start=1):
        yield f"row {number}", row


def _score(logit: str | None, probability: str | None, image: str, finding: str) -> tuple[float, float] | None:
    if logit is None or probability is None:
        return None
    with suppress(ValueError):
        if 0 <= (value := decimal(probability)) <= 1:
            return value if logit is probability else decimal(logit), value
    what = f"image {image}, finding {finding}"
    raise ValueError(f"{what}: {probability!r} with logit {logit!r} is not a probability from 0 to 1")


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
                raise ValueError(f"the score {score!r:.40} is not in 0 to 1")
            entry["confidence"] = float(score)
        found.append(entry)
    return found


def _numbers(box: Any) -> list[float]:
    numbers = [float(one) for one in box if type(one) in (int, float)] if isinstance(box, list) else []
    if len(numbers) != 4 or len(box) != 4 or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{box!r:.80} is not a box of four numbers")
    return numbers


def _name(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise ValueError(f"{value!r:.60} is not the name of an image or a finding")
    return str(value)


def _of_row(row: dict[str, Any]) -> dict[str, Any]:
    corners = [row[name] for name in _CORNERS]
    boxes = [[decimal(corner) for corner in corners]] if any(corners) else []
    scores = [decimal(row["score"])] if boxes and row.get("score") else None
    return row | {"boxes": boxes, "scores": scores}


def _of_result(result: dict[str, Any], ids: Ids | None) -> dict[str, Any]:
    names = []
    for value, known in zip((result["image_id"], result["category_id"]), ids or ({}, {}), strict=True):
        name = _name(value)
        # Do not mistake an unknown number for an image of that name.
        names.append(known.get(value, f"id {name}" if ids is not None and isinstance(value, int) else name))
    left, top, width, height = _numbers(result["bbox"])
    if width <= 0 or height <= 0:
        raise ValueError(f"its bbox has width {width} and height {height}, as if it held corners")
    boxes, scores = [[left, top, left + width, top + height]], [result["score"]] if "score" in result else None
    return {"image": names[0], "finding": names[1], "boxes": boxes, "scores": scores}


def _entries(path: Path, suffix: str) -> Iterator[tuple[str, Any]]:
    if suffix == ".csv":
        yield from read_csv(path, "image", "finding", *_CORNERS)
    elif suffix == ".jsonl":
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        yield f"line {number}", json.loads(line, object_pairs_hook=unique_keys)
                    except ValueError as error:
                        raise ValueError(f"line {number}: {error}") from None
    else:
        content = read_json(path, _LARGEST)
        if not isinstance(content, list):
            raise ValueError("it is not a list of COCO results")
        yield from ((f"entry {number}", entry) for number, entry in enumerate(content, start=1))
