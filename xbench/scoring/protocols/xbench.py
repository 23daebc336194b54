"""This project's own: raw maps against regions without a threshold, and the overlap at 0.5 of the stretched map."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from xbench.scoring.maps import (
    TOLERANCE,
    Map,
    Region,
    cnr,
    mass_accuracy,
    pixel_ranking,
    pointing_with_tolerance,
    rank_accuracy,
)
from xbench.scoring.protocols.base import Columns, Group, Number, PairTruth, PairView, Protocol, mean_of_findings
from xbench.scoring.protocols.common import stretched


def measures(saliency: Map, region: Region) -> dict[str, float]:
    """Return the measures of a map on the grid without a threshold; NaN where they are undefined."""
    chance = np.count_nonzero(region) / region.size
    rank = rank_accuracy(saliency, region)
    auroc, average_precision = pixel_ranking(saliency, region)
    return {
        "rank_accuracy": rank,
        # By how much it exceeds chance, in shares of what there is to gain.
        "rank_excess": (rank - chance) / (1 - chance) if chance < 1 else math.nan,
        "mass_accuracy": mass_accuracy(saliency, region),
        "pixel_auroc": auroc,
        "pixel_ap": average_precision,
        "cnr": cnr(saliency, region),
        "pointing_tolerant": pointing_with_tolerance(saliency, region, TOLERANCE * min(region.shape)),
    }


class XBench(Protocol):
    name = "xbench"
    title = "xbench"
    headline = "rank_accuracy"
    heading = "Rank accuracy"
    citation = "arXiv:2510.19599; this project"
    rule = "raw maps against regions without a threshold; IoU and Dice at 0.5 of the stretched map"
    flaw = "Stretching each map to [0, 1] erases its scale, so nothing is said of images without the finding."
    setting = "the whole radiograph on the evaluation grid"
    in_setting = "always"

    def measure(self, prediction: PairView, truth: PairTruth) -> Columns:
        region = truth.region
        saliency = prediction.on_grid(region.shape, prediction.upsampling)
        mask = stretched(saliency) >= np.float32(0.5)
        both, size = np.count_nonzero(mask & region), np.count_nonzero(mask) + np.count_nonzero(region)
        values = measures(saliency, region)
        if prediction.cells.min() < 0:
            # Below 0 there is no mass: such maps have another zero.
            values["mass_accuracy"] = math.nan
        pointing = pointing_with_tolerance(saliency, region, 0)
        return values | {"pointing": pointing, "dice": 2 * both / size, "iou": both / (size - both)}

    def numbers(self, groups: Sequence[Group]) -> dict[str, Number]:
        names = ("rank_accuracy", "rank_excess", "mass_accuracy", "pixel_auroc", "pixel_ap", "cnr")
        overlaps = ("pointing", "pointing_tolerant", "dice", "iou")
        return {name: mean_of_findings(groups, name) for name in (*names, *overlaps)}
