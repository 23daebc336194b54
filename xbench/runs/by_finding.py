"""Rows of a run by image and finding, for tables, figures and statistics."""

from __future__ import annotations

from xbench.scoring.numbers import counted_probabilities
from xbench.scoring.rows import Rows


class Images:
    """Scores of N images and C findings in arrays (N, C); NaN where there is none.

    Grounding is NaN except on positive pairs with a region. Positions are fractions of the evaluation grid, from 0 at
    the left or top edge to 1 at the other.
    """

    def __init__(self, rows: Rows) -> None:
        self.index = rows.index  # position of each image in the dataset (N,)
        self.image_ids = [*rows.image_ids]
        self.patient_ids = [*rows.patient_ids]
        self.labels = rows.matrix("label")
        self.scored = rows.matrix("scored")
        self.probabilities = rows.matrix("probability")
        self.counted_probabilities = rows.spread(counted_probabilities(rows))
        self.region_digests = rows.matrix("region_digest").astype("S16")
        self.pointing_hit = rows.matrix("pointing_hit")
        self.dice = rows.matrix("dice")
        self.iou = rows.matrix("iou")
        self.region_area = rows.matrix("region_area")
        self.peak_x = rows.matrix("peak_x")
        self.peak_y = rows.matrix("peak_y")
        self.peak_distance = rows.matrix("peak_distance")
