"""Pairs handed over one by one count as the same pairs in a batch, to the bit."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from xbench.metrics import PointingGame, ThresholdSweep
from xbench.metrics.per_class import PerClassMetric

SIDES = st.integers(1, 9)


def metrics(classes: int = 3) -> list[PerClassMetric]:
    return [ThresholdSweep(classes, 11), PointingGame(classes), PointingGame(classes, "first")]


def make_pairs(seed: int, classes: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    regions = torch.rand(7, 20, 24, generator=generator) > 0.6
    return torch.randn(7, 5, 6, generator=generator), regions, torch.randint(classes, (7,), generator=generator)


def tensors_of(metric: PerClassMetric) -> dict[str, Tensor]:
    """The scores of the last pairs, and the pixel counts behind them."""
    scores = dict(vars(metric.pairs))  # type: ignore[arg-type]
    counts = scores.pop("counts", None)
    return scores | ({} if counts is None else {f"counts.{name}": value for name, value in vars(counts).items()})


def assert_same(one: PerClassMetric, other: PerClassMetric) -> None:
    for name in one._defaults:
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    for name, value in one.compute().items():
        torch.testing.assert_close(other.compute()[name], value, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    images=st.integers(0, 4),
    classes=st.integers(1, 4),
    small=st.tuples(SIDES, SIDES),
    grid=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    transposed=st.booleans(),
    step=st.integers(1, 6),
)
def test_pairs_are_those_of_a_batch(
    seed: int,
    images: int,
    classes: int,
    small: tuple[int, int],
    grid: tuple[int, int],
    dtype: torch.dtype,
    transposed: bool,
    step: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    saliency = torch.randn(images, classes, *small, generator=generator).to(dtype)
    saliency[: images // 2] = saliency[: images // 2].round()  # ties
    if transposed:
        saliency = saliency.mT.contiguous().mT
    regions = torch.rand(images, classes, *grid, generator=generator) > 0.5
    regions[..., 0, 0] = True
    valid = torch.rand(images, classes, generator=generator) > 0.4
    rows, columns = valid.nonzero(as_tuple=True)
    for batch, pairs, portions in zip(metrics(classes), metrics(classes), metrics(classes), strict=True):
        batch.update(saliency, regions, valid)
        pairs.update_pairs(saliency[rows, columns], regions[rows, columns], columns)
        assert_same(batch, pairs)
        for name, value in tensors_of(batch).items():
            expected = torch.arange(len(rows)) if name == "rows" else value
            assert torch.equal(tensors_of(pairs)[name], expected), name
        for some in torch.arange(len(rows)).split(step):
            portions.update_pairs(saliency[rows, columns][some], regions[rows, columns][some], columns[some])
        assert_same(batch, portions)


def test_no_pair() -> None:
    for metric in metrics():
        metric.update_pairs(*(part[:0] for part in make_pairs(0)))
        assert metric.compute()["count"].tolist() == [0, 0, 0]


def test_results_computed_before_are_forgotten() -> None:
    for metric, plain in zip(metrics(), metrics(), strict=True):
        metric.update_pairs(*make_pairs(0))
        before = metric.compute()["count"].sum()
        metric.update_pairs(*make_pairs(1))
        assert metric.compute()["count"].sum() == 2 * before
        metric.reset()
        assert len(metric.pairs.rows) == 0  # type: ignore[union-attr, arg-type]
        metric.update_pairs(*make_pairs(2))
        plain.update_pairs(*make_pairs(2))
        assert_same(metric, plain)


def test_copies_go_on_counting() -> None:
    for metric in metrics():
        metric.update_pairs(*make_pairs(0))
        once = metric.count.clone()
        for again in (pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
            again.update_pairs(*make_pairs(0))
            assert torch.equal(again.compute()["count"], 2 * once)
            assert torch.equal(metric.count, once)


def test_input_is_left_alone_and_needs_no_gradient() -> None:
    saliency, regions, classes = make_pairs(3)
    large = torch.randn(7, 20, 24)
    for maps in (saliency, large):
        before = (maps.clone(), regions.clone())
        for metric in metrics():
            metric.update_pairs(maps.clone().requires_grad_(), regions, classes)
            metric.update_pairs(maps, regions, classes)
        assert torch.equal(maps, before[0]) and torch.equal(regions, before[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_name_the_pair(bad: float) -> None:
    saliency, regions, classes = make_pairs(4)
    saliency[5, 2, 2] = bad
    for metric in metrics():
        with pytest.raises(ValueError, match=rf"image 5 of the batch, class {classes[5]}\): its saliency"):
            metric.update_pairs(saliency, regions, classes)
        assert not metric.count.any()


def test_a_pair_needs_a_region() -> None:
    saliency, regions, classes = make_pairs(5)
    regions[2] = False
    for metric in metrics():
        with pytest.raises(ValueError, match=rf"image 2 of the batch, class {classes[2]}\): its region is empty"):
            metric.update_pairs(saliency, regions, classes)


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, lambda x: x[0], "saliency must be"),
        (0, lambda x: x[None], "saliency must be"),
        (0, lambda x: x.int(), "saliency must be"),
        (0, lambda x: x[..., :0], "saliency must be"),
        (1, lambda x: x.float(), "regions must be"),
        (1, lambda x: x[:3], "regions must be"),
        (1, lambda x: x[:, :0], "regions must be"),
        (1, lambda x: x[:, None], "regions must be"),
        (2, lambda x: x[:3], "classes must be"),
        (2, lambda x: x.int(), "classes must be"),
        (2, lambda x: x[:, None], "classes must be"),
        (2, lambda x: x + 3, r"classes must lie in 0\.\.2"),
        (2, lambda x: x - 3, r"classes must lie in 0\.\.2"),
    ],
)
def test_wrong_input_is_refused(place: int, change: Any, message: str) -> None:
    pairs = list(make_pairs(6))
    pairs[place] = change(pairs[place])
    for metric in metrics():
        with pytest.raises(ValueError, match=message):
            metric.update_pairs(*pairs)
