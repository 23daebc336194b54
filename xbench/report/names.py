"""How models, datasets, numbers and lists are called in tables, figures and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from pathlib import Path

from xbench.runtime.strict import load_yaml

_TITLES = load_yaml(Path(__file__).with_name("titles.yaml"))
SERVED = "endpoint/"
"""Prefix of the names of models behind a server."""
# The last is what people drew: `score --name human`.
CEILINGS = frozenset({"oracle", "answer_oracle", "outline_boxes", "words_oracle", "human"})
FLOORS = frozenset({"centre", "random", "whole_image", "centre_box", "random_box", "prior_box"})
FLOORS |= {f"words_{says}" for says in ("swapped", "shuffled", "prior", "all", "silent")}
"""Models that show what a number is worth."""
# These datasets label films of one collection under other identifiers.
_COLLECTIONS = {
    **dict.fromkeys(("nih", "nih-google", "rsna", "siim", "chestxdet10", "chexdet", "chestx-ray14"), "chestxray14"),
    **{"chexlocalize": "chexpert", "vindr-cxr": "vindr"},
}
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def model_title(name: str) -> str:
    """Return a model's title as its authors spell it; other models keep their name."""
    return str(_TITLES["models"].get(name, name.removeprefix(SERVED)))


def dataset_title(name: str) -> str:
    """Return a dataset's title as its authors spell it; other datasets keep their name."""
    return str(_TITLES["datasets"].get(name, name))


def training_of(trained_on: Sequence[str], *datasets: str) -> str:
    """Return a supervised model's training data, and the datasets on which comparing it is unfair."""
    collections = {_COLLECTIONS.get(name.casefold(), name.casefold()) for name in trained_on}
    unfair = [dataset_title(name) for name in datasets if _COLLECTIONS.get(name, name) in collections]
    said, why = listed([*map(dataset_title, trained_on)]), "because its training had images of the same collection"
    end = f"; comparing it with zero-shot models on {listed(unfair)} is unfair, {why}" if unfair else ""
    return f"trained on the labels of {said}{end}"


def whole(value: float | None) -> str:
    """Return a share in percent, rounded half up to a whole number."""
    return "\u2013" if value is None else str(floor(100 * value + 0.5))


def in_words(number: int) -> str:
    """Return a count as a word up to twelve."""
    return _WORDS[number] if number < len(_WORDS) else f"{number:,}"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in words: `A, B and C`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def count_of(number: int, thing: str, things: str = "") -> str:
    """Return a number of things: `1 image`, `2 images`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def mean_over(datasets: int, findings: int) -> str:
    """Return what a score averages: `eight findings`; empty for one finding."""
    if datasets > 1:
        return f"{in_words(datasets)} datasets{' and their findings' if findings > 1 else ''}"
    return f"{in_words(findings)} findings" if findings > 1 else ""


def p_words(p: float | None) -> str:
    """Return a p-value as the charts show it; small ones never read as zero."""
    if p is None:
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.0995 else f"p = {p:.2f}"


def beside(probability: float, threshold: float) -> str:
    """Return a probability and its threshold with as many digits as it takes to tell them apart."""
    differ = (digits for digits in range(3, 8) if f"{probability:.{digits}f}" != f"{threshold:.{digits}f}")
    if (digits := next(differ, 0)) == 0:
        return f"probability {probability:.3f}, just at the threshold"
    return f"probability {probability:.{digits}f}, threshold {threshold:.{digits}f}"


def in_thousandths(probability: float) -> str:
    """Return a probability with three digits; small ones never read as zero."""
    return "< 0.001" if probability < 0.001 else f"{probability:.3f}"
