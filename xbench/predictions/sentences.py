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

CODES = {
    **{"parts": "K", "limits": "R", "with": "L", "and": "&", "or": "|", "comma": ",", "verbs": "v"},
    **{"prepositions": "i", "explains": "E", "adjacent": "A", "sizes": "z", "negated": "N", "negated around": "M"},
    **{"uncertain": "U", "uncertain around": "V", "dropped": "D", "neutral": "X"},
}
"""Letters of the sections of the vocabulary's grammar.

F is a finding, S one stated of a part of the body, Q what is stated of a place, T a thing that is no finding, P a
place, p one of a side or a zone alone, b a zone that needs a head (h), w any other word.
"""
KINDS = {"N": "negated", "M": "negated", "U": "uncertain", "V": "uncertain", "D": "dropped"}
"""Statuses by letters of the words that make them."""

_PARTS = 8  # of the body that one word can be stated of
_JOINED = "[^FSTRLv,&|]*+"  # may stand between findings of a list
_GOES_ON = r"[,&]++(?:(?![,&zPpSUV])|(?=[^RL]{0,60}\|))"  # a list does, behind a comma or `and`
_BAND = re.compile(r"b(?=[bPp,&|i]{0,8}h)")
_AHEAD = re.compile(r"v?[^FSTKRL,&v]{0,40}[FST]")  # a finding follows a cue directly
_AT_END = re.compile(r"[,&|RLi]|\Z")  # nothing follows it
_BEHIND = re.compile(rf"(?:(?:[FS]{_JOINED},{_JOINED})*[FS]{_JOINED},?[&|]++{_JOINED})*[FS][^FSTRL]*+\Z")
_REACH = {
    kind: re.compile(rf"(?:[^RLX,&{ends}]|{_GOES_ON}){{0,300}}+")
    for kind, ends in (("negated", "D"), ("uncertain", "DNM"), ("dropped", "NM"))
}
_VERB_ENDS = re.compile(r"[FS][^FS,&v]*+(?:[FS|][^FS,&v]*+)*v[^,&]*+(?=[,&])")
_EITHER = re.compile(r"F(?=([wzhPpiA]*+,?\|++[wzhPpiAUV]*+)F)")
_DIRECT = re.compile(r"(?:[wzhPpA]|(?<=p)(?<!ip)[,&|](?=[Pp])){0,12}(?:([FST])|v[wz]{0,3}(Q))")
_OWN_CLAUSE = re.compile(r"(?<=[,&|])[Pp][wzhPpA]{0,12}v")  # a place of which something else is stated
_ONWARD = re.compile(r"[^FSQTv]{0,40}(?:v[^FSQT,&|]{0,40})?[FSQT]")


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
    code: str = "w"
    roles: Mapping[str, Any] = field(default_factory=dict)  # what it means, by section of the vocabulary
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


def understand(items: list[Item]) -> list[Place]:
    """Give the findings of a sentence their status and places, and return places that belong to no item."""
    codes = _BAND.sub("p", "".join("h" if "heads" in item.roles else item.code for item in items))
    for item, code in zip(items, codes, strict=True):
        item.code = item.code if item.code != "b" else code.replace("b", "w")
    _find_states(items)
    segments: list[list[Item]] = [[]]
    for item in items:
        segments += [[]] if item.code == "K" else []
        segments[-1].append(item)
    for segment in segments:
        _find_statuses(segment)
    for item in items:
        if item.stated is not None:
            status, predicate = item.stated
            twice = predicate.status == "dropped" or status == predicate.status == "negated"
            item.status = "dropped" if twice else status if predicate.status == "asserted" else predicate.status
            item.status = status if status == "negated" and not twice else item.status
    free = [_attach_places(segment) for segment in segments]
    for i, (segment, places) in enumerate(zip(segments, free, strict=True)):
        codes = "".join(item.code for item in segment)
        following = [item for item in segments[i + 1] if item.code in "FST"] if i + 1 < len(segments) else []
        previous = [item for item in segments[i - 1] if item.code in "FS"] if i else []
        if following and "v" not in codes:
            following[0].before += places
        elif previous and previous[-1].status != "negated" and not {*codes} & {*"NMD"}:
            previous[-1].after += places
        else:
            continue
        free[i] = []
    _share_places(items)
    return [place for places in free for place in places]


