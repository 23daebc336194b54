"""Grounding and recognition metrics."""

from __future__ import annotations

from xbench.geometry.grid import upsample as upsample
from xbench.metrics.grounding import BoxScores as BoxScores
from xbench.metrics.grounding import LesionDetections as LesionDetections
from xbench.metrics.grounding import PointingGame as PointingGame
from xbench.metrics.grounding import ThresholdSweep as ThresholdSweep
from xbench.scoring.boxes import box_iou as box_iou
from xbench.scoring.boxes import draw_boxes as draw_boxes
from xbench.scoring.boxes import score_boxes as score_boxes
from xbench.scoring.boxes import score_on_grid as score_on_grid
from xbench.scoring.map_measures import pointing_hits as pointing_hits
from xbench.scoring.maps import cnr as cnr
from xbench.scoring.maps import mass_accuracy as mass_accuracy
from xbench.scoring.maps import pixel_ranking as pixel_ranking
from xbench.scoring.maps import pointing_with_tolerance as pointing_with_tolerance
from xbench.scoring.maps import rank_accuracy as rank_accuracy
from xbench.scoring.numbers import recognition_macro as recognition_macro
from xbench.scoring.numbers import recognition_numbers as recognition_numbers
from xbench.scoring.protocols.calibration import CalibrationScores as CalibrationScores
from xbench.scoring.protocols.calibration import calibration as calibration
from xbench.scoring.sweep import PixelCounts as PixelCounts
from xbench.scoring.sweep import count_pixels as count_pixels
from xbench.scoring.sweep import normalise as normalise
from xbench.scoring.sweep import threshold_values as threshold_values
