"""LightningModules: one per vision-language model, and the instruments that show what a number is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbench.lazy import lazy_attributes

if TYPE_CHECKING:
    from xbench.models.base import VLM, SaliencyModel
    from xbench.models.clip import CLIP
    from xbench.models.demo import Demo
    from xbench.models.instruments import CentrePrior, Oracle, UniformRandom

__all__ = ["CLIP", "VLM", "CentrePrior", "Demo", "Oracle", "SaliencyModel", "UniformRandom"]

__getattr__ = lazy_attributes(
    __name__,
    {
        "CLIP": "clip",
        "VLM": "base",
        "CentrePrior": "instruments",
        "Demo": "demo",
        "Oracle": "instruments",
        "SaliencyModel": "base",
        "UniformRandom": "instruments",
    },
)
