"""Answers in `predictions.parquet`: question, reply to the letter, and what was read from it.

Other families or conventions can read them again without asking the model. Needs no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from xbench.predictions.answer import Answer, Box, Finish, Point, Status
from xbench.predictions.asking import TEXTS, Kind, Question, Reply
from xbench.predictions.conventions import Convention
from xbench.predictions.families import Family
from xbench.predictions.recognition import Way
from xbench.runs.files import PREDICTIONS, SCHEMAS, Table
from xbench.runtime.errors import UserError

if TYPE_CHECKING:
    from xbench.types import Answers, Truth


_OF_REPLY = ("finish", "frame", "prompt_sha256", "tokens_in", "tokens_out", "from_cache", "reasoning")
_OF_RECOGNITION = ("way", "probability", "logit", "mass", "bounded")
_OF_ANSWER = ("status", "boxes", "points", "confidence", "suspect_frame")


@dataclass(frozen=True)
class AnswerRow:
    """A question about an image and its answer; docs/files.md describes the columns.

    Columns `status` to `outlined` are None if the question is whether a finding is present, `way` to `bounded` if it is
    where, and all of these for words, which are read during scoring. `finding` is the finding or phrase in question,
    empty for a report; `group` is the finding to which it belongs, or None.
    """

    index: int
    image_id: str
    finding: str
    query: Kind
    raw: str
    width: int
    height: int
    escaped: bool = False
    finish: Finish | None = None
    frame: str | None = None
    prompt_sha256: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    from_cache: bool = False
    reasoning: str | None = None
    answer_confidence: float | None = None
    status: Status | None = None
    boxes: tuple[Box, ...] | None = None
    points: tuple[Point, ...] | None = None
    confidence: tuple[float | None, ...] | None = None
    clipped: int | None = None
    reordered: int | None = None
    dropped: int | None = None
    duplicates: int | None = None
    suspect_frame: bool | None = None
    annotated: tuple[Box, ...] | None = None
    one_by_one: bool | None = None
    outlined: bool | None = None
    way: Way | None = None
    probability: float | None = None
    logit: float | None = None
    mass: float | None = None
    bounded: bool | None = None
    group: str | None = None

    @classmethod
    def of(
        cls,
        index: int,
        image_id: str,
        size: tuple[int, int],
        query: Question,
        reply: Reply,
        answer: Answer | None,
        truth: tuple[Sequence[Box], bool, bool] | None = None,
    ) -> AnswerRow:
        """Make the row of a query about an image of this size (width, height).

        `answer` is the located finding; `truth` holds the true boxes, whether each is a lesion, and whether they come
        from outlines. Raises a UserError if the row cannot be stored.
        """
        values: dict[str, Any] = {"index": index, "image_id": image_id, "finding": query.finding, "query": query.kind}
        values |= {"raw": reply.text, "width": size[0], "height": size[1], "answer_confidence": reply.confidence}
        values |= {name: getattr(reply, name) for name in _OF_REPLY}
        if query.kind == "recognise":
            recognition = reply.recognition()
            values |= {name: getattr(recognition, name) for name in _OF_RECOGNITION}
        elif answer is not None:
            boxes, one_by_one, outlined = truth or (None, None, None)
            values |= {name: getattr(answer, name) for name in _OF_ANSWER} | asdict(answer.counts)
            values |= {"annotated": boxes, "one_by_one": one_by_one, "outlined": outlined}
        try:
            return cls.checked(values)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"The model's reply cannot be stored: {error}. Correct the model or omit the image. Earlier batches "
                "are kept: --resume true continues if only the reply changes."
            ) from error

    def reply(self) -> Reply:
        """Return the reply; tokens are reduced to what yields the same probability."""
        first: dict[str, Any] = {}
        if self.way == "first token":
            first = {"yes_no": ((self.logit,), (0.0,))} if self.logit is not None else {"top": ()}
            first |= {"mass": self.mass, "bounded": bool(self.bounded)}
        same = {name: getattr(self, name) for name in _OF_REPLY}
        return Reply(self.raw, confidence=self.answer_confidence, **same, **first)

    def read_again(self, family: Family, convention: Convention) -> tuple[Reply, Answer]:
        """Read the location by another family or convention, in the size on which pixels were counted."""
        reply = self.reply()
        if reply.frame is not None:
            size = re.fullmatch(r"[^@]+@(\d+)x(\d+)", reply.frame)
            pixels = convention.name.startswith("pixels_") and "@" not in convention.name
            shown = convention.shown(int(size[1]), int(size[2])).name if size and pixels else None
            reply = replace(reply, frame=shown)
        return reply, reply.read(family, convention, (self.width, self.height))

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> AnswerRow:
        """Make a row from stored values, or raise a ValueError for values that no run writes."""
        row: dict[str, Any] = {field.name: None for field in fields(cls)} | dict(values)
        row["escaped"] = bool(row["escaped"])
        if row["escaped"]:
            try:
                row["raw"] = json.loads(row["raw"])
            except RecursionError:
                raise ValueError(f"an escaped answer about {row['image_id']!r:.200} is nested too deeply") from None
        for name, kind in (("boxes", Box), ("annotated", Box), ("points", Point)):
            if row[name] is not None:
                row[name] = tuple(kind(*map(float, corners)) for corners in row[name])
        if row["confidence"] is not None:
            row["confidence"] = tuple(row["confidence"])
        asked = row["query"] not in {"recognise", *TEXTS}
        boxes = {name: row[name] or () for name in ("boxes", "annotated")}
        numbers = {name: [*chain(*values)] for name, values in (boxes | {"points": row["points"] or ()}).items()}
        numbers["confidence"] = [*(row["confidence"] or ())]
        numbers |= {name: [row[name]] for name in ("probability", "mass", "answer_confidence")}
        sound = {name: all(one is None or 0 <= one <= 1 for one in values) for name, values in numbers.items()}
        for name in ("boxes", "points", "confidence", "suspect_frame"):
            sound[name] = sound.get(name, True) and (row[name] is None) is not asked
        for name, corners in boxes.items():
            sound[name] &= all(box.x0 < box.x1 and box.y0 < box.y1 for box in corners)
        sound["annotated"] &= row["annotated"] != ()
        sound["confidence"] &= len(boxes["boxes"]) == len(numbers["confidence"])
        sound["raw"] = isinstance(row["raw"], str)
        sound["width or height"] = min(row["width"], row["height"]) >= 1
        sound["query"] = row["query"] in get_args(Kind)
        sound["finish"] = row["finish"] in (None, *get_args(Finish))
        sound["status"] = not asked or row["status"] in get_args(Status)
        sound["way"] = row["query"] != "recognise" or row["way"] in get_args(Way)
        if wrong := [name for name, right in sound.items() if not right]:
            about = f"{row['finding']!r:.60} on {row['image_id']!r:.200}"
            raise ValueError(f"the answer about {about} has an impossible {wrong[0]}")
        return cls(**row)


def answers_table(rows: Sequence[AnswerRow], condition: str = "") -> pa.Table:
    """Return the rows of a condition as a table of `predictions.parquet`."""
    return pa.Table.from_pylist([_writable(row) | {"condition": condition} for row in rows], SCHEMAS[PREDICTIONS])


def answer_rows(shown: Answers, truth: Truth) -> list[AnswerRow]:
    """Return the rows of a batch, image by image."""
    made, repeated = [], iter(shown.repeated)
    for query, reply in shown.replies:
        row, pair = query.row, query.pair
        size = truth.image_sizes[row]
        if size is None:
            raise UserError(f"image {truth.image_ids[row]}: its size is unknown, so boxes on it are meaningless.")
        boxes = None
        if query.kind == "locate" and truth.labels[pair] == 1 and truth.regions[pair] is not None:
            boxes = (*truth.boxes(pair), truth.outlined(pair))
        answer = shown.answers[pair] if query.kind == "locate" else None
        if query.kind == "again":
            answer = next(repeated)
        index, image_id = int(truth.index[row]), truth.image_ids[row]
        one = AnswerRow.of(index, image_id, (size[1], size[0]), query, reply, answer, boxes)
        made.append(replace(one, group=None if query.kind == "report" else truth.queries[pair].finding))
    return sorted(made, key=lambda one: one.index)


def read_answers(path: Path, condition: str = "") -> Iterator[AnswerRow]:
    """Yield the answers of a condition in `predictions.parquet`; raise the errors of `Table`."""
    with Table(path) as file:
        # A model with maps has no answers.
        asked = file.read(["asked"])["asked"]
        for group in range(file.num_row_groups if asked.null_count < len(asked) else 0):
            columns = [name for name in file.schema_arrow.names if name not in ("map_shape", "map")]
            yield from rows_of(file.read_row_group(group, columns=columns, use_threads=False), condition)


def rows_of(table: pa.Table, condition: str = "") -> Iterator[AnswerRow]:
    """Yield the rows of a condition, or raise a ValueError for values that no run writes."""
    asked = pc.and_(table["asked"].is_valid(), pc.equal(table["condition"], condition))
    kept = [name for name in table.column_names if name not in ("map_shape", "map", "condition")]
    for row in table.filter(asked).select(kept).to_pylist():
        yield AnswerRow.checked(row | {"finding": row["query"], "query": row.pop("asked"), "group": row["finding"]})


def excerpt(raw: str, most: int = 400) -> str:
    """Return the end of an answer for display, because thinking comes first."""
    text = raw.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"\u2026{text[-most:]}"


def _writable(row: AnswerRow) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    values |= {"asked": row.query, "query": row.finding, "finding": values.pop("group")}
    if row.reasoning is not None:
        values["reasoning"] = row.reasoning.encode("utf-8", "replace").decode()
    try:
        row.raw.encode()
    except UnicodeEncodeError:
        values |= {"raw": json.dumps(row.raw), "escaped": True}
    return values
