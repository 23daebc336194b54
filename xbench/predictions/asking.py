"""What a model is asked about a radiograph, and what comes back before anything of it is read."""

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
"""Kinds whose replies are words: nothing is read of them until a run is scored by its words."""

READER = "2"  # version of how answers are read, for results to name; another one may read the same text otherwise


@dataclass(frozen=True)
class Question:
    """A question about one pair of an image and a query."""

    # Where the finding is, that again, whether it is there; for words, a report of the image, or where the finding is.
    kind: Kind
    row: int  # the image's place in the batch
    pair: int  # the pair's place in the batch; -1 of a report
    finding: str  # name of what is asked about: a finding, or the identifier of a phrase; empty of a report
    text: str = ""  # empty for models that are not asked in words
    system: str | None = None  # the system's turn before it; None for the model's own, or none
    turn: int = 0  # how often the same was asked before


@dataclass(frozen=True)
class Reply:
    """What came back to a question; None is for what nobody knows or counted."""

    text: str  # as received, with special tokens where the decoder gives them
    finish: Finish | None = None  # why generation ended: by itself, or at the limit
    frame: str | None = None  # convention of its numbers, if this image's size makes it another than the model's
    prompt_sha256: str = ""  # of all that was sent but the image
    tokens_in: int | None = None  # the image's among them
    tokens_out: int | None = None
    yes_no: tuple[Sequence[float], Sequence[float]] | None = None  # logits of their tokens at the first position
    mass: float | None = None  # share of all probability that yes and no have together
    bounded: bool = False  # whether an endpoint listed only one of yes and no
    top: Sequence[tuple[str, float]] | None = None  # an endpoint's likeliest first tokens with log-probabilities
    confidence: float | None = None  # of the answer as a whole, in [0, 1]: given to each box that states none
    from_cache: bool = False  # whether it was kept from an earlier request
    reasoning: str | None = None  # what a server gave apart as thinking; nothing of it is read

    def read(self, family: Family, convention: Convention, size: tuple[int, int]) -> Answer:
        """Read where it says that the finding is, about a radiograph of so many pixels (width, height)."""
        convention = convention if self.frame is None else Convention.named(self.frame)
        answer = family.read(self.text, self.finish, convention, size)
        if self.confidence is None:
            return answer
        stated = tuple(self.confidence if one is None else one for one in answer.confidence)
        return replace(answer, confidence=stated)

    def recognition(self) -> Recognition:
        """Read whether it says that the finding is there."""
        if self.yes_no is None and self.top is None:
            return read_decision(self.text)
        first = listed_yes_probability(self.top or ()) if self.yes_no is None else yes_probability(*self.yes_no)
        mass = first.mass if self.mass is None else self.mass
        return replace(first, mass=mass, bounded=first.bounded or self.bounded)
