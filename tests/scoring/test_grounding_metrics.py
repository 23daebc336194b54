from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import TIES, Batch, assert_same, make_batch, metrics, states
from plain import overlaps, pointing
from torchmetrics import Metric

from xbench.metrics import PointingGame, ThresholdSweep, upsample


def sweep_by_loop(batches: list[Batch], thresholds: int) -> dict[str, np.ndarray]:
    classes = batches[0][0].shape[1]
    dice: list[list[list[float]]] = [[] for _ in range(classes)]
    iou: list[list[list[float]]] = [[] for _ in range(classes)]
    for batch in batches:
        for image, finding in np.argwhere(batch[2].numpy()):
            of_pair = overlaps(on_grid(batch, image, finding), batch[1][image, finding].numpy(), thresholds - 1)
            dice[finding].append(of_pair[0])
            iou[finding].append(of_pair[1])
    none = [[math.nan] * thresholds]
    return {
        "dice": np.array([np.mean(values or none, axis=0) for values in dice]),
        "iou": np.array([np.mean(values or none, axis=0) for values in iou]),
        "count": np.array([len(values) for values in dice]),
    }


def pointing_by_loop(batches: list[Batch], ties: str) -> list[float]:
    hits: list[list[float]] = [[] for _ in range(batches[0][0].shape[1])]
    for batch in batches:
        for image, finding in np.argwhere(batch[2].numpy()):
            hits[finding].append(pointing(on_grid(batch, image, finding), batch[1][image, finding].numpy(), ties))
    return [sum(values) / len(values) if values else math.nan for values in hits]


def on_grid(batch: Batch, image: int, finding: int) -> np.ndarray:
    return upsample(batch[0][image, finding][None], batch[1].shape[2:])[0].numpy()


@pytest.mark.parametrize("thresholds", [2, 11, 101, 1001])
def test_sweep_equals_loop(thresholds: int) -> None:
    batches = [make_batch(seed) for seed in range(2)]
    metric = ThresholdSweep(3, thresholds)
    for batch in batches:
        metric.update(*batch)
    result, expected = metric.compute(), sweep_by_loop(batches, thresholds)
    np.testing.assert_allclose(result["dice"].numpy(), expected["dice"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(result["iou"].numpy(), expected["iou"], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(result["count"].numpy(), expected["count"])
    assert result["dice"].dtype == result["iou"].dtype == torch.float64
    assert result["count"].dtype == torch.int64
    assert result["thresholds"].tolist() == [np.float32(k / (thresholds - 1)) for k in range(thresholds)]


@pytest.mark.parametrize("ties", TIES)
def test_pointing_game_equals_loop(ties: Any) -> None:
    batches = [make_batch(seed, small=size) for seed, size in ((0, 5), (1, 20), (2, 1))]
    metric = PointingGame(3, ties)
    for batch in batches:
        metric.update(*batch)
    result = metric.compute()
    np.testing.assert_allclose(result["pointing_game"].numpy(), pointing_by_loop(batches, ties), rtol=0, atol=1e-12)
    assert result["pointing_game"].dtype == torch.float64


def test_results_computed_before_are_forgotten_and_so_is_everything_by_reset() -> None:
    for metric, plain in zip(metrics(), metrics(), strict=True):
        batch = make_batch(0)
        for _ in range(2):
            metric.update(*batch)
            assert metric.compute()["count"].sum() == metric.count.sum() > 0
        assert metric.count.sum() == 2 * batch[2].sum()
        metric.reset()
        assert all(not state.any() for state in states(metric).values())
        metric.update(*make_batch(2))
        plain.update(*make_batch(2))
        assert_same(metric, plain)


def test_by_hand_on_three_by_three() -> None:
    saliency = torch.tensor([[[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 8.0, 8.0]]]])
    regions = torch.tensor([[[[False, False, False], [False, False, True], [False, False, True]]]])
    valid = torch.tensor([[True]])
    sweep = ThresholdSweep(1, 5)
    sweep.update(saliency, regions, valid)
    # Masks at 0, 1/4, 1/2, 3/4, 1 have 9, 7, 5, 3, 2 pixels; 2, 2, 2, 1, 1 of them lie in the region of 2.
    numbers = sweep.compute()
    # Kept in units of 2**-40.
    assert numbers["dice"].tolist()[0] == pytest.approx([4 / 11, 4 / 9, 4 / 7, 2 / 5, 2 / 4], abs=1e-12)
    assert numbers["iou"].tolist()[0] == pytest.approx([2 / 9, 2 / 7, 2 / 5, 1 / 4, 1 / 3], abs=1e-12)
    for ties, expected in (("share", 0.5), ("any", 1.0), ("first", 0.0)):
        pointing = PointingGame(1, ties)  # type: ignore[arg-type]
        pointing.update(saliency, regions, valid)
        assert pointing.compute()["pointing_game"].item() == expected


def spoilt(batch: Batch) -> Batch:
    saliency, regions, valid = (part.clone() for part in batch)
    saliency[~valid], regions[~valid] = math.nan, False
    return saliency, regions, valid


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(spoilt, id="what is not valid may hold anything"),
        pytest.param(lambda batch: (upsample(batch[0], (20, 20)), *batch[1:]), id="maps on the grid"),
        pytest.param(lambda batch: (batch[0].double(), *batch[1:]), id="float64"),
        pytest.param(lambda batch: (batch[0].clone().requires_grad_(), *batch[1:]), id="gradients"),
    ],
)
def test_another_batch_of_the_same_scores(other: Callable[[Batch], Batch]) -> None:
    batch = make_batch(3)
    for metric, plain in zip(metrics(), metrics(), strict=True):
        saliency, regions, valid = other(batch)
        before = saliency.detach().clone(), regions.clone()
        metric.update(saliency, regions, valid)
        plain.update(*batch)
        assert_same(metric, plain)
        assert torch.equal(saliency.detach().nan_to_num(), before[0].nan_to_num()) and torch.equal(regions, before[1])


