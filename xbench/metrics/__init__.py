"""Grounding and recognition metrics."""

from __future__ import annotations

from xbench.geometry.grid import upsample
from xbench.metrics.classification import ClassificationScores, MacroScores, classification_scores, macro
from xbench.metrics.functional import normalise
from xbench.metrics.pointing_game import PointingGame, PointingGamePairs, pointing_hits
from xbench.metrics.sweep import PixelCounts, count_pixels, threshold_values
from xbench.metrics.threshold_sweep import ThresholdSweep, ThresholdSweepPairs

__all__ = [
    "ClassificationScores",
    "MacroScores",
    "PixelCounts",
    "PointingGame",
    "PointingGamePairs",
    "ThresholdSweep",
    "ThresholdSweepPairs",
    "classification_scores",
    "count_pixels",
    "macro",
    "normalise",
    "pointing_hits",
    "threshold_values",
    "upsample",
]
