"""Names of interventions, and of the conditions in the rows of a run."""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

_Fill = Literal["mean", "blur", "inpaint", "noise", "black"]
_OfMaps = Literal["deletion", "insertion", "road", "randomisation"]
Intervention = Literal[_Fill, "keep", "no_image", "prompts", _OfMaps]
"""Changes of images, words or weights that test whether scores and maps depend on them.

A fill (`FILLS`) hides the region and, for comparison, an equal patch elsewhere; `keep` hides all but the region;
`no_image` hides everything; `prompts` changes the words. The others follow the order of a map's values, or draw weights
anew.
"""

FILLS = get_args(_Fill)
"""Contents of hidden pixels; see `xbench.geometry.hiding`."""

HIDING = (*FILLS, "keep", "no_image")
"""Interventions that change the radiograph."""

OF_MAPS = get_args(_OfMaps)
"""Interventions that test how maps depend on the model."""

USUAL: tuple[Intervention, ...] = ("mean", "blur", "inpaint", "keep", "no_image", "prompts")
"""Default interventions of `xbench intervene`."""

HIDE, CONTROL = "hide: ", "control: "
"""Prefixes of conditions that hide the region, or an equal patch elsewhere; the fill follows."""

KEEP, NO_IMAGE = "keep", "no image"
"""Conditions that hide everything but the region, or the whole image."""

PROMPTS = ("prompt: absent", "prompt: present", "prompt: sentence")
"""Conditions in which the prompt is that of another finding, absent from the image or present in it, or a sentence
from another field."""

SENTENCE = "Tomorrow will be sunny with a light wind from the west."
"""The sentence from another field, in English."""

LEAST = 30
"""Least number of pairs for a finding's numbers under interventions."""


def draw(image_id: str, query: str) -> bytes:
    """Return the SHA-256 of the names of an image and a query; sorting by it gives a random but fixed order."""
    return hashlib.sha256(f"{image_id}\n{query}".encode()).digest()
