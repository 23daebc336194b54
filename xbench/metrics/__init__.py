"""Grounding and recognition metrics."""

from __future__ import annotations

from xbench.geometry.grid import upsample
from xbench.metrics.boxes import BoxScores, box_iou, draw_boxes, score_boxes, score_on_grid
from xbench.metrics.calibration import CalibrationScores, calibration
from xbench.metrics.classification import ClassificationScores, MacroScores, classification_scores, macro
from xbench.metrics.functional import normalise
from xbench.metrics.lesions import LesionDetections
from xbench.metrics.maps import (
    cnr,
    mass_accuracy,
    pixel_ranking,
    pointing_with_tolerance,
    rank_accuracy,
)
from xbench.metrics.pointing_game import PointingGame, PointingGamePairs, pointing_hits
from xbench.metrics.sweep import PixelCounts, count_pixels, threshold_values
from xbench.metrics.threshold_sweep import ThresholdSweep, ThresholdSweepPairs

__all__ = [
    "BoxScores",
    "CalibrationScores",
    "ClassificationScores",
    "LesionDetections",
    "MacroScores",
    "PixelCounts",
    "PointingGame",
    "PointingGamePairs",
    "ThresholdSweep",
    "ThresholdSweepPairs",
    "box_iou",
    "calibration",
    "classification_scores",
    "cnr",
    "count_pixels",
    "draw_boxes",
    "macro",
    "mass_accuracy",
    "normalise",
    "pixel_ranking",
    "pointing_hits",
    "pointing_with_tolerance",
    "rank_accuracy",
    "score_boxes",
    "score_on_grid",
    "threshold_values",
    "upsample",
]
