"""What is looked for on an image: a finding of the dataset, or a phrase of the image's own."""

from __future__ import annotations

from typing import NamedTuple


class Query(NamedTuple):
    """What is looked for on one image."""

    name: str  # unique within the image: a finding, or the identifier of a phrase
    finding: str | None  # the group for means; None for a phrase without a finding
    text: str | None = None  # the image's own phrase; None: the model words the finding itself
    language: str | None = None  # of the text, such as `en`; None where the dataset does not say


PHRASES = "Phrases"
"""The group, among the findings of a run, of phrases without a finding."""
