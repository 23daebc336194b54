"""Grounding and recognition metrics."""

from __future__ import annotations

from xbench.geometry.grid import upsample
from xbench.metrics.grounding import BoxScores, LesionDetections, PointingGame, ThresholdSweep
from xbench.scoring.boxes import box_iou, draw_boxes, score_boxes, score_on_grid
from xbench.scoring.map_measures import pointing_hits
from xbench.scoring.maps import cnr, mass_accuracy, pixel_ranking, pointing_with_tolerance, rank_accuracy
from xbench.scoring.numbers import recognition_macro, recognition_numbers
from xbench.scoring.protocols.calibration import CalibrationScores, calibration
from xbench.scoring.sweep import PixelCounts, count_pixels, normalise, threshold_values

__all__ = [
    "BoxScores",
    "CalibrationScores",
    "LesionDetections",
    "PixelCounts",
    "PointingGame",
    "ThresholdSweep",
    "box_iou",
    "calibration",
    "cnr",
    "count_pixels",
    "draw_boxes",
    "mass_accuracy",
    "normalise",
    "pixel_ranking",
    "pointing_hits",
    "pointing_with_tolerance",
    "rank_accuracy",
    "recognition_macro",
    "recognition_numbers",
    "score_boxes",
    "score_on_grid",
    "threshold_values",
    "upsample",
]
