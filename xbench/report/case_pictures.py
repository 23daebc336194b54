"""What pictures of cases are drawn from, in print, on the page and in Weights & Biases: radiograph, region, maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

from xbench.report.case_choice import CaseScores, ChosenCase
from xbench.report.runs import Run
from xbench.report.schema import RunAnalysis
from xbench.runs.maps import ScoredPair

COLOURS = "inferno"
"""Matplotlib's name of the colours of maps, in every picture the same."""


@dataclass(frozen=True)
class CaseMap:
    """A run's map of a case: the raw one with radiograph and region in `pair`, and on the grid of the region.

    Attributes:
        saliency: The map on the grid, (H, W) float32 in [0, 1].
        peak: Where the map is highest, x and y as shares of width and height.
    """

    run: RunAnalysis
    pair: ScoredPair
    saliency: NDArray[np.float32]
    peak: tuple[float, float]
    scores: CaseScores


def read_maps(runs: Sequence[RunAnalysis], cases: Iterable[ChosenCase]) -> Iterator[tuple[ChosenCase, list[CaseMap]]]:
    """Read the maps of chosen cases, those of one case at a time.

    The runs are on one dataset; those that kept no maps are left out. Radiograph and region of a case are the same in
    all runs, as `choose_cases` sees to.
    """
    kept = [(run, pairs) for run in runs if (pairs := run.run.cases()) is not None]
    for case in cases:
        maps = []
        for run, pairs in kept:
            pair = pairs.read(case.image_id, case.finding)
            images = run.run.images
            place = images.image_ids.index(case.image_id), run.run.results.findings.index(case.finding)
            peak = float(images.peak_x[place]), float(images.peak_y[place])
            maps.append(CaseMap(run, pair, map_on_grid(run.run, pair), peak, case.scores[run.run.label]))
        yield case, maps


def map_on_grid(run: Run, pair: ScoredPair) -> NDArray[np.float32]:
    """Return the map of a run's pair on the grid of its region (H, W), normalised to [0, 1] as the scores take it."""
    # Torch is imported only where pictures are made, so that the other parts of a report start fast.
    import torch

    from xbench.geometry.grid import saliency_on_grid

    mode = (run.results.provenance.get("model") or {}).get("saliency_upsample", "bilinear")
    height, width = pair.region.shape
    on_grid = saliency_on_grid(torch.tensor(pair.saliency)[None], [pair.view], (height, width), mode)[0].numpy()
    # What xbench.metrics.normalise does, without the seconds that its package takes to load.
    span = on_grid.max() - on_grid.min()
    normal: NDArray[np.float32] = (on_grid - on_grid.min()) / (span if span > 0 else np.float32(1))
    return normal


def tinted(display: NDArray[np.uint8], saliency: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return a radiograph (H, W) tinted by a map (H, W) in [0, 1], as RGB (H, W, 3); a map of 0 leaves it untouched."""
    heat = colormaps[COLOURS](saliency)[..., :3] * 255
    weight = 0.65 * saliency[..., None]
    mixed: NDArray[np.float64] = display[..., None] * (1 - weight) + heat * weight
    return mixed.round().astype(np.uint8)
