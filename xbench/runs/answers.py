"""`answers.parquet`: what a model that answers was asked, what came back to the letter, and how it was read.

Its answers are read again from there by another family or convention, and checked, without asking. Needs no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from xbench.predictions.answer import Answer, Box, Counts, Finish, Point, Status
from xbench.predictions.asking import Kind, Query, Reply, Way
from xbench.predictions.conventions import Convention
from xbench.predictions.families import Family
from xbench.runs.files import WRITING, Table
from xbench.runtime.errors import UserError
from xbench.runtime.files import atomic_writer

_GROUP = 1024
"""Rows at a time; fewer if their texts are long."""
_GROUP_CHARACTERS = 2**24


@dataclass(frozen=True)
class AnswerRow:
    """One query about one image, and what became of it; the attributes are the columns of the file.

    Those from `status` to `one_by_one` are None of a query whether a finding is there, those after of one where it is.

    Attributes:
        index: Position of the image in the dataset.
        finding: What was asked for.
        query: Where it is, or whether it is there.
        raw: What came back.
        escaped: Whether the file has `raw` as a JSON text, because it holds half a surrogate pair.
        frame: Name of the convention of its numbers, if this image has one of its own.
        width: Of the radiograph in pixels.
        answer_confidence: Of the answer as a whole.
        confidence: Per box.
        annotated: The true boxes; None of an image without the finding.
        one_by_one: Whether each of these is one lesion, and not only their union is known.
        outlined: Whether they are boxes around outlines or masks.
        way: Where `probability` comes from.
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

    @classmethod
    def of(
        cls,
        index: int,
        image_id: str,
        size: tuple[int, int],
        query: Query,
        reply: Reply,
        answer: Answer | None,
        truth: tuple[Sequence[Box], bool, bool] | None = None,
    ) -> AnswerRow:
        """Make the row of a query about an image of so many pixels (width, height).

        `answer` is what the reply says where a finding is, None for whether it is there; `truth` the true boxes,
        whether each is a lesion, and whether they are of outlines. A UserError if no file takes the row.
        """
        row = cls(
            index=index,
            image_id=image_id,
            finding=query.finding,
            query=query.kind,
            raw=reply.text,
            width=size[0],
            height=size[1],
            finish=reply.finish,
            frame=reply.frame,
            prompt_sha256=reply.prompt_sha256,
            tokens_in=reply.tokens_in,
            tokens_out=reply.tokens_out,
            from_cache=reply.from_cache,
            reasoning=reply.reasoning,
            answer_confidence=reply.confidence,
        )
        if answer is None:
            found = reply.recognition()
            names = ("way", "probability", "logit", "mass", "bounded")
            row = replace(row, **{name: getattr(found, name) for name in names})
        else:
            boxes, one_by_one, outlined = truth or (None, None, None)
            row = replace(
                row,
                status=answer.status,
                boxes=answer.boxes,
                points=answer.points,
                confidence=answer.confidence,
                **asdict(answer.counts),
                suspect_frame=answer.suspect_frame,
                annotated=None if boxes is None else tuple(boxes),
                one_by_one=one_by_one,
                outlined=outlined,
            )
        try:
            return cls.checked(vars(row))
        except (ValueError, TypeError) as error:
            raise UserError(
                f"The model's reply cannot be kept: {error}. Correct the model, or leave the image out. Everything "
                "before is kept: --resume true goes on where nothing but the reply changes."
            ) from error

    def reply(self) -> Reply:
        """Return what came back; of the first token, what gives the same probability again."""
        first: dict[str, Any] = {}
        if self.way == "first token":
            first = {"yes_no": ((self.logit,), (0.0,))} if self.logit is not None else {"top": ()}
            first |= {"mass": self.mass, "bounded": bool(self.bounded)}
        same = ("finish", "frame", "prompt_sha256", "tokens_in", "tokens_out", "from_cache", "reasoning")
        told = {name: getattr(self, name) for name in same}
        return Reply(self.raw, confidence=self.answer_confidence, **told, **first)

    def asked(self, row: int, column: int) -> Query:
        """Return what was asked, for an image's place in a batch and a finding's among those of the run."""
        return Query(self.query, row, column, self.finding)

    def read_again(self, family: Family, convention: Convention) -> tuple[Reply, Answer]:
        """Read where the finding is by another family or convention.

        Of an image whose pixels were counted on another size, that size stays.
        """
        reply = self.reply()
        if reply.frame is not None:
            size = re.fullmatch(r"[^@]+@(\d+)x(\d+)", reply.frame)
            pixels = convention.name.startswith("pixels_") and "@" not in convention.name
            shown = convention.shown(int(size[1]), int(size[2])).name if size and pixels else None
            reply = replace(reply, frame=shown)
        return reply, reply.read(family, convention, (self.width, self.height))

    def answer(self) -> Answer:
        """Return the answer of a query where a finding is."""
        if self.status is None or self.boxes is None or self.points is None or self.confidence is None:
            raise ValueError(f"{self.image_id}, {self.finding}: nothing was asked about the place")
        counts = Counts(self.clipped or 0, self.reordered or 0, self.dropped or 0, self.duplicates or 0)
        return Answer(
            self.status,
            self.raw,
            self.boxes,
            self.points,
            self.confidence,
            self.finish,
            counts,
            bool(self.suspect_frame),
        )

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> AnswerRow:
        """Make a row of what a file says; raise a ValueError for what no run writes."""
        row = dict(values)
        if row["escaped"]:
            row["raw"] = json.loads(row["raw"])
        for name, kind in (("boxes", Box), ("annotated", Box), ("points", Point)):
            if row[name] is not None:
                row[name] = tuple(kind(*map(float, corners)) for corners in row[name])
        if row["confidence"] is not None:
            row["confidence"] = tuple(row["confidence"])
        if row["mass"] is not None and 1 < row["mass"] < 1 + 1e-6:
            row["mass"] = 1.0  # a sum of rounded probabilities, as earlier versions kept it
        asked = row["query"] != "recognise"
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
        sound["way"] = asked or row["way"] in get_args(Way)
        if wrong := [name for name, right in sound.items() if not right]:
            about = f"{row['finding']!r:.60} on {row['image_id']!r:.200}"
            raise ValueError(f"the answer about {about} has an impossible {wrong[0]}")
        return cls(**row)


