"""What the values of maps are, and how maps are scored, as plain values that need no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xbench.geometry.grid import Upsampling

MAX_THRESHOLDS = 100_001

TieRule = Literal["share", "any", "first"]
"""What counts when several pixels share the maximum of a map; `pointing_hits` describes the three."""

MapScale = Literal["cosine", "logit", "probability", "attention", "none"]
"""What the values of a model's raw maps are: cosines in [-1, 1], raw scores whose sigmoid is a probability,
probabilities in [0, 1], shares of attention that sum to 1 with what the map leaves out, or nothing that compares
between maps."""


@dataclass(frozen=True)
class Rules:
    """How maps are scored against annotated regions."""

    grid: tuple[int, int] | Literal["native"] = (224, 224)  # height and width, or the pixels of each image
    upsampling: Upsampling = "bilinear"
    gamma: float = 0.5  # share of a grid pixel that a region covers at least
    thresholds: int = 101  # how many k / (thresholds - 1) the sweep has; odd, so that 0.5 is one of them
    ties: TieRule = "share"
