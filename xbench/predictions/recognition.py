"""Whether a model says that a finding is there: from its first token, from an endpoint's tokens, or from its words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xbench.predictions.json_scan import keyed_confidence, part_that_counts
from xbench.predictions.reading import plain

YES_WORDS = ("Yes", "yes", "YES")
NO_WORDS = ("No", "no", "NO")

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
class Decision:
    """What an answer says about a finding.

    Attributes:
        present: Whether it says that the finding is there; None where it says neither.
        confidence: Its stated confidence in that, in [0, 1]; None without one, or without a decision.
    """

    present: bool | None
    confidence: float | None

    @property
    def probability(self) -> float | None:
        """Probability that the finding is there, 0 or 1 without a stated confidence; None without a decision."""
        if self.present is None:
            return None
        sure = 1.0 if self.confidence is None else self.confidence
        return sure if self.present else 1 - sure


@dataclass(frozen=True)
class YesProbability:
    """The probability of yes against no, at the first token of an answer.

    Attributes:
        logit: Logarithm of its odds; None where neither was listed.
        probability: In [0, 1]; None where the logit is.
        mass: Share of all probability that yes and no have together; None where only their logits are known.
        bounded: Whether one of the two was not listed, and got the most that it could have had.
    """

    logit: float | None
    probability: float | None
    mass: float | None = None
    bounded: bool = False


def read_decision(raw: str) -> Decision:
    """Read yes or no, and a stated confidence, from an answer in words or JSON.

    Examples:
        >>> read_decision("No (95 %).")
        Decision(present=False, confidence=0.95)
    """
    text = _MARKS.sub("", part_that_counts(plain(raw))[0])
    present = _decided(text)
    if present is None:
        return Decision(None, None)
    confidence = keyed_confidence(text)
    if confidence is None and (percent := _PERCENT.search(text)):
        stated = float(percent[1]) / 100
        confidence = stated if stated <= 1 else None
    return Decision(present, confidence)


def yes_probability(yes: Sequence[float], no: Sequence[float]) -> YesProbability:
    """Return the probability of yes from the logits of the yes tokens and of the no tokens, at least one each.

    Examples:
        >>> yes_probability([2.0], [2.0])
        YesProbability(logit=0.0, probability=0.5, mass=None, bounded=False)
    """
    logit = _log_sum(yes) - _log_sum(no)
    return YesProbability(logit, _sigmoid(logit))


def listed_yes_probability(top: Sequence[tuple[str, float]]) -> YesProbability:
    """Return the probability of yes from an endpoint's likeliest first tokens and their log-probabilities.

    A token counts if it is one of the words, blanks around it and case aside. The side that is not listed gets the most
    that it could have: no more than the least likely listed token, nor than what the listed ones leave.
    """
    words = {word: [log for text, log in top if text.strip().lower() == word] for word in ("yes", "no")}
    # A server's rounded probabilities may add up to more than 1.
    mass = min(1.0, math.fsum(math.exp(log) for logs in words.values() for log in logs))
    if not mass:
        return YesProbability(None, None, mass)
    rest = 1 - math.fsum(math.exp(log) for _, log in top)
    unlisted = math.log(max(min(*(math.exp(log) for _, log in top), rest), _LEAST))
    logit = _log_sum(words["yes"] or [unlisted]) - _log_sum(words["no"] or [unlisted])
    return YesProbability(logit, _sigmoid(logit), mass, bounded=not all(words.values()))


def first_tokens(encode: Callable[[str], Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return the ids with which yes words begin, and those with which no words do, ascending.

    An id that begins both is in neither list.

    Args:
        encode: Returns the ids of a text as the tokenizer gives them where the answer begins.
    """
    yes, no = ({encode(blank + word)[0] for blank in ("", " ") for word in words} for words in (YES_WORDS, NO_WORDS))
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
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    odds = math.exp(logit)
    return odds / (1 + odds)
