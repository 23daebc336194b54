"""Free text to mentions: which findings a report or an answer asserts, denies or doubts, and where it places them.

The rules are deterministic, need no weights, and read the public vocabulary in `words.yaml`. This file cuts a text into
sentences and finds expressions in them; `sentences.py` has the rules within a sentence.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from xbench.findings.names import TABLE
from xbench.predictions.answer import Finish
from xbench.predictions.sentences import LETTERS, Item, Place, code_of, understand
from xbench.runtime.errors import UserError
from xbench.runtime.files import check_readable
from xbench.runtime.strict import load_yaml

Side = Literal["left", "right", "midline"]
Zone = Literal["upper", "middle", "lower"]
MentionStatus = Literal["asserted", "negated", "uncertain"]
TextStatus = Literal["truncated", "empty", "read", "normal", "declined", "unreadable"]

_STATUSES: tuple[MentionStatus, ...] = ("asserted", "uncertain", "negated")  # the first of them counts
_SIDES, _ZONES = ("left", "right", "midline"), ("upper", "middle", "lower")
_FILE = Path(__file__).with_name("words.yaml")
_LARGEST = 2**22  # bytes of a vocabulary
_LONGEST = 100_000  # characters that are read
_WINDOW = 8  # words around a finding that may change its name
_WIDE = 40  # letters of a line that may be wrapped
_REMEMBERED = 10_000  # misspelled words
_CORRECTED = {"findings", "parts", "places", "statements"}  # sections with words that misspelled ones can stand for
_INITIALS = ("l", "r", "lt", "rt")  # which are sides before a word alone
_NEGATIONS = ("not", "cannot")  # what words in n't are read as

_THOUGHT = re.compile(r"<think>(?:(?!</think>).)*+|\A(?:(?!</?think>).)*+</think>", re.DOTALL | re.IGNORECASE)
_LINE_END = re.compile(r"\n\s*+")
_HEADING = re.compile("[^:]{1,8}:")
_NEW_LINE = re.compile(r"\n|\Z|[-+>]|\d{1,2}[.)]\s")  # what follows a line end that ends a sentence
_TOKEN = re.compile(
    r"\d++[.,]\d++|[^\W_]++(?:'[^\W_]++)*+|\"\s*+,\s*+\"|\n|(?<!\w)-|-(?!\w)|(?<!\d[snrt][tdh])(?<![rfxnh]th),|[.!?;:/<>()&+]"
)


@dataclass(frozen=True)
class Mention:
    """All that a text states about one finding with one status."""

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
    """What a text states about a finding and those that answer for it; an empty status if it mentions none."""

    status: MentionStatus | Literal[""]
    sides: frozenset[Side]  # of asserted and uncertain mentions
    zones: frozenset[Zone]


class _Token(NamedTuple):
    word: str
    span: tuple[int, int]
    corrected: bool


class Vocabulary:
    """The words that texts are read by.

    Attributes:
        sha256: Digest of the file.
        findings: Canonical names of findings that can be read.
        unsided: Findings that never have sides or zones.
        accepts: By finding, the others that answer for it as well.
    """

    def __init__(self, content: Mapping[str, Any], sha256: str) -> None:
        self.sha256 = sha256
        self.findings, self.unsided = frozenset(content["findings"]) - {""}, frozenset(content["unsided"])
        self.accepts = {finding: frozenset(others) for finding, others in content["accepts"].items()}
        named = self.findings.union(self.unsided, self.accepts, *self.accepts.values())
        if unknown := sorted(named - {finding.name for finding in TABLE}):
            raise ValueError(f"{unknown[0]!r} is not a finding of `xbench list findings`")
        if lacking := sorted({*LETTERS} - {name[0] for name in content["grammar"]}):
            raise ValueError(f"its grammar lacks a section that begins with {lacking[0]!r}")
        self._near = {name: {**of} for name, of in content["near"].items()}
        self._ignored = frozenset(content["ignored"])
        self._abbreviations = frozenset(content["abbreviations"])
        self._characters = {ord(one): mark for mark, of in content["characters"].items() for one in of}
        self._languages = [
            re.compile(rf"\b(?:{'|'.join(content['languages'][name])})\b", re.IGNORECASE)
            for name in ("others", "english")
        ]
        self._expressions: dict[str, dict[str, dict[Any, bool]]] = {}  # roles
        self._longest: dict[str, int] = {}  # words of the longest expression, by the first
        self._add_all(content)
        kept = {*content["spelled right"]}.union(*(words for near in self._near.values() for words in near.values()))
        self._known = kept.union(*(expression.split() for expression in self._expressions))
        self._targets: dict[str, set[str]] = {}  # words that misspelled ones can stand for, by their first letter
        for expression, roles in self._expressions.items():
            if roles.keys() & _CORRECTED or {*roles.get("grammar", ())} & {*"NMUV"}:
                for word in {*expression.split()} - kept:
                    self._targets.setdefault(word[0], set()).add(word)
        self._correct = lru_cache(_REMEMBERED)(self._corrected)

    @classmethod
    def of(cls, path: Path | None = None) -> Vocabulary:
        """Read a vocabulary file, by default the one of the package; raise a UserError if it is none."""
        path = path or _FILE
        try:
            check_readable(path, _LARGEST)
            return _build(path.read_bytes())
        except (OSError, ValueError, TypeError, LookupError, AttributeError, yaml.YAMLError) as error:
            problem = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:300]
            raise UserError(
                f"{path} cannot be read as a vocabulary: {problem}. Start from a copy of {_FILE}, which explains its "
                "sections, and keep all of them."
            ) from error

    def read(self, text: str, asked: str | None = None, finish: Finish | None = None) -> TextReading:
        """Read the first 100,000 characters of a text, never raising, in time linear in their number.

        Args:
            text: A report, or an answer.
            asked: Canonical name of the finding whose place was asked for; None for a report.
            finish: Why generation ended; `length` makes the status `truncated`.
        """
        found: list[Item] = []
        answers: list[Item] = []  # what sentences without a finding state about the one that was asked for
        last: Item | None = None  # the last finding that is not denied
        skipped = normal = declined = False
        plain = _plain(text[:_LONGEST].replace("\r\n", " \n").translate(self._characters))
        foreign, english = (len(words.findall(plain)) for words in self._languages)
        for items, question in self._sentences(plain if english >= foreign else ""):
            section = items[0].marks("sections") if len(items) == 1 or items[1].code == ":" else {}
            if section or _HEADING.match("".join(item.code for item in items)):
                skipped, items = "skipped" in section, items[2 if section else 0 :]
            asks = question and (asked or any("questions" in item.marks() for item in items[:4]))
            if skipped or asks or not items:
                continue
            items += [Item((items[-1].span[1],) * 2, {}, "V")] if question else []
            alone = len(items) == 1 or items[1].code in ",K"
            answer = next(iter(items[0].marks("answers") if asked and alone else ()), "")
            implied = Item(items[0].span, {}, "F", (asked or "",))  # the finding that was asked for
            refers, items = "refers" in items[0].marks() and last is not None, items[1:] if answer else items
            items += [implied] if asked and not refers and not any(item.code in "FT" for item in items) else []
            free = understand(items)
            declined |= any("declined" in item.marks() for item in items)
            codes = "".join(item.code for item in items)
            whole = [item for item in items if item.findings == ("",)]  # abnormality as such
            shown = [item for item in items if any(item.findings) and item.status != "dropped" and item is not implied]
            normal |= any(item.status == "negated" and not item.places for item in whole)
            normal |= len(items) == 1 and ("", "negated") in items[0].marks("statements")  # "Unremarkable."
            if refers and last is not None and not re.search("[FSTNMD]", codes):
                last.after += free
            elif refers and last is not None and re.match("[^FS]*[EUV]", codes):  # "This may be pneumonia"
                for item in takewhile(lambda item: item.status != "negated" and not item.places, shown):
                    item.before += last.places
            implied.status = answer or implied.status
            stands = implied.status == "negated" or (implied.places and implied.status != "dropped")
            if answer or (stands and not shown):
                answers.append(implied)
            answers += [item for item in whole if asked and item.places and item.status != "negated"]
            found += shown
            last = next((item for item in reversed(shown) if item.status != "negated"), last)
        for item in answers if not any(asked in item.findings for item in found) else ():
            item.findings = (asked or "",)
            found.append(item)
        mentions = self._merge(found)
        if finish == "length" or not plain.strip():
            return TextReading("truncated" if finish == "length" else "empty", mentions)
        if normal and all(mention.status == "negated" for mention in mentions):
            return TextReading("normal", mentions)
        return TextReading("read" if mentions else "declined" if declined else "unreadable", mentions)

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

    def _add_all(self, content: Mapping[str, Any]) -> None:
        for section in ("findings", "parts", "grammar", "marks", "answers", "sections"):
            for name, expressions in content[section].items():
                self._add(expressions, section, name[0] if section == "grammar" else name)
        for finding, states in content["statements"].items():
            for status, expressions in states.items():
                self._add(expressions, "statements", (finding, status))
        for name, expressions in content["places"].items():
            explicit, _, implied = (frozenset(part.split()) for part in name.partition("implied"))
            flags = explicit - {*_SIDES, *_ZONES}
            place = Place(explicit & {*_SIDES}, (explicit | implied) & {*_ZONES}, implied & {*_SIDES}, flags)
            self._add(expressions, "places", place)

    def _add(self, expressions: Sequence[str], section: str, meaning: Any) -> None:
        for words in _listed(expressions):
            kept = [word for word in words if word not in self._ignored] or [""]
            self._expressions.setdefault(" ".join(kept), {}).setdefault(section, {})[meaning] = True
            self._longest[kept[0]] = max(len(kept), self._longest.get(kept[0], 1))

    def _sentences(self, text: str) -> Iterator[tuple[list[Item], bool]]:
        """Yield the items of each sentence, at least one, and whether it ends with a question mark."""
        tokens: list[_Token] = []
        for match in _TOKEN.finditer(f"{text}\n"):
            word, (start, end), following = match[0].lower(), match.span(), text[match.end() : match.end() + 1]
            previous = tokens[-1] if tokens else _Token("", (0, -1), False)
            ends = word[0] in '\n!"' or (word == "?" and previous.span[1] == start and not following.isalnum())
            if word == "." and previous.word not in self._abbreviations:
                ends = not following.isalnum() or (following.isupper() and len(previous.word) > 1)
            if ends and tokens:
                yield self._items(tokens), word == "?"
                tokens = []
            elif not ends and word != "." and word not in self._ignored:
                correct = self._correct(word)
                tokens.append(_Token(correct, (start, end), correct != word and correct not in _NEGATIONS))

    def _items(self, tokens: Sequence[_Token]) -> list[Item]:
        """Return the longest expressions, and the words between them."""
        items, end = [], 0
        while end < len(tokens):
            start, word = end, tokens[end].word
            for end in range(min(start + self._longest.get(word, 1), len(tokens)), start, -1):
                if (words := " ".join(token.word for token in tokens[start:end])) in self._expressions:
                    break
            alone = end == len(tokens) or not tokens[end].word[0].isalnum()
            roles = {} if alone and words in _INITIALS else self._expressions.get(words, {})
            item = Item((tokens[start].span[0], tokens[end - 1].span[1]), roles, code_of(roles))
            if item.code == "F":
                item.findings = self._named_near(roles["findings"], tokens, start, end)
                item.code = "F" if item.findings else "T"
            item.flags.update(["corrected"] if any(token.corrected for token in tokens[start:end]) else [])
            items.append(item)
        return items

    def _named_near(self, findings: Iterable[str], tokens: Sequence[_Token], start: int, end: int) -> tuple[str, ...]:
        """Return what findings are called with the words near them, up to a mark."""
        sides = reversed(tokens[max(0, start - _WINDOW) : start]), tokens[end : end + _WINDOW]
        near = {token.word for side in sides for token in takewhile(lambda token: token.word[0].isalnum(), side)}
        named: list[str] = []
        for finding in findings:
            others = [name for name, words in self._near.get(finding, {}).items() if not near.isdisjoint(words)]
            named += others or [finding]
        return tuple(name for name in named if name or "" in findings)

    def _corrected(self, word: str) -> str:
        """Return the word of the vocabulary that a misspelled word of six letters or more stands for."""
        if word.endswith("n't"):
            return _NEGATIONS[word == "can't"]
        if word in self._known or not 5 < len(word) < 21 or not word.isalpha():
            return word
        edits = 2 if len(word) > 8 else 1
        targets = [one for one in self._targets.get(word[0], ()) if len({*one} ^ {*word}) <= 2 * edits]
        close = [(not _within(word, one, 1), one) for one in targets if _within(word, one, edits)]
        return min(close, default=(True, word))[1]

    def _merge(self, found: Sequence[Item]) -> tuple[Mention, ...]:
        """Return one mention for each finding and status, with the union of places."""
        groups: dict[tuple[str, str], list[Item]] = {}
        for item in sorted(found, key=lambda item: item.span):
            for finding in filter(None, item.findings):
                groups.setdefault((finding, item.status), []).append(item)
        mentions = []
        for (finding, status), items in groups.items():
            placed = items if finding not in self.unsided else []
            places = [place for item in placed for place in item.before + item.after]
            sides = {side for item in placed for side in item.sides}
            zones = tuple(zone for zone in _ZONES if any(zone in place.zones for place in places))
            implied = any(item.sides and not any(place.sides for place in item.places) for item in placed)
            flags = {"implied_side"} if implied else set()
            flags = flags.union(*(item.flags for item in items), *(place.flags for place in places)) - {"headed"}
            where = tuple(sorted(sides - {"midline"} or sides)), zones, items[0].span
            mentions.append(Mention(finding, status, *where, tuple(sorted(flags))))  # type: ignore[arg-type]
        return tuple(mentions)


@cache
def _build(content: bytes) -> Vocabulary:
    return Vocabulary(load_yaml(content.decode("utf-8-sig")), hashlib.sha256(content).hexdigest())


def _plain(text: str) -> str:
    """Return a text of the same length in plain characters, without thoughts, in which line ends end sentences."""
    text = _THOUGHT.sub(lambda match: " " * len(match[0]), text.replace("\\n", " \n"))
    parts, start = [], 0
    for match in _LINE_END.finditer(text):
        line, following = text[start : match.start()], text[match.end() : match.end() + 4]
        wrapped = following[:1].islower() or following[:1].isdigit() or (len(line) > _WIDE and line.isupper())
        ends = "\n" in match[0][1:] or _NEW_LINE.match(following) or not wrapped
        parts += [line, ("\n" if ends else " " if len(line) > _WIDE else ",").ljust(len(match[0]))]
        start = match.end()
    return "".join([*parts, text[start:]])


def _listed(expressions: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words of all that expressions with (alternatives) and [options] stand for."""
    if isinstance(expressions, str) or not all(isinstance(one, str) for one in expressions):
        raise TypeError(f"{str(expressions)[:60]!r} is not a list of expressions; quote yes, no and numbers")
    for expression in expressions:
        if group := re.search(r"\(([^][()]*)\)|\[([^][()]*)\]", expression):
            options = [*group[0][1:-1].split("|"), *([""] if group[1] is None else [])]
            yield from _listed([expression[: group.start()] + one + expression[group.end() :] for one in options])
        else:
            yield _TOKEN.findall(expression.lower())


def _within(first: str, second: str, edits: int) -> bool:
    """Tell whether so many letters added, dropped, changed or exchanged with their neighbor make one word the other."""
    if first == second or not edits:
        return first == second
    shorter = min(len(first), len(second))
    same = next((i for i in range(shorter) if first[i] != second[i]), shorter)
    first, second = first[same:], second[same:]
    steps = [(first[1:], second), (first, second[1:]), (first[1:], second[1:])]
    steps += [(first[2:], second[2:])] if first[:2] == second[1::-1] else []
    return abs(len(first) - len(second)) <= edits and any(_within(*step, edits - 1) for step in steps)
