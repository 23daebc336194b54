"""What one sentence states: which words negate or doubt which findings, and which places belong to them.

Each item of a sentence has a code of one letter, and the rules are patterns over the letters of a sentence. Where a
pattern begins at each of many items it looks at a bounded number of them, so that time is linear in length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

LETTERS = "KRL&|,:viEAzNMUVDXcwTt"
"""Letters of the vocabulary's grammar, by which its sections begin.

F is a finding, S one that is stated of a part of the body, P a place, p one of a side or zone alone, q a zone with a
head (h), b one that may have none, w any other word.
"""
_KINDS = {"N": "negated", "M": "negated", "U": "uncertain", "V": "uncertain", "D": "dropped"}
_PARTS = 8  # of the body that one word can be stated of
_JOINED = "[^FSTKRLv,&|]*+"  # may stand between findings of a list
_GOES_ON = r"[,&]{1,4}+(?:(?![,&zPpqSUV])|(?=[^KRL]{0,60}\|))"  # a list does, behind a comma or `and`
_UNFINISHED = "(?:(?<=q)|(?<=p)(?<!ip)(?<!ipp)(?<!ippp))"  # as in "right and left bases", not "on the right and"
_HEADED = re.compile(r"b(?=[bPp,&|i]{0,8}h)")
_UNCHANGED = re.compile(r"[NM](?=[wz]{0,3}c)")
_AHEAD = re.compile(r"v?[^FSTKRL,&v]{0,40}[FST]")  # a finding follows a cue directly
_AT_END = re.compile(r"[,&|KRLi]|\Z")  # nothing follows it
_BEHIND = re.compile(rf"(?:(?:[FS]{_JOINED},{_JOINED})*[FS]{_JOINED},?[&|]++{_JOINED})*[FS][^FSTKRL]*+\Z")
_REACH = {
    kind: re.compile(rf"(?:[^KRLX,&{ends}]|{_GOES_ON}){{0,300}}+")
    for kind, ends in (("negated", "D"), ("uncertain", "DNM"), ("dropped", "NM"))
}
_VERB_ENDS = re.compile(r"[FS][^FS,&v]*+(?:[FS|][^FS,&v]*+)*v[^,&]*+(?=[,&])")
_EITHER = re.compile(r"[Ft](?=([wzPpqiA]*+,?\|++[wzPpqiAUV]*+)[Ft])")
_DIRECT = re.compile(rf"(?:[wztPpqA]|{_UNFINISHED}[,&|](?=[Ppq])){{0,12}}[FST]")
_OWN_CLAUSE = re.compile(r"(?<=[^Ppq][,&|])[Ppq][wztPpqA]{0,12}v")  # a place with a verb of its own
_ONWARD = re.compile(r"[^FSTKv]{0,40}(?:(?:v[^FSTK,&|]{0,40})?|K[^FSTK]{0,40})[FST]")
_LISTED = re.compile("(?<=[Ppq])[,&|]+(?=[Ppq])")  # joins places
_LABEL = re.compile("w?F:(?:[wv]{0,2}N[wz]{0,2}$)?")
_DENIES = re.compile(r"[^K]{0,60}[NMD]")


class Place(NamedTuple):
    """What one expression states about a place; `implied` sides hold if no side is stated."""

    sides: frozenset[str] = frozenset()
    zones: frozenset[str] = frozenset()
    implied: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Item:
    """An expression of the vocabulary in a sentence, or an ordinary word."""

    span: tuple[int, int]
    roles: Mapping[str, Mapping[Any, bool]] = field(default_factory=dict)  # what it means, by section
    code: str = "w"
    findings: tuple[str, ...] = ()  # that it names or states; "" is abnormality as such
    status: str = "asserted"  # or negated, uncertain, dropped; of other words, what they would have as findings
    stated: tuple[str, Item] | None = None  # status that a word beside a part of the body states, and that word
    before: list[Place] = field(default_factory=list)  # its places that stand before it, or in it
    after: list[Place] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)

    @property
    def places(self) -> list[Place]:
        """All places of the item; flags alone are none."""
        return [place for place in self.before + self.after if place.sides or place.zones or place.implied]

    @property
    def sides(self) -> set[str]:
        """The sides that are stated, or else implied."""
        stated = {side for place in self.places for side in place.sides}
        return stated or {side for place in self.places for side in place.implied}

    def marks(self, section: str = "marks") -> Mapping[Any, bool]:
        """Return what the item means in a section."""
        return self.roles.get(section, {})


def code_of(roles: Mapping[str, Mapping[Any, bool]]) -> str:
    """Return the letter of an expression."""
    for place in roles.get("places", ()):
        headed, complete = "headed" in place.flags, place.zones and (place.sides or place.implied)
        return "b" if headed else "P" if complete else "p"
    ordinary = "D" if "declined" in roles.get("marks", ()) else "w"
    return "F" if "findings" in roles else next(iter(roles.get("grammar", ordinary)))


def understand(items: Sequence[Item]) -> list[Place]:
    """Give the findings of a sentence their status and places, and return places that belong to no item."""
    codes = "".join("h" if "heads" in item.marks() else item.code for item in items)
    for item, code in zip(items, _UNCHANGED.sub("X", _HEADED.sub("q", codes)), strict=True):
        item.code = item.code if code == "h" else code.replace("b", "w").replace("c", "z")
    _find_states(items)
    codes = "".join(item.code for item in items)
    _find_statuses(items, codes)
    free = _attach_places(items, codes)
    _share_places(items, codes)
    return free


def _find_states(items: Sequence[Item]) -> None:
    """Turn parts of the body into findings where the words before or after them say how they look."""
    parts: list[Item] = []  # whose description may follow
    predicate: Item | None = None  # a description that may hold for parts that follow
    listed = False  # whether it held for one, so that a comma continues the list
    governed = False  # whether a preposition stands before, as in "consolidation in the right lung"
    for item in items:
        if _state(item, predicate):
            listed = True
        elif "parts" in item.roles and not governed:
            parts = [*parts[-_PARTS:], item]
        if "statements" in item.roles:
            rest = [part for part in parts if not _state(part, item)]
            predicate, parts, listed = item if len(rest) == len(parts) else None, rest, False
        elif item.code in "FTKv" or (item.code == "," and not listed):
            predicate, parts = None, [] if item.code == "F" else parts
        governed = item.code == "i" or (governed and item.code in "wztPpqA")


def _state(part: Item, predicate: Item | None) -> bool:
    """Turn a part of the body into a finding if the words beside it describe it; tell whether they do."""
    states = dict([*predicate.marks("statements")]) if predicate is not None else {}
    for finding in [name for name in part.marks("parts") if name in states][-1:]:
        if states[finding] != "nothing" and predicate is not None:
            part.findings, part.code, part.stated = (finding,), "S", (states[finding], predicate)
        return True
    return False


def _find_statuses(items: Sequence[Item], codes: str) -> None:
    for i, code in enumerate(codes):
        if code not in _KINDS:
            continue
        kind, ahead = _KINDS[code], _AHEAD.match(codes, i + 1)
        behind = None if ahead else _BEHIND.search(codes, max(0, i - 60), i)
        reached: Sequence[Item] = ()
        if behind and (code in "MV" or _AT_END.match(codes, i + 1)):
            reached = [item for item in items[behind.start() : i] if item.code in "FS"]
        elif items[i].status == "asserted" and not (behind and kind == "uncertain"):
            end = _REACH[kind].match(codes, i + 1).end()  # type: ignore[union-attr]
            verb = _VERB_ENDS.search(codes, i + 1, end + 1)
            reached = items[i + 1 : verb.end() if verb else end]
        for item in reached:
            item.status = kind if item.status == "asserted" else item.status
    for either in _EITHER.finditer(codes):
        for item in (items[either.start()], items[either.end(1)]):
            item.status = "uncertain" if item.status == "asserted" else item.status
    if label := _LABEL.match(codes):  # "Effusion: no evidence", or "Effusion: there is no effusion"
        name = items[codes.index("F")]
        again = any(item.findings == name.findings for item in items if item is not name)
        name.status = "dropped" if again else "negated" if label[0][-1] != ":" else name.status
    for item in items:
        if item.stated is not None:
            status, around = item.stated[0], item.stated[1].status
            if around == "dropped" or status == around == "negated":
                item.status = "dropped"
            else:
                item.status = status if status == "negated" or around == "asserted" else around


def _attach_places(items: Sequence[Item], codes: str) -> list[Place]:
    """Give places to what follows directly, else to what stands before, else to what follows; return what is left."""
    elsewhere = {i for clause in _OWN_CLAUSE.finditer(codes) for i in range(*clause.span())}
    free: list[Place] = []
    last = previous = None  # findings or things: the last one of this part of the sentence, and of the one before
    start = 0
    for i, item in enumerate(items):
        if item.code == "K":
            previous, last, start = last or previous, None, i + 1
        if "places" in item.roles and item.code in "FSTPpq":
            place = [*item.roles["places"]]
            if item.code in "FST":
                item.before += place
            elif direct := _DIRECT.match(codes, i + 1):
                items[direct.end() - 1].before += place
            elif last is not None:
                last.after += [] if i in elsewhere else place
            elif onward := _ONWARD.match(codes, i + 1):
                items[onward.end() - 1].before += place
            elif previous is not None and previous.status != "negated" and not _DENIES.match(codes, start):
                previous.after += place
            else:
                free += place
        last = item if item.code in "FST" else last
    return free


def _share_places(items: Sequence[Item], codes: str) -> None:
    """Let findings without a place have that of one they are joined with, or that they explain."""
    links = []
    for start, end in pairwise(i for i, code in enumerate(codes) if code in "FST"):
        between, first, second = _LISTED.sub("", codes[start + 1 : end]), items[start], items[end]
        if codes[start] == codes[end] == "F" and (first.status == "negated") == (second.status == "negated"):
            either = re.fullmatch("[wz]*,[wz]*", between) and _EITHER.match(codes, end)
            explains = either or (re.search("[EUV]", between) and not re.search("[&L]", between))
            joined = re.search("A|^[^,]*[&|L][^,]*$", between) and not re.search("[Kv]", between)
            goes_on = first.status == second.status == "uncertain" and re.fullmatch("[wzt,&|]*", between)
            links.append((first, second, explains, joined, goes_on))
    for first, second, explains, joined, goes_on in links:
        explains = explains or (goes_on and "inherited" in first.flags)
        if not second.places and (places := first.before * bool(explains or joined) + first.after * bool(explains)):
            second.before += places
            second.flags.add("inherited")
    for first, second, explains, joined, _ in reversed(links):
        if (explains or joined) and not first.places and second.after and not second.before:
            first.after += second.after
            first.flags.add("inherited")
