"""What one sentence states: which words negate or doubt which findings, and which places belong to them.

Each step passes over the items of the sentence once, to the right or to the left, so that time is linear in length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

_WINDOW = 8  # items or words that are looked at around one
_KINDS = ("neutral", "uncertain", "negated", "dropped")  # of words that change a status
_STOPS = ("parts", "limits", "and", "or", "verbs", "prepositions", "comma", "explains", *_KINDS[1:])


class Place(NamedTuple):
    """What one expression states about a place; `implied` sides hold if no side is stated."""

    sides: frozenset[str] = frozenset()
    zones: frozenset[str] = frozenset()
    implied: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Item:
    """An expression of the vocabulary in a sentence, or an ordinary word, with its roles by the section they are in."""

    roles: Mapping[str, Any]
    words: tuple[str, ...]
    span: tuple[int, int]
    flags: set[str] = field(default_factory=set)
    findings: tuple[str, ...] = ()  # that it names or states; "" is abnormality as such
    anchor: bool = False  # whether places can belong to it: findings, and things that are none
    status: str = "asserted"
    stated: tuple[str, Item] | None = (
        None  # status by a statement about a part of the body, and the item that states it
    )
    before: list[Place] = field(default_factory=list)  # places that stand before it, or in it
    after: list[Place] = field(default_factory=list)
    segment: int = 0
    place: Place | None = None

    def has(self, *roles: str) -> bool:
        """Tell whether the item has one of these roles."""
        return not self.roles.keys().isdisjoint(roles)

    @property
    def ordinary(self) -> bool:
        """Whether it may stand between a place and its finding, as an adjective does."""
        return not self.has(*_STOPS)


def understand(items: list[Item]) -> list[Item]:
    """Return places that belong to no finding of the sentence; give its findings their status and places.

    `items` are those of one sentence, in order. An item with `findings` is a mention unless its status is `dropped`.
    """
    segment = 0
    for item in items:
        segment += item.has("parts")
        item.segment = segment
        item.place = item.roles.get("places")
        item.findings = item.roles.get("findings", item.findings)
        item.anchor = bool(item.findings) or item.has("look-alikes", "devices")
    _find_bands(items)
    _find_states(items)
    _find_statuses(items)
    free = _attach_places(items)
    _share_places([item for item in items if item.anchor], items)
    return free


def _find_bands(items: list[Item]) -> None:
    """Take upper, mid and lower for places where a lobe, zone or the like follows, also behind a list of them."""
    for i, item in enumerate(items):
        if not item.has("bands"):
            continue
        for following in items[i + 1 : i + 1 + _WINDOW]:
            if following.has("before"):
                item.place = Place(zones=frozenset(item.roles["bands"]))
            if not following.has("bands", "and", "or", "comma", "places") and following.words != ("to",):
                break


def _find_states(items: list[Item]) -> None:
    """Make findings of parts of the body of which something is stated, before or behind them."""
    pending: list[Item] = []
    predicate: Item | None = None  # what may be stated of the parts that follow
    place: Item | None = None  # which may be a part of the lungs, if nothing else follows than what is stated
    governed = False  # whether a preposition stands before, as in "consolidation in the right lung"
    for item in items:
        states: Mapping[str, tuple[str, str]] = item.roles.get("states", {})
        part = item.roles.get("part")
        if part is not None:
            if predicate is not None and part in predicate.roles["states"]:
                _state(item, predicate, part)
            elif not governed:
                pending.append(item)
        if states:
            stated = [one for one in pending if one.roles["part"] in states]
            for one in stated:
                _state(one, item, one.roles["part"])
            pending = [one for one in pending if one not in stated]
            if not stated and place is not None and "" in states:
                _state(item, item, "")
            predicate = None if stated or item.findings else item
        if item.findings or item.has("verbs", "parts", "look-alikes", "devices"):
            predicate = None
        governed = item.has("prepositions") or (governed and item.ordinary)
        if item.findings or item.has("parts", "limits", "comma", "and", "or"):
            place = None
        if item.place is not None and part is None:
            place = item


def _state(item: Item, predicate: Item, part: str) -> None:
    finding, status = predicate.roles["states"][part]
    if status != "nothing":
        item.findings, item.anchor, item.stated = (finding,), True, (status, predicate)


def _find_statuses(items: list[Item]) -> None:
    ahead, listed = [False] * len(items), [False] * len(items)
    follows = or_follows = False
    for i in range(len(items) - 1, -1, -1):
        item = items[i]
        ahead[i], listed[i] = follows, or_follows
        if item.has("comma", "and", "or", "verbs", "parts"):
            follows = False
        follows = follows or item.anchor
        or_follows = (or_follows or item.has("or")) and not item.has("parts", "limits")
    mode, modes, met, ended = "asserted", {}, False, False  # `met`: a finding was reached; `ended`: a verb after it
    chain: list[Item] = []  # findings that a word behind them can reach
    since, closed = 0, False
    near: Item | None = None  # the finding before, if nothing else stands between
    left: Item | None = None  # the finding before `or`
    for i, item in enumerate(items):
        following = items[i + 1] if i + 1 < len(items) else None
        cue = next(((kind, item.roles[kind]) for kind in _KINDS if kind in item.roles), None)
        if item.has("parts", "limits"):
            mode, chain, since, left = "asserted", [], 0, None
        if item.has("comma", "and"):
            opened = _after_joins(items, i)
            changes = opened is not None and (
                opened.has("sizes", "uncertain") or opened.place is not None or opened.stated is not None
            )
            if (met and ended) or (changes and not listed[i]) or (mode == "uncertain" and not met and chain):
                mode = "asserted"
            since, left = len(chain) if item.has("comma") else 0, None
        elif item.has("or"):
            since, left = 0, near
        elif item.has("verbs"):
            closed, ended, left = bool(chain), ended or met, None
        if cue is not None:
            kind, around = cue
            at_end = following is None or following.has("comma", "parts", "and", "or", "limits", "prepositions")
            if not ahead[i] and chain and (around or at_end):
                for anchor in chain[since:] or chain[-1:]:
                    anchor.status = kind if anchor.status == "asserted" and kind != "neutral" else anchor.status
                chain, since = [], 0
            elif kind == "neutral":
                mode = "asserted"
            elif kind != "uncertain" or mode != "negated":
                mode, met, ended = kind, False, False
        near = near if item.ordinary or item.has("prepositions") else None
        modes[id(item)] = mode
        if item.anchor:
            if closed:
                chain, since, closed = [], 0, False
            chain.append(item)
            item.status, met, ended = mode, True, False
            if left is not None:
                for one in (left, item):
                    one.status = "uncertain" if one.status == "asserted" and one.findings else one.status
            left, near = None, item
    for item in items:
        if item.stated is not None:
            status, predicate = item.stated
            mode = modes[id(predicate)]
            if mode == "dropped" or (status == "negated" and mode == "negated"):
                item.status = "dropped"
            elif status == "negated" or mode == "asserted":
                item.status = status
            else:
                item.status = mode


def _after_joins(items: Sequence[Item], i: int) -> Item | None:
    for item in items[i : i + 4]:
        if not item.has("comma", "and") or item.has("limits"):
            return item
    return None


def _attach_places(items: list[Item]) -> list[Item]:
    """Give each place to the finding or thing it belongs to; return those that are left."""
    size = len(items)
    direct: list[Item | None] = [None] * size  # the anchor behind it with nothing but adjectives between
    onwards: list[Item | None] = [None] * size  # the next anchor of its segment
    begins = [False] * size  # whether a verb follows, with nothing but adjectives between
    reach = next_anchor = None
    crossed = verb = False
    for i in range(size - 1, -1, -1):
        item = items[i]
        direct[i], onwards[i], begins[i] = reach, next_anchor, verb
        if item.anchor:
            reach = next_anchor = item
            crossed = False
        elif not item.ordinary and not (reach is not None and _joins_places(items, i)):
            reach = reach if item.has("verbs") and reach is not None and reach.has("states") else None
        if item.has("comma", "and", "or"):
            crossed = True
        elif item.has("parts") or (item.has("verbs") and crossed):
            next_anchor = None
        verb = item.has("verbs") or (verb and item.ordinary and not item.anchor)
    left: list[Item] = []
    last: Item | None = None
    joined = True  # whether the run of places begins the sentence, or follows a comma or `and`
    for i, item in enumerate(items):
        if item.has("parts"):
            last = None
        if item.place is not None:
            behind = direct[i]
            if behind is not None:
                behind.before.append(item.place)
            elif item.anchor:
                item.before.append(item.place)
            elif last is not None:
                if not (joined and begins[i]):
                    last.after.append(item.place)
            elif (onward := onwards[i]) is not None:
                onward.before.append(item.place)
            else:
                left.append(item)
        elif not item.ordinary:
            joined = item.has("comma", "and", "or", "parts")
        if item.anchor:
            last, joined = item, False
    return _attach_over_parts(items, left)


def _joins_places(items: Sequence[Item], i: int) -> bool:
    """Tell whether the item joins two words of one place: "right and left bases", not "on the right and left"."""
    if not items[i].has("comma", "and", "or") or not 0 < i < len(items) - 1 or items[i + 1].place is None:
        return False
    previous = items[i - 1]
    if previous.place is None or (previous.place.sides and previous.place.zones):
        return False
    start = i - 1
    while start > max(0, i - _WINDOW) and items[start - 1].place is not None:
        start -= 1
    return not (start and items[start - 1].has("prepositions")) or items[i - 1].has("bands")


def _attach_over_parts(items: list[Item], left: list[Item]) -> list[Item]:
    """Give places of a part without findings to the first finding of the next part, or the last one before."""
    if not left:
        return []
    first: dict[int, Item] = {}
    last: dict[int, Item] = {}
    verbs, cues = set(), set()
    for item in items:
        if item.anchor:
            first.setdefault(item.segment, item)
            last[item.segment] = item
        if item.has("verbs"):
            verbs.add(item.segment)
        if item.has("negated", "dropped"):
            cues.add(item.segment)
    free = []
    for item in left:
        segment = item.segment
        assert item.place is not None
        if segment not in verbs and segment + 1 in first:
            first[segment + 1].before.append(item.place)
        elif segment - 1 in last and segment not in cues and last[segment - 1].status != "negated":
            last[segment - 1].after.append(item.place)
        else:
            free.append(item)
    return free


def _share_places(anchors: list[Item], items: list[Item]) -> None:
    """Let findings without a place have that of one they are joined with, or that they explain."""
    positions = {id(item): i for i, item in enumerate(items)}
    links: list[str] = []
    for first, second in pairwise(anchors):
        links.append(_link(first, second, items[positions[id(first)] + 1 : positions[id(second)]]))
    for (first, second), link in zip(pairwise(anchors), links, strict=True):
        if link and not (second.before or second.after):
            second.before.extend(first.before)
            if link == "explains":
                second.before.extend(first.after)
            if second.before:
                second.flags.add("inherited")
    for (first, second), link in reversed(list(zip(pairwise(anchors), links, strict=True))):
        if link and not (first.before or first.after) and second.after and not second.before:
            first.after.extend(second.after)
            first.flags.add("inherited")


def _link(first: Item, second: Item, between: Sequence[Item]) -> str:
    if not first.findings or not second.findings or (first.status == "negated") != (second.status == "negated"):
        return ""
    if "dropped" in (first.status, second.status) or first.stated or second.stated:
        return ""
    roles = {role for item in between for role in item.roles}
    if roles & {"explains", "uncertain"} and "and" not in roles:
        return "explains"
    if first.segment != second.segment or "verbs" in roles:
        return ""
    if "adjacent" in roles:
        return "joined"
    return "joined" if roles & {"and", "or"} and "comma" not in roles else ""