def _find_states(items: Sequence[Item]) -> None:
    """Make findings of parts of the body of which something is stated, before or behind them."""
    pending: list[Item] = []
    predicate: Item | None = None  # what may be stated of parts that follow
    place: Item | None = None  # a place that may be the part
    governed = False  # whether a preposition stands before, as in "consolidation in the right lung"
    for item in items:
        part, states = item.roles.get("part"), item.roles.get("states", {})
        if part is not None and predicate is not None and part in predicate.roles["states"]:
            _state(item, predicate, part)
        elif part is not None and not governed:
            pending = [*pending[-_PARTS:], item]
        if states:
            fitting = [one for one in pending if one.roles["part"] in states]
            for one in fitting:
                _state(one, item, one.roles["part"])
            pending = [one for one in pending if one not in fitting]
            if not fitting and place is not None and "" in states:
                _state(item, item, "")
            predicate = None if fitting or item.findings else item
        elif item.code in "FTKv":
            predicate = None
        place = item if item.code in "Pp" else None if item.code in "FTKRL,&|" else place
        governed = item.code == "i" or (governed and item.code in "wzhPpA")


def _state(item: Item, predicate: Item, part: str) -> None:
    finding, status = predicate.roles["states"][part]
    if status != "nothing":
        item.findings, item.code, item.stated = (finding,), "Q" if item is predicate else "S", (status, predicate)


def _find_statuses(items: Sequence[Item]) -> None:
    codes = "".join(item.code for item in items)
    for i, code in enumerate(codes):
        if code not in KINDS:
            continue
        kind, ahead = KINDS[code], _AHEAD.match(codes, i + 1)
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


def _attach_places(items: Sequence[Item]) -> list[Place]:
    """Give each place to the item it belongs to: behind it with adjectives between, before it, or further behind."""
    codes = "".join(item.code for item in items)
    elsewhere = {i for clause in _OWN_CLAUSE.finditer(codes) for i in range(*clause.span())}
    free, last = [], None
    for i, item in enumerate(items):
        place = item.roles.get("places")
        if place is not None and item.code in "FSQT":
            item.before.append(place)
        elif place is not None and item.code in "Pp":
            if direct := _DIRECT.match(codes, i + 1):
                items[direct.end() - 1].before.append(place)
            elif last is not None:
                last.after += [] if i in elsewhere else [place]
            elif onward := _ONWARD.match(codes, i + 1):
                items[onward.end() - 1].before.append(place)
            else:
                free.append(place)
        last = item if item.code in "FSQT" else last
    return free


def _share_places(items: Sequence[Item]) -> None:
    """Let findings without a place have that of one they are joined with, or that they explain."""
    anchors = [i for i, item in enumerate(items) if item.code in "FSQT"]
    codes = "".join(item.code for item in items)
    links = []
    for start, end in pairwise(anchors):
        between, pair = codes[start + 1 : end], (items[start], items[end])
        named = codes[start] == codes[end] == "F" and "dropped" not in (pair[0].status, pair[1].status)
        if not named or (pair[0].status == "negated") != (pair[1].status == "negated"):
            continue
        explains = re.search("[EUV]", between) and not re.search("[&L]", between)
        joined = re.search("A|^[^,]*[&|L][^,]*$", between) and not re.search("[Kv]", between)
        if explains or joined:
            links.append((*pair, bool(explains)))
    for first, second, explains in links:
        if not second.places and (places := first.before + (first.after if explains else [])):
            second.before += places
            second.flags.add("inherited")
    for first, second, _ in reversed(links):
        if not first.places and second.after and not second.before:
            first.after += second.after
            first.flags.add("inherited")
