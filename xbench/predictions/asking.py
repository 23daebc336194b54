"""What a model is asked about a radiograph, and what comes back before anything of it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from xbench.predictions.answer import Answer, Finish
from xbench.predictions.conventions import Convention
from xbench.predictions.grammars import Family
from xbench.predictions.recognition import Recognition, listed_yes_probability, read_decision, yes_probability

Kind = Literal["locate", "recognise", "again"]

READER = "2"
"""Version of how answers are read, for results to name; another one may read the same text otherwise."""


@dataclass(frozen=True)
class Question:
    """A question about one image of a batch and one finding.

    Attributes:
        kind: Where the finding is, or whether it is there.
        row: The image's place in the batch.
        column: The finding's place among those of the dataset.
        finding: Its name.
        text: The question; empty for models that are not asked in words.
        system: What comes before it as the system's turn; None for the model's own, or none.
        turn: How often the same was asked before.
    """

    kind: Kind
    row: int
    column: int
    finding: str
    text: str = ""
    system: str | None = None
    turn: int = 0


@dataclass(frozen=True)
class Reply:
    """What came back to a query.

    Attributes:
        text: As received, with special tokens where the decoder gives them.
        finish: Why generation ended, by itself or at the limit; None where nobody knows.
        frame: Name of the convention of its numbers if this image has another than the model's, such as the size to
            which it was resized; else None.
        prompt_sha256: Digest of all that was sent but the image.
        tokens_in: Tokens that were sent, the image's among them; None where nobody counted.
        tokens_out: Tokens that came back; None where nobody counted.
        yes_no: Logits of the yes tokens and of the no tokens at the first position, for `recognise`.
        mass: Share of all probability that these have together.
        bounded: Whether an endpoint listed only one of yes and no.
        top: Likeliest first tokens with their log-probabilities, as endpoints list them, instead of `yes_no`.
        confidence: Of the answer as a whole, in [0, 1]: given to each box that states none.
        from_cache: Whether it was kept from an earlier request.
        reasoning: What a server gave apart as thinking; nothing of it is read.
    """

    text: str
    finish: Finish | None = None
    frame: str | None = None
    prompt_sha256: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    yes_no: tuple[Sequence[float], Sequence[float]] | None = None
    mass: float | None = None
    bounded: bool = False
    top: Sequence[tuple[str, float]] | None = None
    confidence: float | None = None
    from_cache: bool = False
    reasoning: str | None = None

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
