"""Recognition from a reply: its first token, an endpoint's tokens, or its words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from xbench.predictions.json_grammar import keyed_confidence, part_that_counts
from xbench.predictions.reading import plain

Way = Literal["first token", "stated confidence", "decision"]

_WORDS = ("Yes", "yes", "YES"), ("No", "no", "NO")
_LEAST = 1e-12  # probability of a side that the endpoint did not list

_KEYED = re.compile(
    r"(?<!\w)(?:present|answer|result|finding_present)[\"']?+\s*+[:=]\s*+[\"']?+(true|false|yes|no|present|absent|1|0)(?![\w.])",
    re.IGNORECASE,
)
_FIRST = re.compile(r"\W*+(yes|no)(?!\w)", re.IGNORECASE)
_DECLINES = re.compile(r"(?<!\w)(?:sorry|unable|cannot|can't|won't|as an ai|language model)(?!\w)", re.IGNORECASE)
_YES = re.compile(r"(?<!\w)yes(?!\w)", re.IGNORECASE)
_NO = re.compile(r"(?<!\w)no(?!\w)", re.IGNORECASE)
_NEGATED = re.compile(
    r"(?:(?<!\w)not|n't)\s++(?:\w++\s++)?(?:present|seen|visible|identified|detected)(?!\w)|(?<!\w)(?:absent|negative)(?!\w)",
    re.IGNORECASE,
)
_AFFIRMED = re.compile(r"(?<!\w)(?:present|positive)(?!\w)", re.IGNORECASE)
_PERCENT = re.compile(r"(?<![\w.])([0-9]{1,12}(?:\.[0-9]{1,12})?)\s?%")
_MARKS = re.compile(r"```(?:json)?|\*\*", re.IGNORECASE)


@dataclass(frozen=True)
class Recognition:
    """Whether a model states that a finding is present."""

    way: Way  # source of the probability
    probability: float | None  # in [0, 1]; None if the reply is unreadable
    logit: float | None = None  # log-odds of yes against no at the first token
    mass: float | None = None  # joint probability of yes and no at the first token, if known
    bounded: bool = False  # whether one of the two was not listed and got its upper bound


def read_decision(raw: str) -> Recognition:
    """Read yes or no, and a stated confidence, from an answer in words or JSON.

    >>> read_decision("No (75 %).")
    Recognition(way='stated confidence', probability=0.25, logit=None, mass=None, bounded=False)
    """
    text = _MARKS.sub("", part_that_counts(plain(raw))[0])
    present = _decided(text)
    if present is None:
        return Recognition("decision", None)
    confidence = keyed_confidence(text)
    if confidence is None and (percent := _PERCENT.search(text)) and (stated := float(percent[1]) / 100) <= 1:
        confidence = stated
    if confidence is None:
        return Recognition("decision", float(present))
    return Recognition("stated confidence", confidence if present else 1 - confidence)


def yes_probability(yes: Sequence[float], no: Sequence[float]) -> Recognition:
    """Return the probability of yes from the logits of the yes and no tokens, at least one each."""
    logit = _log_sum(yes) - _log_sum(no)
    return Recognition("first token", _sigmoid(logit), logit)


def listed_yes_probability(top: Sequence[tuple[str, float]]) -> Recognition:
    """Return the probability of yes from an endpoint's likeliest first tokens and log-probabilities.

    Tokens count if they equal one of the words, ignoring case and blanks. A side that is not listed gets its upper
    bound: the least likely listed token or the remaining probability, whichever is smaller.
    """
    words = {word: [log for text, log in top if text.strip().lower() == word] for word in ("yes", "no")}
    # A server's rounded probabilities may add up to more than 1.
    mass = min(1.0, math.fsum(math.exp(log) for logs in words.values() for log in logs))
    if not mass:
        return Recognition("first token", None, None, mass)
    rest = 1 - math.fsum(math.exp(log) for _, log in top)
    unlisted = math.log(max(min(*(math.exp(log) for _, log in top), rest), _LEAST))
    logit = _log_sum(words["yes"] or [unlisted]) - _log_sum(words["no"] or [unlisted])
    return Recognition("first token", _sigmoid(logit), logit, mass, bounded=not all(words.values()))


def first_tokens(encode: Callable[[str], Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return the first ids of yes and of no words, ascending, without common ones; `encode` gives a text's ids."""
    yes, no = ({encode(blank + word)[0] for blank in ("", " ") for word in words} for words in _WORDS)
    return sorted(yes - no), sorted(no - yes)


def _decided(text: str) -> bool | None:
    if keyed := _KEYED.search(text):
        return keyed[1].lower() in ("true", "yes", "present", "1")
    if first := _FIRST.match(text):
        return first[1].lower() == "yes"
    if _DECLINES.search(text):
        return None
    yes, no = _YES.search(text) is not None, _NO.search(text) is not None
    if not (yes or no):
        no = _NEGATED.search(text) is not None
        yes = _AFFIRMED.search(_NEGATED.sub("", text)) is not None
    return yes if yes != no else None


def _log_sum(logs: Sequence[float]) -> float:
    top = max(logs)
    return top + math.log(math.fsum(math.exp(log - top) for log in logs))


def _sigmoid(logit: float) -> float:
    odds = math.exp(-abs(logit))
    return (1 if logit >= 0 else odds) / (1 + odds)
