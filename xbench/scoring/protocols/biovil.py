"""BioViL (ECCV 2022): smoothed cosines above fixed thresholds."""

from __future__ import annotations

import numpy as np

from xbench.scoring.maps import Map, Region, cnr
from xbench.scoring.protocols.aep import overlaps, smoothed
from xbench.scoring.protocols.base import PairTruth, PairView, Protocol


def score(saliency: Map, region: Region) -> dict[str, float]:
    """Score a map of cosines; NaN if a mask or the region is empty."""
    return overlaps(saliency.astype(np.float32), region) | {"cnr": cnr(saliency, region, absolute=True)}


class BioViL(Protocol):
    name = "biovil"
    title = "BioViL"
    headline = "miou"
    heading = "Mean IoU"
    citation = "Boecking et al., ECCV 2022 (map: microsoft/hi-ml b67c1d2; the score is our reading of the paper)"
    rule = "cosines of smoothed cells above 0.1 to 0.5, mean IoU; CNR without its sign"
    flaw = "Thresholds on raw cosines favor models with large cosines; where none exceeds 0.1 there is no IoU."
    setting = "a square in the middle of the image"
    limits = ("maps must be cosines", "phrases of one finding are merged")
    scales = frozenset({"cosine"})
    means = ("miou", "cnr")

    def measure(self, prediction: PairView, truth: PairTruth) -> dict[str, float]:
        cells = smoothed(prediction.cells, prediction.sigma)
        return score(prediction.on_grid(truth.region.shape, cells=cells), truth.region)
