"""Readers of stored predictions and answers, which need neither torch nor a model."""

from __future__ import annotations

from xbench.predictions.answer import Answer, Box, Counts, Finish, Point, Size, Status
from xbench.predictions.conventions import Convention, smart_resize
from xbench.predictions.families import FAMILIES, Family, family_named

__all__ = [
    "FAMILIES",
    "Answer",
    "Box",
    "Convention",
    "Counts",
    "Family",
    "Finish",
    "Point",
    "Size",
    "Status",
    "family_named",
    "smart_resize",
]
