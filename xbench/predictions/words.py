"""Free text to mentions: which findings a report or an answer asserts, denies or doubts, and where it places them.

Deterministic rules over the public vocabulary in `words.yaml`, without weights, in time linear in length. A text is cut
into sentences (here), whose words are read by `sentences.py`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from xbench.findings.names import TABLE
from xbench.predictions.answer import Finish
from xbench.predictions.sentences import Item, Place, understand
from xbench.runtime.errors import UserError
from xbench.runtime.yaml_files import load_yaml

Side = Literal["left", "right", "midline"]
Zone = Literal["upper", "middle", "lower"]
MentionStatus = Literal["asserted", "negated", "uncertain"]
TextStatus = Literal["truncated", "empty", "read", "normal", "declined", "unreadable"]

_STATUSES: tuple[MentionStatus, ...] = ("asserted", "uncertain", "negated")  # the first of them counts
_SIDES, _ZONES = ("left", "right", "midline"), ("upper", "middle", "lower")
_LONGEST = 100_000  # characters that are read
_WINDOW = 8  # words around a finding, or a side, that may change its meaning

_CHARACTERS = str.maketrans(  # bullets, dashes, quotes, then marks of Markdown and blanks
    dict.fromkeys("\r\u2022\u25aa\u25cf\u25e6", "\n")
    | {"\u2014": ",", "\u2192": ":", "|": ":"}
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
    | dict.fromkeys("\u201c\u201d\u201e", '"')
    | dict.fromkeys("\u2018\u2019\u00b4`", "'")
    | dict.fromkeys("*#_~\u00a0\u200b", " ")
)
_THOUGHT = re.compile(r"<think>(?:(?!</think>).)*+(?:</think>)?+", re.DOTALL | re.IGNORECASE)
_LINES = re.compile(r"\n\s*+")
_BULLET = re.compile(r"[-+>]|\d{1,2}[.)]\s")
_HEADING = re.compile(r"(?:\A|(?<=[\n.?!:;]))[ \"'{}-]{0,8}+([A-Za-z][A-Za-z /&()-]{1,40}?)[ \"]{0,3}(?::|(?=\n|\Z))")
_TOKEN = re.compile(r"\d++[.,]\d++|[^\W_]++(?:'[^\W_]++)*+|\"\s*+,\s*+\"|\n|(?<!\w)-|-(?!\w)|[.!?,;:/<>()&+]")


@dataclass(frozen=True)
class Mention:
    """All that one text states about one finding with one status."""

    finding: str  # canonical name
    status: MentionStatus
    sides: tuple[Side, ...]  # of the patient, sorted; both if bilateral; midline stands alone; empty: none stated
    zones: tuple[Zone, ...]  # from upper to lower; empty: none stated
    span: tuple[int, int]  # characters of the first expression that it was read from
    flags: tuple[str, ...]  # sorted: viewer_frame, inherited, implied_side, corrected, and words such as peripheral


@dataclass(frozen=True)
class TextReading:
    """What was read out of a text: its status, and mentions in the order in which they begin."""

    status: TextStatus
    mentions: tuple[Mention, ...]


@dataclass(frozen=True)
class Stated:
    """What a text states about one finding and those that answer for it; an empty status if it mentions none."""

    status: Literal["asserted", "uncertain", "negated", ""]
    sides: frozenset[Side]  # of asserted and uncertain mentions
    zones: frozenset[Zone]


class Vocabulary:
    """The words that texts are read by.

    Attributes:
        sha256: Digest of the file.
        findings: Canonical names that can be read.
        unsided: Findings that never have sides or zones.
        accepts: By finding, the others that answer for it as well.
    """

    def __init__(self, content: Mapping[str, Any], sha256: str) -> None:
        known = {finding.name for finding in TABLE}
        self.sha256 = sha256
        self.findings = frozenset(content["findings"])
        self.unsided = frozenset(content["unsided"])
        self.accepts = {finding: frozenset(others) for finding, others in content["accepts"].items()}
        named = {*self.findings, *self.unsided, *self.accepts, *(one for of in self.accepts.values() for one in of)}
        if unknown := sorted(named - known):
            raise ValueError(f"{unknown[0]!r} is not a finding of `xbench list findings`")
        self._near = {
            finding: [(name, frozenset(words)) for name, words in near.items()]
            for finding, near in content["near"].items()
        }
        self._trie: dict[str, Any] = {}
        self._add_sections(content)
        words = set(_words_of(self._trie))
        self._known = words | {*content["spelled right"]}
        sides = {word for key in ("left", "right", "left right") for word in _tokens_of(content["places"][key])}
        self._targets: dict[str, list[tuple[str, frozenset[str]]]] = {}
        for word in sorted(words - sides):
            if len(word) > 4:
                self._targets.setdefault(word[0], []).append((word, frozenset(word)))
        self._corrected: dict[str, str] = {}
        headings = content["sections"]
        self._skipped, self._read_under, self._named = (
            {" ".join(words) for words in _tokens_of(headings[key], whole=True)} for key in ("skipped", "read", "named")
        )
        self._abbreviations = frozenset(content["abbreviations"])
        self._questions = frozenset(content["questions"])
        self._ignored = frozenset(content["ignored"])

    @classmethod
    def of(cls, path: Path | None = None) -> Vocabulary:
        """Read a vocabulary file, by default the one of the package; raise a UserError if it is none."""
        file = Path(__file__).with_name("words.yaml") if path is None else path
        try:
            return _build(file.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, yaml.YAMLError) as error:
            problem = f"it lacks {error}" if isinstance(error, LookupError) else " ".join(str(error).split())
            raise UserError(
                f"{file} cannot be read as a vocabulary: {problem[:300]}. Start from a copy of "
                f"{Path(__file__).with_name('words.yaml')}, which explains its sections, and keep all of them."
            ) from error

    def read(self, text: str, asked: str | None = None, finish: Finish | None = None) -> TextReading:
        """Read a text, never raising, in time linear in its length; characters after the first 100,000 are left out.

        Args:
            text: A report, or an answer.
            asked: Finding whose place was asked for, by canonical name; None for a report.
            finish: Why generation ended; `length` makes the status `truncated`.
        """
        mentions: list[Item] = []
        answers: list[Item] = []  # what sentences without a finding state about the one that was asked for
        last: Item | None = None
        normal = declined = False
        for items, question in self._sentences(_plain(text[:_LONGEST])):
            opens = items[0].has("speaks of the last")
            if question and (asked or any(word in self._questions for item in items[:4] for word in item.words)):
                continue
            if question:
                items.append(Item({"uncertain": True}, ("?",), (items[-1].span[1],) * 2))
            said = None
            if asked and items[0].has("affirms", "denies") and (len(items) == 1 or items[1].has("comma", "parts")):
                said = items.pop(0)
            free = understand(items)
            refused = any(item.has("declined") for item in items)
            declined |= refused
            found = [item for item in items if item.findings and item.status != "dropped" and not refused]
            normal |= any(
                "" in item.findings and item.status == "negated" and not item.before + item.after for item in found
            )
            if found and opens and last is not None and not found[0].before + found[0].after:
                cued = items[: items.index(found[0])]
                if found[0].status != "negated" and any(item.has("explains", "uncertain") for item in cued):
                    found[0].before.extend(last.before + last.after)
                    found[0].flags.add("inherited")
            if not any(item.anchor for item in items):
                if opens and free and last is not None and not any(item.has("negated", "dropped") for item in items):
                    last.after.extend(item.place for item in free if item.place is not None)
                    last.flags.add("inherited")
                elif asked and not refused:
                    answers += self._answer(items, free, said)
            elif said is not None:
                answers += self._answer([], [], said)
            mentions += [item for item in found if any(item.findings)]
            last = next((item for item in reversed(mentions) if item.status != "negated"), None)
        if asked and not any(asked in item.findings for item in mentions):
            for item in answers:
                item.findings = (asked,)
            mentions += answers
        merged = self._merge(mentions)
        return TextReading(_text_status(text, merged, normal, declined, finish), merged)

    def stated(self, reading: TextReading, finding: str, strict: bool = False) -> Stated:
        """Return what a text states about a finding: the union over it and, unless `strict`, what it accepts."""
        names = {finding} if strict else {finding, *self.accepts.get(finding, ())}
        mentions = [mention for mention in reading.mentions if mention.finding in names]
        placed = [mention for mention in mentions if mention.status != "negated"]
        return Stated(
            next((status for status in _STATUSES if any(mention.status == status for mention in mentions)), ""),
            frozenset(side for mention in placed for side in mention.sides),
            frozenset(zone for mention in placed for zone in mention.zones),
        )

    def _add_sections(self, content: Mapping[str, Any]) -> None:
        for finding, expressions in content["findings"].items():
            self._add(expressions, "findings", (finding,))
        self._add(content["abnormality"], "findings", ("",))
        for state in content["states"].values():
            self._add(state["part"], "part", state["finding"])
            for status in (*_STATUSES, "nothing"):
                self._add(state.get(status, ()), "states", {state["finding"]: (state["finding"], status)})
            self._add(state.get("place", ()), "states", {"": (state["finding"], "negated")})
        for key, expressions in content["places"].items():
            stated, _, implied = key.partition("implied")
            words, sides = {*stated.split(), *implied.split()}, frozenset(implied.split()) & {*_SIDES}
            if strange := words - {*_SIDES, *_ZONES}:
                raise ValueError(f"places: {min(strange)!r} in {key!r} is neither a side nor a zone")
            place = Place(frozenset(stated.split()) & {*_SIDES}, frozenset(words & {*_ZONES}), sides)
            self._add(expressions, "places", place)
        for key, expressions in content["bands"].items():
            self._add(expressions, *(("before", True) if key == "before" else ("bands", (key,))))
        for key, expressions in content["initials"].items():
            self._add(expressions, "initials", Place(frozenset([key])))
        for word in content["flags"]:
            self._add([word], "places", Place(flags=frozenset([word])))
        for key in ("fillers", "images", "before"):
            self._add(content["viewer"][key], f"viewer {key}", True)
        for kind, reaches in content["cues"].items():
            for reach, expressions in reaches.items():
                self._add(expressions, kind, reach == "around")
        for role in (
            *("look-alikes", "devices", "no places", "explains", "adjacent", "parts", "limits", "and", "or", "verbs"),
            *("prepositions", "sizes", "speaks of the last", "affirms", "denies", "declined"),
        ):
            self._add(content[role], role, True)

    def _add(self, expressions: Sequence[str], role: str, value: Any) -> None:
        for words in _tokens_of(expressions, whole=True):
            node = self._trie
            for word in words:
                node = node.setdefault(word, {})
            roles = node.setdefault("", {})
            if role in ("findings", "states") and role in roles:
                value = roles[role] | value if role == "states" else (*dict.fromkeys(roles[role] + value),)
            roles[role] = value

    def _sentences(self, text: str) -> Iterator[tuple[list[Item], bool]]:
        """Yield the items of each sentence that has any, and whether it ends with a question mark."""
        tokens: list[tuple[str, int, int, bool]] = []
        text = self._without_sections(text)
        for match in _TOKEN.finditer(text):
            word, (start, end) = match[0].lower(), match.span()
            touches = bool(tokens) and tokens[-1][2] == start
            if word in ("\n", "!") or word[0] == '"' or (word == "." and self._ends(tokens, text, end)):
                yield from self._sentence(tokens, False)
                tokens = []
            elif word == "?" and (
                (touches and not text[end : end + 1].isalnum()) or not text[end : end + _WINDOW].strip()
            ):
                yield from self._sentence(tokens, True)
                tokens = []
            elif word != ".":
                correct = self._correct(word)
                tokens.append((correct, start, end, correct != word and not word.endswith("n't")))
        yield from self._sentence(tokens, False)

    def _ends(self, tokens: Sequence[tuple[str, int, int, bool]], text: str, end: int) -> bool:
        following = text[end : end + 1]
        if not tokens or tokens[-1][0] in self._abbreviations:
            return False
        return not following.isalnum() or (following.isupper() and len(tokens[-1][0]) > 1)

    def _sentence(
        self, tokens: Sequence[tuple[str, int, int, bool]], question: bool
    ) -> Iterator[tuple[list[Item], bool]]:
        items: list[Item] = []
        i = 0
        while i < len(tokens):
            roles, length = self._match(tokens, i)
            words = tuple(token[0] for token in tokens[i : i + length])
            if not (length == 1 and words[0] in self._ignored):
                item = Item(roles, words, (tokens[i][1], tokens[i + length - 1][2]))
                item.flags.update(["corrected"] if any(token[3] for token in tokens[i : i + length]) else [])
                if "findings" in roles:
                    item.findings = self._named_near(roles["findings"], tokens, i, i + length)
                    item.roles = {role: value for role, value in roles.items() if role != "findings"}
                items.append(item)
            i += length
        for i, item in enumerate(items):
            following = items[i + 1] if i + 1 < len(items) else None
            if "initials" in item.roles and following is not None and following.words[0][0].isalnum():
                item.roles = {"places": item.roles["initials"]}
            if "places" in item.roles and len(item.roles["places"].sides) == 1 and _of_viewer(items, i):
                place = item.roles["places"]
                turned = frozenset({"left": "right", "right": "left"}.get(side, side) for side in place.sides)
                item.roles = {**item.roles, "places": place._replace(sides=turned, flags=frozenset(["viewer_frame"]))}
        if items:
            yield items, question

    def _match(self, tokens: Sequence[tuple[str, int, int, bool]], i: int) -> tuple[Mapping[str, Any], int]:
        """Return the roles of the longest expression that begins at a token, and its length in tokens."""
        word = tokens[i][0]
        roles, length = ({"comma": True} if word in (",", "(", ")", "-") else {}), 1
        node, j = self._trie, i
        while j < len(tokens):
            word = tokens[j][0]
            if word in node:
                node = node[word]
                if "" in node:
                    roles, length = node[""], j + 1 - i
            elif word not in self._ignored or j == i:
                break
            j += 1
        return roles, length

    def _named_near(
        self, findings: tuple[str, ...], tokens: Sequence[tuple[str, int, int, bool]], start: int, end: int
    ) -> tuple[str, ...]:
        """Return what the words near a finding make of it."""
        near: list[str] = []
        for part in (reversed(tokens[max(0, start - _WINDOW) : start]), tokens[end : end + _WINDOW]):
            for token in part:
                if not token[0][0].isalnum() or "parts" in self._trie.get(token[0], {}).get("", ()):
                    break
                near.append(token[0])
        named: list[str] = []
        for finding in findings:
            others = [name for name, words in self._near.get(finding, ()) if not words.isdisjoint(near)]
            named += others or [finding]
        return tuple(name for name in named if name or "" in findings)

    def _correct(self, word: str) -> str:
        if word in self._known or len(word) < 6:
            return word
        if word.endswith("n't"):
            return "cannot" if word == "can't" else "not"
        if len(word) > 20 or not word.isalpha():
            return word
        if word not in self._corrected:
            edits, letters = 2 if len(word) > 8 else 1, frozenset(word)
            close = (
                target
                for target, its_letters in self._targets.get(word[0], ())
                if abs(len(target) - len(word)) <= edits
                and len(letters ^ its_letters) <= 2 * edits
                and _within(word, target, edits)
            )
            if len(self._corrected) > 10_000:
                self._corrected.clear()
            self._corrected[word] = min(close, key=lambda target: (not _within(word, target, 1), target), default=word)
        return self._corrected[word]

    def _without_sections(self, text: str) -> str:
        """Return the text with the sections that are not read, and headings of others, as blank lines."""
        parts, kept, start = [], True, 0
        for match in _HEADING.finditer(text):
            name = " ".join(re.findall(r"[a-z]+", match[1].lower()))
            skipped, hidden = name in self._skipped, name in self._read_under
            named = match[0].endswith(":") and (match[1].isupper() or name in self._named)
            if skipped or hidden or (named and not kept):
                parts.append(text[start : match.start()] if kept else "\n" * (match.start() - start))
                start = match.start()
                if skipped or hidden:
                    parts.append("\n" * len(match[0]))
                    start = match.end()
                kept = not skipped
        parts.append(text[start:] if kept else "\n")
        return "".join(parts)

    def _answer(self, items: Sequence[Item], free: Sequence[Item], said: Item | None) -> list[Item]:
        """Return what a sentence without a finding states about the one that was asked for, if anything."""
        denied = any(item.has("negated") for item in items) or (said is not None and said.has("denies"))
        if not (free or said is not None or denied):
            return []
        span = (said or items[0]).span[0], (items[-1] if items else said or items[0]).span[1]
        doubted = any(item.has("uncertain") for item in items)
        status = "negated" if denied else "uncertain" if doubted else "asserted"
        return [Item({}, (), span, status=status, after=[item.place for item in free if item.place is not None])]

    def _merge(self, mentions: Sequence[Item]) -> tuple[Mention, ...]:
        merged: dict[tuple[str, str], Mention] = {}
        for item in sorted(mentions, key=lambda item: item.span):
            places = item.before + item.after
            sides = {side for place in places for side in place.sides}
            implied = {side for place in places for side in place.implied} if not sides else set()
            sides = sides | implied
            sides = sides - {"midline"} if len(sides) > 1 else sides
            zones = {zone for place in places for zone in place.zones}
            flags = item.flags | {flag for place in places for flag in place.flags}
            flags |= {"implied_side"} if implied else set()
            for finding in filter(None, item.findings):
                if finding in self.unsided:
                    sides, zones, flags = set(), set(), flags & {"corrected"}
                key = finding, item.status
                first = merged.get(key)
                if first is not None:
                    sides, zones, flags = sides | {*first.sides}, zones | {*first.zones}, flags | {*first.flags}
                sides = sides - {"midline"} if len(sides) > 1 else sides
                merged[key] = Mention(
                    finding,
                    cast(MentionStatus, item.status),
                    cast(tuple[Side, ...], tuple(sorted(sides))),
                    cast(tuple[Zone, ...], tuple(zone for zone in _ZONES if zone in zones)),
                    item.span if first is None else first.span,
                    tuple(sorted(flags)),
                )
        return tuple(merged.values())


@cache
def _build(text: str) -> Vocabulary:
    return Vocabulary(load_yaml(text), hashlib.sha256(text.encode()).hexdigest())


def _text_status(
    text: str, mentions: Sequence[Mention], normal: bool, declined: bool, finish: Finish | None
) -> TextStatus:
    if finish == "length":
        return "truncated"
    if not text.strip():
        return "empty"
    if any(mention.status != "negated" for mention in mentions):
        return "read"
    if normal:
        return "normal"
    return "read" if mentions else "declined" if declined else "unreadable"


def _plain(text: str) -> str:
    """Return a text of the same length without thoughts and marks, in which each line end parts sentences."""
    text = text.replace("\r\n", " \n").replace("\\n", " \n").translate(_CHARACTERS)
    closed = text.lower().rfind("</think>")
    if closed >= 0 and "<think>" not in text.lower():
        text = " " * closed + text[closed:]
    text = _THOUGHT.sub(lambda match: " " * len(match[0]), text)
    start = 0

    def line_end(match: re.Match[str]) -> str:
        nonlocal start
        line, start = text[start : match.start()], match.end()
        following = text[match.end() : match.end() + 4]
        length = len(match[0])
        if match[0].count("\n") > 1 or not following or _BULLET.match(following):
            return "\n" * length
        wrapped = following[0].islower() or following[0].isdigit() or (len(line) > 50 and line.isupper())
        if not wrapped:
            return "\n" * length
        return (" " if len(line) > 40 else ",") + " " * (length - 1)

    return _LINES.sub(line_end, text)


def _of_viewer(items: Sequence[Item], i: int) -> bool:
    """Tell whether a side is that of the picture: "the left side of the image", "image left"."""
    if i and items[i - 1].has("viewer before"):
        return True
    of = False
    for item in items[i + 1 : i + 1 + _WINDOW]:
        if item.has("viewer images"):
            return of
        if not item.has("viewer fillers"):
            return False
        of |= item.words == ("of",)
    return False


def _expand(expression: str) -> list[str]:
    """Return all that an expression with (alternatives) and [options] stands for."""
    group = re.search(r"\(([^][()]*)\)|\[([^][()]*)\]", expression)
    if group is None:
        return [expression]
    options = group[1].split("|") if group[1] is not None else [*group[2].split("|"), ""]
    return [
        one for option in options for one in _expand(expression[: group.start()] + option + expression[group.end() :])
    ]


def _tokens_of(expressions: Sequence[str], whole: bool = False) -> list[Any]:
    """Return the words of expressions; of each one apart if `whole`."""
    if isinstance(expressions, str) or not all(isinstance(one, str) for one in expressions):
        raise TypeError(f"{str(expressions)[:60]!r} is not a list of expressions; quote yes, no and numbers")
    lists = [_TOKEN.findall(one.lower()) for expression in expressions for one in _expand(expression)]
    return [tuple(words) for words in lists] if whole else [word for words in lists for word in words]


def _words_of(trie: Mapping[str, Any]) -> Iterator[str]:
    for word, node in trie.items():
        if word:
            yield word
            yield from _words_of(node)


def _within(first: str, second: str, edits: int) -> bool:
    """Tell whether so many letters added, dropped, changed or exchanged with their neighbor make one word the other."""
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    first, second = first[same:], second[same:]
    if not edits or not (first and second):
        return max(len(first), len(second)) <= edits
    return (
        _within(first[1:], second, edits - 1)
        or _within(first, second[1:], edits - 1)
        or _within(first[1:], second[1:], edits - 1)
        or (first[:2] == second[1::-1] and _within(first[2:], second[2:], edits - 1))
    )
