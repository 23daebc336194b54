"""Batches of maps and regions for the grounding metrics, and what a metric holds."""

from __future__ import annotations

import torch
from torch import Tensor

from xbench.metrics import PointingGame, ThresholdSweep
from xbench.scoring.metrics import RowMetric

Batch = tuple[Tensor, Tensor, Tensor]
TIES = ("share", "any", "first")
KINDS = ("sweep", *TIES)


def make_batch(seed: int = 0, images: int = 4, classes: int = 3, small: int = 5, grid: int = 20) -> Batch:
    """Draw saliency, of which half is rounded so that values tie and one map is constant, regions and what is valid."""
    generator = torch.Generator().manual_seed(seed)
    saliency = torch.randn(images, classes, small, small, generator=generator)
    saliency[: images // 2] = saliency[: images // 2].round()
    saliency[-1, 0] = 0.1
    regions = torch.rand(images, classes, grid, grid, generator=generator) > 0.6
    regions[..., 0, 0] = True
    return saliency, regions, torch.rand(images, classes, generator=generator) > 0.4


def metrics(classes: int = 3, thresholds: int = 11) -> list[RowMetric]:
    return [ThresholdSweep(classes, thresholds), *(PointingGame(classes, ties) for ties in TIES)]  # type: ignore[arg-type]


def states(metric: RowMetric) -> dict[str, Tensor]:
    return {name: getattr(metric, name) for name in metric._defaults}


def assert_same(one: RowMetric, other: RowMetric) -> None:
    found, expected = states(one), states(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name].cpu(), value), name
