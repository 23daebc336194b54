"""Rows of a run whose queries are findings, side by side: what tables, figures and statistics read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xbench.scoring.numbers import counted_probabilities
from xbench.scoring.rows import Rows


@dataclass(frozen=True)
class Images:
    """Scores of N images and C findings, every array (N, C) unless said otherwise; NaN where there is none.

    Grounding is scored on pairs of an image and a finding that is present with a region; of others it is NaN. Places
    are fractions of the evaluation grid, from 0 at its left or top edge to 1 at the other.
    """

    index: NDArray[np.int64]  # position of each image in the dataset (N,)
    image_ids: list[str]
    patient_ids: list[str | None]
    labels: NDArray[np.int8]
    scored: NDArray[np.bool_]
    probabilities: NDArray[np.float64]
    counted_probabilities: NDArray[np.float64]
    region_digests: NDArray[np.bytes_]
    pointing_hit: NDArray[np.float64]
    dice: NDArray[np.float64]
    iou: NDArray[np.float64]
    region_area: NDArray[np.float64]
    region_x: NDArray[np.float64]
    region_y: NDArray[np.float64]
    peak_x: NDArray[np.float64]
    peak_y: NDArray[np.float64]
    peak_distance: NDArray[np.float64]
    reader_dice: NDArray[np.float64]
    reader_iou: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Rows) -> Images:
        """Bring rows side by side."""
        arrays: dict[str, Any] = {
            field.name: rows.matrix(field.name) for field in fields(cls) if field.name in rows.columns
        }
        return cls(
            index=rows.index,
            image_ids=[*rows.image_ids],
            patient_ids=[*rows.patient_ids],
            labels=rows.matrix("label"),
            probabilities=rows.matrix("probability"),
            counted_probabilities=rows.spread(counted_probabilities(rows)),
            region_digests=rows.matrix("region_digest").astype("S16"),
            **arrays,
        )