def test_no_valid_pair_and_no_image() -> None:
    for metric in metrics():
        saliency, regions, valid = make_batch(0)
        metric.update(saliency, regions, torch.zeros_like(valid))
        metric.update(saliency[:0], regions[:0], valid[:0])
        result = metric.compute()
        assert result.pop("count").tolist() == [0, 0, 0]
        result.pop("thresholds", None)
        assert all(value.isnan().all() for value in result.values())


SIDES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    images=st.integers(0, 4),
    classes=st.integers(1, 4),
    small=SIDES,
    grid=st.tuples(st.integers(1, 40), st.integers(1, 40)) | st.none(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    transposed=st.booleans(),
)
def test_pairs_count_as_a_batch_does(
    seed: int,
    images: int,
    classes: int,
    small: tuple[int, int],
    grid: tuple[int, int] | None,
    dtype: torch.dtype,
    transposed: bool,
) -> None:
    """Together or in portions, in one thread or in several."""
    generator = torch.Generator().manual_seed(seed)
    saliency = torch.randn(images, classes, *small, generator=generator)
    saliency[: images // 2] = saliency[: images // 2].round()  # ties
    saliency[torch.rand(images, classes, generator=generator) < 0.2] = 0.1  # constant
    valid = torch.rand(images, classes, generator=generator) > 0.4
    regions = torch.rand(images, classes, *(grid or small), generator=generator) > 0.5
    regions[..., 0, 0] = True
    saliency, regions, valid = spoilt((saliency.to(dtype), regions, valid))
    if transposed:
        saliency, regions = saliency.mT.contiguous().mT, regions.mT.contiguous().mT
    for batch, threads, portions in zip(metrics(classes), metrics(classes), metrics(classes), strict=True):
        batch.update(saliency, regions, valid)
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(torch, "get_num_threads", lambda: 3)
            threads.update(saliency, regions, valid)
        assert_same(threads, batch)
        for some in torch.randperm(len(valid), generator=generator).split(2):
            portions.update(saliency[some], regions[some], valid[some])
        assert_same(portions, batch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_as_float32(dtype: torch.dtype) -> None:
    """Even where the range of a map is wider than float16 can tell."""
    saliency, regions, valid = make_batch(3)
    saliency = (saliency.clamp(-1, 1) * 60_000).to(dtype)
    for half, plain in zip(metrics(), metrics(), strict=True):
        half.update(saliency, regions, valid)
        plain.update(saliency.float(), regions, valid)
        assert_same(half, plain)


@pytest.mark.parametrize("cast", [lambda metric: metric.to(torch.bfloat16), Metric.half], ids=["to", "half"])
def test_casts_inference_mode_autocast_and_another_default_dtype_change_nothing(cast: Any) -> None:
    batch = make_batch(9)
    for metric, plain in zip(metrics(), metrics(), strict=True):
        plain.update(*batch)
        cast(metric)
        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.bfloat16)
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
                metric.update(*batch)
                result = metric.compute()
        finally:
            torch.set_default_dtype(default)
        for name, value in plain.compute().items():
            torch.testing.assert_close(result[name], value, rtol=0, atol=0, equal_nan=True)


def test_forward_returns_the_batch_and_keeps_the_sum() -> None:
    batches = [make_batch(seed) for seed in (11, 12)]
    for metric, plain in zip(metrics(), metrics(), strict=True):
        for batch in batches:
            metric(*batch)
            plain.update(*batch)
        assert_same(metric, plain)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("small", [5, 20])
def test_a_pair_without_a_score_is_named(bad: float | None, small: int) -> None:
    saliency, regions, valid = make_batch(13, small=small)
    valid[:] = True
    if bad is None:
        regions[2, 1], problem = False, "its region is empty"
    else:
        saliency[2, 1, 3, 4], problem = bad, "its saliency"
    for metric in metrics():
        with pytest.raises(ValueError, match=rf"image 2 of the batch, class 1\): {problem}"):
            metric.update(saliency, regions, valid)
        assert all(not state.any() for state in states(metric).values())


SALIENCY = [
    (0, lambda x: x[0], "saliency must be"),
    (0, lambda x: x.int(), "saliency must be"),
    (0, lambda x: x[..., :0], "saliency must be"),
    (1, lambda x: x.float(), "regions must be"),
    (1, lambda x: x[:3], "regions must be"),
    (1, lambda x: x[:, 0], "regions must be"),
    (1, lambda x: x[..., :0], "regions must be"),
]


@pytest.mark.parametrize("metric", metrics()[:2], ids=["sweep", "pointing"])
@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        *SALIENCY,
        (0, lambda x: x[:, :2], "made for 3"),
        (2, lambda x: x.int(), "valid must be"),
        (2, lambda x: x[:, :2], "valid must be"),
    ],
)
def test_wrong_input_is_refused(metric: Metric, place: int, change: Any, message: str) -> None:
    given = [*make_batch(15)]
    given[place] = change(given[place])
    with pytest.raises(ValueError, match=message):
        metric.update(*given)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ThresholdSweep(0), "number of findings"),
        (lambda: PointingGame(0), "number of findings"),
        (lambda: ThresholdSweep(1, 1), "thresholds"),
        (lambda: ThresholdSweep(1, 0.5), "thresholds"),  # type: ignore[arg-type]
        (lambda: PointingGame(1, "last"), "ties"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("metric", [PointingGame(1), ThresholdSweep(1)], ids=["pointing game", "sweep"])
def test_one_class_keeps_its_dimension_and_copies_go_on_counting(metric: Metric) -> None:
    saliency, regions = torch.rand(3, 4, 4), torch.ones(3, 8, 8, dtype=torch.bool)
    metric.update(saliency[:, None], regions[:, None], torch.ones(3, 1, dtype=torch.bool))
    for again in (metric, pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
        scores = again.compute()
        assert scores["count"].tolist() == [3]
        assert {len(value) for name, value in scores.items() if name != "thresholds"} == {1}
        if again is not metric:
            again.update(saliency[:, None], regions[:, None], torch.ones(3, 1, dtype=torch.bool))
            assert again.compute()["count"].tolist() == [6]
            assert metric.count.tolist() == [3]
