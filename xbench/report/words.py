"""Numbers and lists in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def whole(value: float | None) -> str:
    """Return a share in per cent, rounded half up to a whole number."""
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
    """Return what a score is a mean over: `eight findings`; empty for a share of one finding's lesions."""
    if datasets > 1:
        return f"{in_words(datasets)} datasets{' and their findings' if findings > 1 else ''}"
    return f"{in_words(findings)} findings" if findings > 1 else ""


def p_words(p: float | None) -> str:
    """Return a p-value as the charts show it; small ones never read as zero."""
    if p is None:
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.0995 else f"p = {p:.2f}"


def in_thousandths(probability: float) -> str:
    """Return a probability with three digits; small ones never read as zero."""
    return "< 0.001" if probability < 0.001 else f"{probability:.3f}"
