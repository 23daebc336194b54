"""This project's protocol: raw maps against regions without a threshold, and overlap at 0.5 of the stretched map."""

from __future__ import annotations

import math

import numpy as np

from xbench.scoring import maps
from xbench.scoring.maps import Map, Region
from xbench.scoring.protocols.base import PairTruth, PairView, Protocol
from xbench.scoring.protocols.common import dice_and_iou, stretched


def measures(saliency: Map, region: Region) -> dict[str, float]:
    """Return the measures of a map on the grid that need no threshold; NaN if undefined."""
    chance = np.count_nonzero(region) / region.size
    rank = maps.rank_accuracy(saliency, region)
    auroc, average_precision = maps.pixel_ranking(saliency, region)
    return {
        "rank_accuracy": rank,
        # Excess over chance, as a share of the possible gain.
        "rank_excess": (rank - chance) / (1 - chance) if chance < 1 else math.nan,
        "mass_accuracy": maps.mass_accuracy(saliency, region),
        "pixel_auroc": auroc,
        "pixel_ap": average_precision,
        "cnr": maps.cnr(saliency, region),
        "pointing_tolerant": maps.pointing_with_tolerance(saliency, region, maps.TOLERANCE * min(region.shape)),
    }


class XBench(Protocol):
    name = "xbench"
    title = "xbench"
    headline = "rank_accuracy"
    heading = "Rank accuracy"
    citation = "arXiv:2510.19599; this project"
    rule = "raw maps against regions without a threshold; IoU and Dice at 0.5 of the stretched map"
    flaw = "Stretching each map to [0, 1] erases its scale, so images without the finding do not count."
    in_setting = "always"
    means = (
        *("rank_accuracy", "rank_excess", "mass_accuracy", "pixel_auroc", "pixel_ap", "cnr"),
        *("pointing", "pointing_tolerant", "dice", "iou"),
    )

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, float]:
        saliency = prediction.on_grid(truth.region.shape, prediction.upsampling)
        values = measures(saliency, truth.region)
        if prediction.cells.min() < 0:
            # Undefined, because the zero of such maps is arbitrary.
            values["mass_accuracy"] = math.nan
        dice, iou = dice_and_iou(stretched(saliency) >= np.float32(0.5), truth.region)
        pointing = maps.pointing_with_tolerance(saliency, truth.region, 0)
        return values | {"pointing": pointing, "dice": dice, "iou": iou}
