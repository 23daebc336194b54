"""Families of models that answer, by their format of boxes: tags and words here, JSON in `json_grammar.py`."""

from __future__ import annotations

import difflib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from xbench.predictions.answer import Answer, Box, Finish
from xbench.predictions.conventions import Axis, Convention, checked_size
from xbench.predictions.json_grammar import flat_lists, part_that_counts, read_json, read_lists
from xbench.predictions.reading import NUMBER, Reading, ends_in_tag, number, plain
from xbench.runtime.errors import UsageError, UserError

_BIN = r"[0-9]{1,64}"
_BLANK = r"\s*+"
_CORNERS = re.compile(_BLANK.join(rf"<{axis}({_BIN})>" for axis in "xyxy"))
_PAIR = _BLANK.join((r"\(", f"({NUMBER})", ",", f"({NUMBER})", r"\)"))
_PAIRS = re.compile(rf"{_PAIR}\s*+,\s*+{_PAIR}")
_RUN = re.compile(rf"(?:<loc_{_BIN}>)++")
_LOC = re.compile(rf"<loc_({_BIN})>")
_CHEX = re.compile(r"\s*+\{\s*+\"boxes\"\s*+:\s*+\[([^{}]*)\]\s*+\}\s*+")
_CHEX_ROWS = re.compile(r"\s*+(?:\[[^\[\]]*+\]\s*+,\s*+)*+(?:\[[^\[\]]*+\]\s*+)?+")


@dataclass(frozen=True)
class Family(ABC):
    """Format of boxes in the answers of one family of models."""

    name: str
    convention: Convention  # default meaning of the numbers

    def read(self, raw: str, finish: Finish | None, convention: Convention, size: tuple[int, int]) -> Answer:
        """Read an answer, in time linear in its length.

        Args:
            raw: Text as received, with special tokens if the decoder returns them. No text raises an error.
            finish: Why generation ended, "stop" or "length"; None if unknown.
            convention: Meaning of the numbers; raises a UserError if it excludes images of this shape.
            size: Width and height of the radiograph in pixels.

        >>> family = FAMILIES["radvlm"]
        >>> answer = family.read("It lies at [0.2, 0.3, 0.4, 0.5].", "stop", family.convention, (1024, 1024))
        >>> answer.status, answer.boxes
        ('answered', (Box(x0=0.2, y0=0.3, x1=0.4, y1=0.5),))
        """
        if not isinstance(raw, str):
            raise UserError(f"An answer of family {self.name!r} must be text, not {type(raw).__name__}.")
        reading = Reading(convention, checked_size(size))
        part = self._read(plain(raw), reading)
        return reading.answer(raw, finish, part)

    def write(self, boxes: Sequence[Box], finding: str, convention: Convention, size: tuple[int, int]) -> str:
        """Write boxes as precisely as the family's format allows, without parts outside the convention.

        >>> family = FAMILIES["radvlm"]
        >>> family.write([Box(0.204, 0.3, 0.4, 0.5)], "nodule", family.convention, (1024, 1024))
        'nodule is located at [0.20, 0.30, 0.40, 0.50].'
        """
        x, y = convention.axes(checked_size(size))
        step, texts = convention.step, []
        for box in boxes:
            across, down = _span(x, step, box.x0, box.x1), _span(y, step, box.y0, box.y1)
            if across and down:
                corners = zip(*((down, across) if convention.y_first else (across, down)), strict=True)
                digits = 2 if step < 1 else 0
                texts.append([f"{one:.{digits}f}" if step else repr(one) for corner in corners for one in corner])
        return self._write(texts, finding)

    @abstractmethod
    def _read(self, text: str, reading: Reading) -> str:
        """Add the boxes in a plain text; return the part whose words may deny the finding."""

    @abstractmethod
    def _write(self, boxes: list[list[str]], finding: str) -> str:
        """Return the text of zero or more boxes, four numbers each in the order of the convention."""


class Maira2(Family):
    """`<obj>phrase <box><xA><yB><xC><yD></box></obj>`; no box denies the phrase."""

    def _read(self, text: str, reading: Reading) -> str:
        reading.cut = any(_more_opened(text, f"<{tag}>", f"</{tag}>") for tag in ("obj", "box")) or ends_in_tag(text)
        for content in _between(text, "<box>", "</box>"):
            corners = _CORNERS.search(content)
            bins = [int(one) for one in corners.groups()] if corners else []
            if bins and max(bins) < 100:
                reading.add_box(bins, zeros_are_none=False)
            else:
                reading.dropped += 1
        reading.none = any("<box>" not in phrase for phrase in _between(text, "<obj>", "</obj>"))
        return text

    def _write(self, boxes: list[list[str]], finding: str) -> str:
        text = "".join(f"<box><x{x0}><y{y0}><x{x1}><y{y1}></box>" for x0, y0, x1, y1 in boxes)
        return f"<obj>{finding}{' ' if text else ''}{text}</obj>"


