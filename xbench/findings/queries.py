"""Queries: findings of the dataset, or phrases of an image."""

from __future__ import annotations

from typing import NamedTuple


class Query(NamedTuple):
    """A finding or phrase to look for on one image."""

    name: str  # unique within the image: a finding, or the identifier of a phrase
    finding: str | None  # the group for means; None for a phrase without a finding
    text: str | None = None  # the image's own phrase; None: the model words the finding itself
    language: str | None = None  # of the text, such as `en`; None if unknown


PHRASES = "Phrases"
"""The group of phrases without a finding, among the findings of a run."""