_BOXES = pa.list_(pa.list_(pa.float64()))
_SCHEMA = pa.schema(
    {"index": pa.int64(), "image_id": pa.string(), "finding": pa.string(), "query": pa.string(), "raw": pa.string()}
    | {"width": pa.int32(), "height": pa.int32(), "escaped": pa.bool_(), "finish": pa.string(), "frame": pa.string()}
    | {"prompt_sha256": pa.string(), "tokens_in": pa.int64(), "tokens_out": pa.int64(), "from_cache": pa.bool_()}
    | {"reasoning": pa.string(), "answer_confidence": pa.float64(), "status": pa.string(), "boxes": _BOXES}
    | {"points": _BOXES, "confidence": pa.list_(pa.float64()), "clipped": pa.int32(), "reordered": pa.int32()}
    | {"dropped": pa.int32(), "duplicates": pa.int32(), "suspect_frame": pa.bool_(), "annotated": _BOXES}
    | {"one_by_one": pa.bool_(), "outlined": pa.bool_(), "way": pa.string(), "probability": pa.float64()}
    | {"logit": pa.float64(), "mass": pa.float64(), "bounded": pa.bool_()}
)


@contextmanager
def answers_writer(path: Path) -> Iterator[Callable[[Sequence[AnswerRow]], None]]:
    """Write `answers.parquet`; it appears whole or not at all. Yields a function that takes the next rows."""
    with atomic_writer(path) as file, pq.ParquetWriter(file, _SCHEMA, **WRITING) as writer:
        waiting: list[dict[str, Any]] = []
        characters = 0

        def flush() -> None:
            nonlocal characters
            writer.write_table(pa.Table.from_pylist(waiting, _SCHEMA))
            waiting.clear()
            characters = 0

        def add(rows: Sequence[AnswerRow]) -> None:
            nonlocal characters
            for row in rows:
                waiting.append(_writable(row))
                characters += len(row.raw)
                if len(waiting) >= _GROUP or characters >= _GROUP_CHARACTERS:
                    flush()

        yield add
        flush()


def read_answers(path: Path, findings: Sequence[str]) -> Iterator[AnswerRow]:
    """Read `answers.parquet` of a run with these findings, row by row.

    Raises:
        OSError, ValueError, pyarrow.ArrowInvalid: The file cannot be read, or holds what no run writes.
    """
    with Table(path) as file:
        if not file.schema_arrow.equals(_SCHEMA):
            raise ValueError(f"{path.name} has not the columns that a run writes")
        for group in range(file.num_row_groups):
            for values in file.read_row_group(group, use_threads=False).to_pylist():
                if values["finding"] not in findings:
                    raise ValueError(f"{path.name} speaks of {values['finding']!r:.60}, which the run did not score")
                yield AnswerRow.checked(values)


def excerpt(raw: str, most: int = 400) -> str:
    """Return the end of an answer as it can be shown, for a trace of thinking comes first."""
    text = raw.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"\u2026{text[-most:]}"


def _writable(row: AnswerRow) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    if row.reasoning is not None:
        values["reasoning"] = row.reasoning.encode("utf-8", "replace").decode()
    try:
        row.raw.encode()
    except UnicodeEncodeError:
        values |= {"raw": json.dumps(row.raw), "escaped": True}
    return values