class CheXagent2(Family):
    """`<|ref|>name<|/ref|><|box|>(x1,y1),(x2,y2)<|/box|>`; the name is optional."""

    def _read(self, text: str, reading: Reading) -> str:
        opened = any(_more_opened(text, f"<|{tag}|>", f"<|/{tag}|>") for tag in ("ref", "box"))
        reading.cut = opened or ends_in_tag(text)
        for content in _between(text, "<|box|>", "<|/box|>"):
            if pairs := _PAIRS.fullmatch(content.strip()):
                reading.add_list(",".join(pairs.groups()))
            else:
                reading.dropped += 1
        return text

    def _write(self, boxes: list[list[str]], finding: str) -> str:
        if not boxes:
            return f"No {finding} detected."
        tagged = (f"<|box|>({x0},{y0}),({x1},{y1})<|/box|>" for x0, y0, x1, y1 in boxes)
        return f"<|ref|>{finding}<|/ref|>{''.join(tagged)}"


class RadVLM(Family):
    """Sentence with `[x1, y1, x2, y2]`; round brackets are prose."""

    def _read(self, text: str, reading: Reading) -> str:
        reading.cut = _more_opened(text, "[", "]")
        # A comma after the last number makes a list prose here, but not in JSON.
        read_lists((one for one in flat_lists(text) if not one.rstrip().endswith(",")), reading)
        return text

    def _write(self, boxes: list[list[str]], finding: str) -> str:
        if not boxes:
            return f"There is no {finding}."
        return f"{finding} is located at {' and '.join(_list(box) for box in boxes)}."


class InternVL(Family):
    """`<ref>phrase</ref><box>[[x1, y1, x2, y2], ...]</box>`; otherwise JSON."""

    def _read(self, text: str, reading: Reading) -> str:
        part, reading.cut = part_that_counts(text)
        if "<box>" not in part:
            read_json(part, reading)
            return part
        reading.cut |= _more_opened(part, "<box>", "</box>") or _more_opened(part, "[", "]") or ends_in_tag(part)
        for content in _between(part, "<box>", "</box>"):
            lists = list(flat_lists(content))
            for each in lists:
                reading.add_list(each)
            if not lists:
                reading.none |= not content.strip()
                reading.dropped += bool(content.strip())
        return part

    def _write(self, boxes: list[list[str]], finding: str) -> str:
        return f"<ref>{finding}</ref><box>[{', '.join(_list(box) for box in boxes) or '[]'}]</box>"


class Florence2(Family):
    """`label<loc_a><loc_b><loc_c><loc_d>`, repeated; four zeros mean no box."""

    def _read(self, text: str, reading: Reading) -> str:
        broken = ends_in_tag(text)
        end = text.rfind("<") if broken else len(text.rstrip())
        for run in _RUN.finditer(text, 0, end):
            bins = [int(one) for one in _LOC.findall(run[0])]
            for at in range(0, len(bins), 4):
                group = bins[at : at + 4]
                if len(group) == 4 and max(group) < 1000:
                    reading.add_box(group)
                elif len(group) == 4 or run.end() < end:
                    reading.dropped += 1
                else:
                    broken = True  # cut off by the end of the text
        reading.cut = broken
        return text

    def _write(self, boxes: list[list[str]], finding: str) -> str:
        return "".join(finding + "".join(f"<loc_{bin}>" for bin in box) for box in boxes or [["0"] * 4])


@dataclass(frozen=True)
class JSONFamily(Family):
    """JSON-like text, as Qwen writes it, optionally after thinking."""

    key: str  # key of a box
    layout: Literal["fenced", "final", "object"] = "fenced"  # list, list after `Final Answer:`, or object

    def _read(self, text: str, reading: Reading) -> str:
        part, reading.cut = part_that_counts(text)
        read_json(part, reading)
        return part

    def _write(self, boxes: list[list[str]], finding: str) -> str:
        label = json.dumps(finding)
        objects = ", ".join(f'{{"{self.key}": {_list(box)}, "label": {label}}}' for box in boxes)
        if self.layout == "object":
            return f'{{"boxes": [{objects}]}}'
        return f"{'Final Answer: ' if self.layout == 'final' else ''}```json\n[{objects}]\n```"


