"""Questions to a model about a radiograph, and its unread replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from xbench.predictions.answer import Answer, Finish
from xbench.predictions.conventions import Convention
from xbench.predictions.families import Family
from xbench.predictions.recognition import Recognition, listed_yes_probability, read_decision, yes_probability

Kind = Literal["locate", "recognise", "again", "report", "where"]
TEXTS: frozenset[Kind] = frozenset({"report", "where"})
"""Kinds of questions with replies in words, which `rescore` reads."""

READER = "2"  # version of the reader of answers, stored in results


@dataclass(frozen=True)
class Question:
    """A question about one pair of an image and a query."""

    # locate: where is the finding; again: the same, repeated; recognise: is it present. In words: a report of the
    # image, or where the finding is.
    kind: Kind
    row: int  # place of the image in the batch
    pair: int  # place of the pair in the batch; -1 for a report
    finding: str  # finding or identifier of a phrase; empty for a report
    text: str = ""  # empty if the model is not asked in words
    system: str | None = None  # system prompt; None for the model's own, if it has one
    turn: int = 0  # number of earlier repetitions


@dataclass(frozen=True)
class Reply:
    """Reply to a question; None stands for unknown."""

    text: str  # as received, with special tokens if the decoder returns them
    finish: Finish | None = None  # stopped by itself or at the limit
    frame: str | None = None  # convention of the numbers, if it depends on the size of this image
    prompt_sha256: str = ""  # of the request without the image
    tokens_in: int | None = None  # including the image
    tokens_out: int | None = None
    yes_no: tuple[Sequence[float], Sequence[float]] | None = None  # logits of the yes and no tokens at first position
    mass: float | None = None  # joint probability of yes and no
    bounded: bool = False  # whether an endpoint listed only one of yes and no
    top: Sequence[tuple[str, float]] | None = None  # likeliest first tokens of an endpoint with their log-probabilities
    confidence: float | None = None  # of the whole answer, in [0, 1]; given to each box that states none
    from_cache: bool = False  # whether an earlier request was reused
    reasoning: str | None = None  # thinking that a server returned separately; it is not read

    def read(self, family: Family, convention: Convention, size: tuple[int, int]) -> Answer:
        """Read the location of the finding on a radiograph of this size (width, height)."""
        convention = convention if self.frame is None else Convention.named(self.frame)
        answer = family.read(self.text, self.finish, convention, size)
        if self.confidence is None:
            return answer
        stated = tuple(self.confidence if one is None else one for one in answer.confidence)
        return replace(answer, confidence=stated)

    def recognition(self) -> Recognition:
        """Read whether the reply states that the finding is present."""
        if self.yes_no is None and self.top is None:
            return read_decision(self.text)
        first = listed_yes_probability(self.top or ()) if self.yes_no is None else yes_probability(*self.yes_no)
        mass = first.mass if self.mass is None else self.mass
        return replace(first, mass=mass, bounded=first.bounded or self.bounded)
