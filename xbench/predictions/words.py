"""Free text to mentions: which findings a report or an answer asserts, denies or doubts, and where it places them.

The rules are deterministic, need no weights, and read the public vocabulary in `words.yaml`. This file cuts a text into
sentences and finds expressions in them; `sentences.py` has the rules within a sentence.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import yaml

from xbench.findings.names import TABLE
from xbench.predictions.answer import Finish
from xbench.predictions.sentences import CODES, KINDS, Item, Place, understand
from xbench.runtime.errors import UserError
from xbench.runtime.yaml_files import load_yaml

Side = Literal["left", "right", "midline"]
Zone = Literal["upper", "middle", "lower"]
MentionStatus = Literal["asserted", "negated", "uncertain"]
TextStatus = Literal["truncated", "empty", "read", "normal", "declined", "unreadable"]

_STATUSES: tuple[MentionStatus, ...] = ("asserted", "uncertain", "negated")  # the first of them counts
_SIDES, _ZONES = ("left", "right", "midline"), ("upper", "middle", "lower")
_FILE = Path(__file__).with_name("words.yaml")
_LONGEST = 100_000  # characters that are read
_WINDOW = 8  # words around a finding that may change its name
_WIDE = 40  # letters of a line that may be wrapped
_REMEMBERED = 10_000  # misspelled words

_CHARACTERS = str.maketrans(  # bullets, dashes, quotes, marks of Markdown and blanks
    dict.fromkeys("\r\u2022\u25aa\u25cf\u25e6", "\n")
    | {"\u2014": ",", "\u2192": ":", "|": ":"}
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
    | dict.fromkeys("\u201c\u201d\u201e", '"')
    | dict.fromkeys("\u2018\u2019\u00b4`", "'")
    | dict.fromkeys("*#_~\u00a0\u200b", " ")
)
_THOUGHT = re.compile(r"<think>(?:(?!</think>).)*+|\A(?:(?!</?think>).)*+</think>", re.DOTALL | re.IGNORECASE)
_LINE_END = re.compile(r"\n\s*+")
_NEW_LINE = re.compile(r"\n|\Z|[-+>]|\d{1,2}[.)]\s")  # what follows a line end that ends a sentence
_TOKEN = re.compile(r"\d++[.,]\d++|[^\W_]++(?:'[^\W_]++)*+|\"\s*+,\s*+\"|\n|(?<!\w)-|-(?!\w)|[.!?,;:/<>()&+]")


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
    start: int
    end: int
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
        self.findings, self.unsided = frozenset(content["findings"]), frozenset(content["unsided"])
        self.accepts = {finding: frozenset(others) for finding, others in content["accepts"].items()}
        named = self.findings.union(self.unsided, self.accepts, *self.accepts.values())
        if unknown := sorted(named - {finding.name for finding in TABLE}):
            raise ValueError(f"{unknown[0]!r} is not a finding of `xbench list findings`")
        self._near, self._ignored = content["near"], frozenset(content["ignored"])
        self._abbreviations = frozenset(content["abbreviations"])
        self._trie: dict[str, Any] = {}  # by word; an empty word leads to the code and the roles of an expression
        self._add_all(content)
        kept = {*content["spelled right"]}
        for name in ("left", "right", "left right"):
            kept.update(*_listed(content["places"][name]))
        self._words = kept | {*_words_of(self._trie)}
        self._targets: dict[str, list[str]] = {}  # that a misspelled word can stand for, by first letter
        for word in sorted(self._words - kept):
            self._targets.setdefault(word[0], []).append(word)
        self._corrected: dict[str, str] = {}
        self._sections = _sections(content["sections"])

    @classmethod
    def of(cls, path: Path | None = None) -> Vocabulary:
        """Read a vocabulary file, by default the one of the package; raise a UserError if it is none."""
        path = path or _FILE
        try:
            return _build(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, yaml.YAMLError) as error:
            problem = f"it lacks {error}" if isinstance(error, LookupError) else " ".join(str(error).split())[:300]
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
        normal = declined = False
        for items, question in self._sentences(_plain(text[:_LONGEST], self._sections)):
            if question and (asked or any("questions" in item.roles for item in items[:4])):
                continue
            if question:
                items.append(Item((items[-1].span[1],) * 2, "V"))
            refers, alone = "refers" in items[0].roles, len(items) == 1 or items[1].code in ",K"
            span, answer = items[0].span, items[0].roles.get("answers") if asked and alone else None
            items = items[1:] if answer else items
            free = understand(items)
            if any("declined" in item.roles for item in items):
                declined = True
                continue
            codes = "".join(item.code for item in items)
            named = [item for item in items if any(item.findings)]
            shown = [item for item in named if item.status != "dropped"]
            whole = [item for item in items if "" in item.findings]  # abnormality as such
            normal |= any(item.status == "negated" and not item.places for item in whole)
            if refers and last is not None and shown and shown[0].status != "negated" and not shown[0].places:
                if re.match("[^FS]*[EUV]", codes):
                    shown[0].before, shown[0].flags = last.places, {*shown[0].flags, "inherited"}
            elif refers and last is not None and not re.search("[FSTNMD]", codes):
                last.after += free
            elif asked and (answer or not (named or "T" in codes)):
                places = free + [place for item in whole for place in item.places]
                status = answer or next((kind for code, kind in KINDS.items() if code in codes), "asserted")
                if answer or places or (status == "negated" and not whole):
                    answers.append(Item(span, "F", {}, (asked,), status, None, places))
            found += shown
            last = next((item for item in reversed(shown) if item.status != "negated"), last)
        if not any(asked in item.findings for item in found):
            found += answers
        mentions = self._merge(found)
        status = _text_status(text, mentions, normal, declined)
        return TextReading("truncated" if finish == "length" else status, mentions)

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
        for finding, expressions in [*content["findings"].items(), ("", content["abnormality"])]:
            self._add(expressions, "F", findings={finding: True})
        self._add([*content["look-alikes"], *content["devices"]], "T")
        for name, expressions in content["places"].items():
            explicit, _, implied = (frozenset(part.split()) for part in name.partition("implied"))
            zones = (explicit | implied) & {*_ZONES}
            place = Place(explicit & {*_SIDES}, zones, implied & {*_SIDES}, explicit - {*_SIDES, *_ZONES})
            self._add(expressions, "P" if zones and (place.sides or place.implied) else "p", places=place)
        for zone, expressions in content["bands"].items():
            self._add(expressions, "b", places=Place(zones=frozenset([zone])))
        for state in content["states"].values():
            finding = state.pop("finding")
            self._add(state.pop("part"), "w", part=finding)
            self._add(state.pop("clear place", []), "w", states={"": (finding, "negated")})
            for status, expressions in state.items():
                self._add(expressions, "w", states={finding: (finding, status)})
        for section, code in CODES.items():
            self._add(content["grammar"][section], code)
        for status, expressions in content["answers"].items():
            self._add(expressions, "w", answers=status)
        for role in ("no places", "heads", "refers", "questions", "declined"):
            self._add(content[role], "w", **{role: True})

    def _add(self, expressions: Sequence[str], code: str, **roles: Any) -> None:
        """Add expressions with a code, unless they have one other than of ordinary words, and with roles."""
        for words in _listed(expressions):
            node = self._trie
            for word in words:
                node = node.setdefault(word, {})
            before, known = node.setdefault("", ("w", {}))
            for role, value in roles.items():
                known[role] = known.get(role, {}) | value if isinstance(value, dict) else value
            node[""] = code if before == "w" else before, known

    def _sentences(self, text: str) -> Iterator[tuple[list[Item], bool]]:
        """Yield the items of each sentence, at least one, and whether it ends with a question mark."""
        tokens: list[_Token] = []
        for match in _TOKEN.finditer(f"{text}\n"):
            word, (start, end), following = match[0].lower(), match.span(), text[match.end() : match.end() + 1]
            previous = tokens[-1] if tokens else _Token("", 0, -1, False)
            ends = word[0] in '\n!"' or (word == "?" and previous.end == start and not following.isalnum())
            if word == "." and previous.word not in self._abbreviations:
                ends = not following.isalnum() or (following.isupper() and len(previous.word) > 1)
            if ends and tokens:
                items, tokens = self._items(tokens), []
                if items:
                    yield items, word == "?"
            elif not ends and word != ".":
                correct = self._correct(word)
                tokens.append(_Token(correct, start, end, correct != word and correct not in ("not", "cannot")))

    def _items(self, tokens: Sequence[_Token]) -> list[Item]:
        """Return the longest expressions, and the words between them that are not ignored."""
        items, end = [], 0
        while end < len(tokens):
            start, (code, roles), node = end, ("w", {}), self._trie
            end += 1
            for j in range(start, len(tokens)):
                word = tokens[j].word
                if word in node:
                    node = node[word]
                    if "" in node:
                        (code, roles), end = node[""], j + 1
                elif j == start or word not in self._ignored:
                    break
            word, behind = tokens[start].word, tokens[end].word if end < len(tokens) else ""
            if end == start + 1 and (
                word in self._ignored or (code == "p" and len(word) == 1 and not behind.isalnum())
            ):
                code, roles = "", {}
            item = Item((tokens[start].start, tokens[end - 1].end), code, roles)
            if code == "F":
                item.findings = self._named_near(roles["findings"], tokens, start, end)
                item.code = code if item.findings else "T"
            if any(token.corrected for token in tokens[start:end]):
                item.flags.add("corrected")
            items += [item] if code else []
        return items

    def _named_near(self, findings: Iterable[str], tokens: Sequence[_Token], start: int, end: int) -> tuple[str, ...]:
        """Return what findings are called with the words near them, up to a comma or `and`."""
        near: set[str] = set()
        for part in (reversed(tokens[max(0, start - _WINDOW) : start]), tokens[end : end + _WINDOW]):
            near.update(token.word for token in takewhile(lambda token: token.word[0].isalnum(), part))
        named: list[str] = []
        for finding in findings:
            others = [name for name, words in self._near.get(finding, {}).items() if not near.isdisjoint(words)]
            named += others or [finding]
        return tuple(name for name in named if name or "" in findings)

    def _correct(self, word: str) -> str:
        """Return the word of the vocabulary that a misspelled word of six letters or more stands for."""
        if word.endswith("n't"):
            return "cannot" if word == "can't" else "not"
        if word in self._words or not 5 < len(word) < 21 or not word.isalpha():
            return word
        if word not in self._corrected:
            edits, letters = 2 if len(word) > 8 else 1, {*word}
            near = (
                one for one in self._targets.get(word[0], ()) if len(letters.symmetric_difference(one)) <= 2 * edits
            )
            close = [(1 if _within(word, one, 1) else 2, one) for one in near if _within(word, one, edits)]
            if len(self._corrected) > _REMEMBERED:
                self._corrected.clear()
            self._corrected[word] = min(close, default=(0, word))[1]
        return self._corrected[word]

    def _merge(self, found: Sequence[Item]) -> tuple[Mention, ...]:
        """Return one mention for each finding and status, with the union of places."""
        merged: dict[tuple[str, str], Mention] = {}
        for item in sorted(found, key=lambda item: item.span):
            sides = {side for place in item.places for side in place.sides}
            implied = {side for place in item.places for side in place.implied if not sides}
            zones = {zone for place in item.places for zone in place.zones}
            flags = {flag for place in item.before + item.after for flag in place.flags} | item.flags
            flags |= {"implied_side"} if implied else set()
            for finding in filter(None, item.findings):
                key, placed = (finding, item.status), finding not in self.unsided
                first = merged.get(key, Mention(finding, cast(MentionStatus, item.status), (), (), item.span, ()))
                both = {*first.sides, *(sides | implied if placed else ())}
                merged[key] = replace(
                    first,
                    sides=tuple(sorted(both - {"midline"} or both)),
                    zones=tuple(zone for zone in _ZONES if zone in first.zones or (placed and zone in zones)),
                    flags=tuple(sorted({*first.flags, *flags})),
                )
        return tuple(merged.values())


@cache
def _build(text: str) -> Vocabulary:
    return Vocabulary(load_yaml(text), hashlib.sha256(text.encode()).hexdigest())


def _text_status(text: str, mentions: Sequence[Mention], normal: bool, declined: bool) -> TextStatus:
    if not text.strip():
        return "empty"
    if normal and all(mention.status == "negated" for mention in mentions):
        return "normal"
    return "read" if mentions else "declined" if declined else "unreadable"


def _plain(text: str, sections: re.Pattern[str]) -> str:
    """Return a text of the same length without thoughts, marks, sections that are not read, and wrapped ends."""
    text = text.replace("\r\n", " \n").replace("\\n", " \n").translate(_CHARACTERS)
    text = _THOUGHT.sub(lambda match: " " * len(match[0]), text)
    parts, start = [], 0
    for match in _LINE_END.finditer(text):
        line, following = text[start : match.start()], text[match.end() : match.end() + 4]
        start, length = match.end(), len(match[0])
        wrapped = following[:1].islower() or following[:1].isdigit() or (len(line) > _WIDE and line.isupper())
        ends = "\n" in match[0][1:] or _NEW_LINE.match(following) or not wrapped
        parts += [line, ("\n" if ends else " " if len(line) > _WIDE else ",").ljust(length)]
    text = "".join([*parts, text[start:]])
    return sections.sub(lambda match: "\n" * len(match[0]), text)


def _sections(content: Mapping[str, Sequence[str]]) -> re.Pattern[str]:
    """Return a pattern of headings that have no meaning, and of sections that are left out with theirs."""
    listed = ("|".join(" ".join(words) for words in _listed(content[name])) for name in ("skipped", "read", "named"))
    skipped, read, named = (f"(?i:{names})" for names in listed)
    begin, end = r"(?:\A|(?<=[\n.?!:;]))[ \"'{-]{0,8}", r"[ \"']{0,3}(?::|(?=\n|\Z))"
    heading = rf"{begin}(?:(?:{skipped}|{read}){end}|{named}[ \"']{{0,3}}:|[A-Z][A-Z /&()-]{{2,40}}:)"
    return re.compile(rf"{begin}(?:{read}{end}|{skipped}{end}(?:(?!{heading})[\s\S])*+)")


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


def _words_of(trie: Mapping[str, Any]) -> Iterator[str]:
    for word, node in trie.items():
        if word:
            yield word
            yield from _words_of(node)


def _within(first: str, second: str, edits: int) -> bool:
    """Tell whether so many letters added, dropped, changed or exchanged with their neighbor make one word the other."""
    if first == second or not edits:
        return first == second
    same = next((i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), 0)
    first, second = first[same:], second[same:]
    steps = [(first[1:], second), (first, second[1:]), (first[1:], second[1:])]
    steps += [(first[2:], second[2:])] if first[:2] == second[1::-1] else []
    return abs(len(first) - len(second)) <= edits and any(_within(*step, edits - 1) for step in steps)
