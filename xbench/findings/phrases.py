"""Phrases: their length, negation, and other wordings."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from xbench.findings.prompts import phrase
from xbench.findings.queries import Query

Wording = Literal["name", "phrase", "negation", "other"]
"""Other wordings of a phrase: the name of its finding, the package's phrase for the finding, its own negation, or the
phrase of another region of the same image."""

LENGTHS = {"1 to 3 words": 3, "4 to 7 words": 7, "8 to 15 words": 15, "16 words or more": math.inf}
"""Groups of phrases by length, and the longest phrase of each in words."""

# Negating words, after NegEx (Chapman et al. 2001) and its Spanish adaptation (Cotik et al. 2016), without those that
# reports use in another sense.
_DENYING = {
    "en": "no not without absent absence negative neither nor never free denies denied unremarkable cannot",
    "es": "no sin ausencia ausente ausentes negativo negativa ni tampoco nunca niega libre libres descarta descartan",
}
_WORDS = {language: frozenset(words.split()) for language, words in _DENYING.items()}


def words_of(text: str) -> list[str]:
    """Return the words of a phrase in lower case; `3.5` and `x-ray` are one word.

    >>> words_of("No X-ray sign of a 3.5 cm nodule.")
    ['no', 'x-ray', 'sign', 'of', 'a', '3.5', 'cm', 'nodule']
    """
    return re.findall(r"\w+(?:[.'-]\w+)*", text.lower())


def denies(text: str, language: str = "") -> bool:
    """Tell whether a phrase has a negating word, in English, Spanish, or either.

    >>> denies("without effusion"), denies("Senos costofrénicos libres", "es"), denies("nodule in the left lung")
    (True, True, False)
    """
    lists = [words for tag, words in _WORDS.items() if language[:2].lower() in ("", tag)]
    return any(not words.isdisjoint(words_of(text)) for words in lists or _WORDS.values())


def length_group(text: str) -> str:
    """Return the name of a phrase's group by length.

    >>> length_group("left lower lobe opacity")
    '4 to 7 words'
    """
    return next(group for group, most in LENGTHS.items() if len(words_of(text)) <= most)


def reworded(query: Query, others: Sequence[Query], wording: Wording) -> Query | None:
    """Return a query in other words; None if it is not a phrase, or has no such wording.

    `others` are the image's phrases with other regions. A negated phrase has no negation.

    >>> reworded(Query("1", "Edema", "Mild edema.", "en"), [], "negation").text
    'no mild edema'
    """
    if query.text is None:
        return None
    text, language = None, query.language
    if wording in ("name", "phrase") and query.finding is not None:
        text, language = query.finding if wording == "name" else phrase(query.finding), "en"
    elif wording == "negation" and not denies(query.text, language or ""):
        first, *rest = query.text.rstrip(" .").split()
        no = "sin" if (language or "").lower().startswith("es") else "no"
        # Acronyms, such as PICC, stay in capital letters.
        text = " ".join([no, first if first.isupper() and len(first) > 1 else first.lower(), *rest])
    elif wording == "other":
        other = next((one for one in others if one.text not in (None, query.text)), None)
        text, language = (other.text, other.language) if other else (None, None)
    return None if text is None else query._replace(text=text, language=language)
