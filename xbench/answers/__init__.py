"""What models say in words: one type for all answers, the frames of their numbers, and how each family writes them.

Needs neither torch nor a model, so that answers from anywhere are read in the same way.
"""

from __future__ import annotations

from xbench.answers.answer import Answer, Box, Counts, Finish, Point, Size, Status
from xbench.answers.families import FAMILIES, Family, family_named
from xbench.answers.frames import Frame, smart_resize

__all__ = [
    "FAMILIES",
    "Answer",
    "Box",
    "Counts",
    "Family",
    "Finish",
    "Frame",
    "Point",
    "Size",
    "Status",
    "family_named",
    "smart_resize",
]
