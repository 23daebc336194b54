"""Kept maps as they were scored: on the evaluation grid, from 0 to 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xbench.report.runs import Run
from xbench.runs.maps import ScoredPair

__all__ = ["COLOURS", "map_on_grid"]

COLOURS = "inferno"
"""Matplotlib's name of the colours of maps, in every picture the same."""


def map_on_grid(run: Run, case: ScoredPair) -> NDArray[np.float32]:
    """Return the map of a run's case on the grid of its region (H, W), normalised to [0, 1] as the scores take it."""
    # Torch is imported only where pictures are made, so that the other parts of a report start fast.
    import torch

    from xbench.geometry.grid import saliency_on_grid

    mode = (run.results.provenance.get("model") or {}).get("saliency_upsample", "bilinear")
    height, width = case.region.shape
    on_grid = saliency_on_grid(torch.tensor(case.saliency)[None], [case.view], (height, width), mode)[0].numpy()
    # What xbench.metrics.normalise does, without the seconds that its package takes to load.
    span = on_grid.max() - on_grid.min()
    normal: NDArray[np.float32] = (on_grid - on_grid.min()) / (span if span > 0 else np.float32(1))
    return normal