class CheX(Family):
    """Tensor of ChEX as `{"boxes": [[cx, cy, w, h, weight], ...]}`; weak and overlapping boxes are left out."""

    def _read(self, text: str, reading: Reading) -> str:
        reading.cut = _more_opened(text, "[", "]") or _more_opened(text, "{", "}")
        table = _CHEX.fullmatch(text)
        if not table or not _CHEX_ROWS.fullmatch(table[1]):
            return text
        rows = [row.split(",") for row in flat_lists(table[1])]
        if any(len(row) != 5 for row in rows):
            return text
        reading.none = True  # overruled by kept or dropped boxes
        boxes, weights = [], []
        for row in rows:
            values = [value for cell in row if (value := number(cell)) is not None]
            if len(values) < 5 or min(values[2:4]) <= 0:
                reading.dropped += 1
                continue
            x, y, width, height, weight = values
            corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            boxes.append([min(max(one, 0.0), 1.0) for one in corners])
            weights.append(weight)
        for at in keep_strongest(boxes, weights):
            reading.add_box(boxes[at], weights[at] if weights[at] <= 1 else None)
        return text

    def _write(self, boxes: list[list[str]], finding: str) -> str:
        numbers = ([float(one) for one in box] for box in boxes)
        rows = [[(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0, 1.0] for x0, y0, x1, y1 in numbers]
        return json.dumps({"boxes": rows})


def family_named(name: str) -> Family:
    """Return a family by name, or raise a UserError that suggests similar names."""
    if name in FAMILIES:
        return FAMILIES[name]
    near = difflib.get_close_matches(name, FAMILIES, 3, cutoff=0.4)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    known = f"{', '.join(FAMILIES)}, and for `score` report and words"
    raise UsageError(f"There is no family of answers {name!r}.{meant} The families are {known}.")


def keep_strongest(
    boxes: Sequence[Sequence[float]], weights: Sequence[float], overlap: float = 0.25, least: float = 0.3
) -> list[int]:
    """Select boxes by non-maximum suppression, strongest first.

    A box (x0, y0, x1, y1) is dropped if its weight is below `least`, or its IoU with a kept box that is stronger, or
    earlier with the same weight, is above `overlap`.
    """
    weight = np.asarray(weights, np.float64)
    strong = np.flatnonzero(weight >= least)  # weaker boxes suppress no stronger one
    strong = strong[np.argsort(-weight[strong], kind="stable")]
    x0, y0, x1, y1 = np.ascontiguousarray(np.asarray(boxes, np.float64).reshape(-1, 4)[strong].T)
    area = (x1 - x0) * (y1 - y0)
    left, kept = np.ones(len(strong), np.bool_), []
    for at in range(len(strong)):
        if left[at]:
            kept.append(int(strong[at]))
            width = np.minimum(x1[at:], x1[at]) - np.maximum(x0[at:], x0[at])
            height = np.minimum(y1[at:], y1[at]) - np.maximum(y0[at:], y0[at])
            shared = np.maximum(width, 0) * np.maximum(height, 0)
            left[at:] &= shared <= overlap * (area[at] + area[at:] - shared)
    return kept


def _span(axis: Axis, step: float, low: float, high: float) -> tuple[float, float] | None:
    """Return the closest numbers to two fractions of a side, a step apart; None outside the range."""
    start, end = (pixels / axis.side for pixels in (axis.start, axis.start + axis.extent))
    if high <= start or low >= end:
        return None
    first, second = axis.from_fraction(low), axis.from_fraction(high)
    if not step:
        return first, second
    middle = (first + second) / 2
    first, second = (round(number / step) * step for number in (first, second))
    if first < second:
        return first, second
    # Widen a box that is narrower than a step toward its own side, or where there is room.
    last = axis.top - 1 if axis.bins else axis.top
    if (middle > first or first - step < 0) and first + step <= last:
        return first, first + step
    return first - step, first


def _between(text: str, opening: str, closing: str) -> Iterator[str]:
    """Yield the text between each opening tag and the next closing tag."""
    at = 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start)) >= 0:
        yield text[start + len(opening) : end]
        at = end + len(closing)


def _more_opened(text: str, opening: str, closing: str) -> bool:
    return text.count(opening) > text.count(closing)


def _list(box: list[str]) -> str:
    return f"[{', '.join(box)}]"


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Maira2("maira2", Convention.named("bins100_centre_square")),
        JSONFamily("medgemma", Convention.named("thousand_padded_yx"), "box_2d", "final"),
        CheXagent2("chexagent2", Convention.named("percent_whole")),
        RadVLM("radvlm", Convention.named("fraction_whole")),
        JSONFamily("qwen25vl", Convention.named("pixels_resized"), "bbox_2d"),
        JSONFamily("qwen3vl", Convention.named("thousand_whole"), "bbox_2d"),
        InternVL("internvl", Convention.named("thousand_whole")),
        Florence2("florence2", Convention.named("loc1000_whole")),
        Florence2("agkd", Convention.named("loc1000_padded512")),
        CheX("chex", Convention.named("fraction_centre_square")),
        JSONFamily("endpoint", Convention.named("thousand_whole"), "box", "object"),
    )
}
"""All families by name."""
