"""Reader of boxes in JSON-like text of Qwen, MedGemma and others, found by keys rather than parsed.

One linear pass, so that 100,000 brackets neither overflow the stack nor take hours.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from xbench.predictions.reading import NUMBER, Reading, number, numbers

_BOX_KEYS = ("box_2d", "bbox_2d", "bbox", "bboxes", "box", "boxes", "bounding_box", "bounding_boxes", "coordinates")
_POINT_KEYS = ("point_2d", "points_2d", "point", "points")
_CORNERS = [names.split() for names in ("x1 y1 x2 y2", "x0 y0 x1 y1", "xmin ymin xmax ymax", "x_min y_min x_max y_max")]
_AROUND = 1_000  # characters around a box that are searched for its confidence


def _key(names: tuple[str, ...], after: str = "") -> re.Pattern[str]:
    words = "|".join(names)
    return re.compile(rf"(?:([\"'])(?P<quoted>{words})\1|(?<!\w)(?P<bare>{words}))\s*+[:=]{after}", re.IGNORECASE)


# Markdown for emphasis and code may come between a key and its value.
_KEY = _key(_BOX_KEYS + _POINT_KEYS, r"[\s*`]*+")
_CONFIDENCE = _key(("confidence", "score", "probability"), rf"\s*+[\"']?+\s*+(?P<value>{NUMBER})(?P<percent>\s*+%)?+")
_NONE = re.compile(r"(?:null|none|n/a)(?!\w)", re.IGNORECASE)
_QUOTED = re.compile(r"\"([^\"]*+)\"|'([^']*+)'")
_OBJECT = re.compile(r"\{([^{}]*+)\}")
_CORNER = re.compile(rf"[\"']?+(?<!\w)([a-z_0-9]++)[\"']?+\s*+[:=]\s*+[\"']?+({NUMBER})(?![\w.])", re.IGNORECASE)
_BRACKET = re.compile(r"[\[\](){}]")
_FLAT_LIST = re.compile(r"\[([^\[\](){}]*+)\]|\(([^\[\](){}]*+)\)")
_PAIR = rf"\(\s*+{NUMBER}\s*+,\s*+{NUMBER}\s*+\)"
_PAIR_OR_LIST = re.compile(rf"(?P<pairs>{_PAIR}\s*+,\s*+{_PAIR})|(?P<null>(?<!\w)null(?!\w))|{_FLAT_LIST.pattern}")
_OPENED = re.compile(r"<(?:think|thinking|unused94)>", re.IGNORECASE)
_TAG_OR_BOX = re.compile(r"</?\|?/?[a-z][^<>\n]{0,64}>|[\[(][-+\d.\s]++,[-+\d.,\s]*+[\])]", re.IGNORECASE)
_CLOSED = re.compile(r"<(?:/think|/thinking|unused95)>", re.IGNORECASE)
_ANSWER = re.compile(r"<answer>", re.IGNORECASE)
_ANSWER_END = re.compile(r"</answer>", re.IGNORECASE)
_FINAL = re.compile(r"final answer:", re.IGNORECASE)


def part_that_counts(text: str) -> tuple[str, bool]:
    """Return the answer, in `<answer>` or after `Final Answer:` or thinking, and whether thinking is unfinished."""
    text = text[_after_last(_CLOSED, text) :]
    trace = _after_last(_OPENED, text)
    if (answer := _after_last(_ANSWER, text)) > trace:
        end = _ANSWER_END.search(text, answer)
        return text[answer : end.start() if end else len(text)], False
    if (final := _after_last(_FINAL, text)) > trace:
        return text[final:], False
    return ("", True) if trace else (text, False)


def without_boxes(raw: str) -> str:
    """Return the words of an answer: without a trace of thinking, tags and lists of numbers."""
    return _TAG_OR_BOX.sub(" ", part_that_counts(raw)[0])


def read_json(part: str, reading: Reading) -> None:
    """Add the boxes and points of an answer without thinking."""
    reading.cut |= part.count("[") > part.count("]") or part.count("{") > part.count("}")
    if not _KeyedValues(part, reading).read():  # otherwise lists without a key, and pairs of corners, are boxes
        found = _PAIR_OR_LIST.finditer(part)
        read_lists((re.sub(r"[()]", "", one["pairs"] or one[3] or one[4] or "") for one in found), reading)


def keyed_confidence(text: str) -> float | None:
    """Return the first confidence under a key, in [0, 1]; None if there is none."""
    found = _CONFIDENCE.search(text)
    return _confidence(found) if found else None


def flat_lists(text: str) -> Iterator[str]:
    """Yield the content of each innermost list in `[ ]`, in order."""
    for found in _FLAT_LIST.finditer(text):
        if found[1] is not None:
            yield found[1]


def read_lists(contents: Iterator[str], reading: Reading) -> None:
    """Add all lists of four numbers as boxes; drop other lists if there is nothing else."""
    others = 0
    for content in contents:
        values = numbers(content)
        if values and len(values) == 4:
            reading.add_box(values)
        elif values:
            others += 1
        elif values is not None:
            reading.none = True
    if not reading.found and not reading.none:
        reading.dropped += others


class _KeyedValues:
    """Values of keys that name boxes or points, read in one pass."""

    def __init__(self, part: str, reading: Reading) -> None:
        self._part, self._reading = part, reading
        self._braces = _Braces(part)
        self._confidences: dict[int | None, list[tuple[int, re.Match[str]]]] = {}
        for found in _CONFIDENCE.finditer(part):
            self._confidences.setdefault(self._braces.around(found.start()), []).append((found.start(), found))
        self._any = False

    def read(self) -> bool:
        at = 0
        while found := _KEY.search(self._part, at):
            at = self._value(found, (found["quoted"] or found["bare"]).lower() in _POINT_KEYS)
        return self._any

    def _value(self, key: re.Match[str], points: bool) -> int:
        """Read the value of a key; return where to continue."""
        start = key.end()
        first = self._part[start : start + 1]
        if first in ("[", "("):
            lists, end, broken = _lists(self._part, start)
        elif points:
            return start
        elif quoted := _QUOTED.match(self._part, start):
            value, end, broken = (quoted[1] if quoted[1] is not None else quoted[2]).strip(), quoted.end(), False
            if value[:1] in ("[", "("):
                lists, _, broken = _lists(value, 0)
            else:
                lists = [value]
        elif first == "{":
            return self._named_corners(key, start)
        elif none := _NONE.match(self._part, start):
            self._reading.none = self._any = True
            return none.end()
        elif not first or first in "\"'" or first.isalpha():
            return start + len(first)  # end of the text, or prose
        else:
            lists, end, broken = [], start, True
        for content in lists:
            values = numbers(content)
            if not values or len(values) != (2 if points else 4):
                self._malformed_or_none(content)
            elif points:
                self._reading.add_point(values)
                self._any = True
            else:
                self._box(key, end, values)
        self._reading.dropped += broken
        self._any |= broken and not points
        return end

    def _named_corners(self, key: re.Match[str], start: int) -> int:
        content = _OBJECT.match(self._part, start)
        if not content or _KEY.search(content[1]):
            return start + 1  # an object with nested objects or keys of its own
        named = {name.lower(): number(value) for name, value in _CORNER.findall(content[1])}
        for corners in _CORNERS:
            values = [value for name in corners if (value := named.get(name)) is not None]
            if len(values) == 4:
                self._box(key, content.end(), values, x_first=True)
                return content.end()
        self._malformed_or_none(content[1])
        return content.end()

    def _box(self, key: re.Match[str], end: int, values: list[float], x_first: bool = False) -> None:
        self._any = True
        stated = self._confidences.get(brace, []) if (brace := self._braces.around(key.start())) is not None else []
        near = stated[bisect_right(stated, key.start() - _AROUND, key=lambda one: one[0]) :][:1]
        confidence = _confidence(near[0][1]) if near and near[0][0] <= end + _AROUND else None
        self._reading.add_box(values, confidence, x_first=x_first)

    def _malformed_or_none(self, content: str) -> None:
        self._any = True
        if not content.strip() or _NONE.fullmatch(content.strip()):
            self._reading.none = True
        else:
            self._reading.dropped += 1


class _Braces:
    """Index of the innermost braces around each place of a text."""

    def __init__(self, text: str) -> None:
        self._places, self._innermost = [-1], [None]  # type: list[int], list[int | None]
        opened: list[int] = []
        for brace in re.finditer(r"[{}]", text):
            if brace[0] == "{":
                opened.append(brace.start())
            elif opened:
                opened.pop()
            self._places.append(brace.start())
            self._innermost.append(opened[-1] if opened else None)

    def around(self, place: int) -> int | None:
        """Return the place of the opening brace; None outside of braces."""
        return self._innermost[bisect_right(self._places, place) - 1]


def _lists(text: str, start: int) -> tuple[list[str], int, bool]:
    """Return the innermost lists at `start`, their end, and whether they are malformed (not if only cut off)."""
    lists: list[str] = []
    opened: list[str] = []
    since = start
    for bracket in _BRACKET.finditer(text, start):
        mark, at = bracket[0], bracket.start()
        if mark in "[(":
            opened.append("]" if mark == "[" else ")")
        elif mark == "{":
            return lists, at, False
        elif mark != opened.pop():
            return lists, at, True
        elif text[since] in "[(":  # the previous bracket, so the list is innermost
            lists.append(text[since + 1 : at])
        since = at
        if not opened:
            return lists, at + 1, False
    return lists, len(text), False


def _confidence(found: re.Match[str]) -> float | None:
    if (value := number(found["value"])) is None:
        return None
    value = value / 100 if found["percent"] is not None or value > 1 else value
    return value if 0 <= value <= 1 else None


def _after_last(mark: re.Pattern[str], text: str) -> int:
    return max((found.end() for found in mark.finditer(text)), default=0)
