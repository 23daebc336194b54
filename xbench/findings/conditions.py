"""Names of interventions, and of the conditions under which the rows of a run stand."""

from __future__ import annotations

import hashlib
from typing import Literal

Intervention = Literal[
    "mean",
    "blur",
    "inpaint",
    "noise",
    "black",
    "keep",
    "no_image",
    "prompts",
    "deletion",
    "insertion",
    "road",
    "randomisation",
]
"""What is done to images, words or weights, to see whether scores and maps depend on them.

A fill (`FILLS`) hides the region and, for comparison, an equal patch elsewhere; `keep` hides all but the region;
`no_image` hides everything; `prompts` asks in the words of something else. The others follow the order of a map's
values, or draw weights anew.
"""

FILLS = ("mean", "blur", "inpaint", "noise", "black")
"""What hidden pixels become; see `xbench.geometry.hiding`."""

HIDING = (*FILLS, "keep", "no_image")
"""Interventions that change the radiograph."""

OF_MAPS = ("deletion", "insertion", "road", "randomisation")
"""Interventions that ask what a map owes to the model."""

USUAL: tuple[Intervention, ...] = ("mean", "blur", "inpaint", "keep", "no_image", "prompts")
"""What `xbench intervene` does unless `--data.interventions` names others."""

HIDE, CONTROL = "hide: ", "control: "
"""Beginnings of the conditions under which the region, or an equal patch elsewhere, is hidden; the fill follows."""

KEEP, NO_IMAGE = "keep", "no image"
"""Conditions under which everything but the region, or the whole image, is hidden."""

PROMPTS = ("prompt: absent", "prompt: present", "prompt: sentence")
"""Conditions under which a model is asked about the region in the words of another finding, absent from the image or
present in it, or with a sentence of another field."""

SENTENCE = "Tomorrow will be sunny with a light wind from the west."
"""The sentence of another field, in English."""

LEAST = 30
"""Pairs that a finding needs for its numbers under interventions."""


def draw(image_id: str, query: str) -> bytes:
    """Return the SHA-256 of the names of an image and a query: what comes first in this order is drawn at random."""
    return hashlib.sha256(f"{image_id}\n{query}".encode()).digest()
