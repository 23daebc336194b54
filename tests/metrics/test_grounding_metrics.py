"""PointingGame and ThresholdSweep as metrics: against loops, by hand, and over orders, dtypes and devices."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics import Metric

from xbench.metrics import PointingGame, ThresholdSweep, upsample

Batch = tuple[Tensor, Tensor, Tensor]


def make_batch(seed: int, images: int = 4, classes: int = 3, grid: int = 20, small: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    saliency = torch.randn(images, classes, small, small, generator=generator)
    saliency[0] = saliency[0].round()
    regions = torch.rand(images, classes, grid, grid, generator=generator) > 0.7
    valid = torch.rand(images, classes, generator=generator) > 0.4
    return saliency, regions, valid


def on_grid(batch: Batch, image: int, finding: int) -> np.ndarray:
    """One map on the grid."""
    return upsample(batch[0][image, finding][None], batch[1].shape[2:])[0].numpy()


def sweep_by_loop(batches: list[Batch], thresholds: int) -> dict[str, np.ndarray]:
    """Mean Dice and IoU per class, one pair and one threshold at a time, with numpy float32 comparisons."""
    classes = batches[0][0].shape[1]
    dice: list[list[list[float]]] = [[[] for _ in range(thresholds)] for _ in range(classes)]
    iou: list[list[list[float]]] = [[[] for _ in range(thresholds)] for _ in range(classes)]
    for batch in batches:
        for image, finding in np.argwhere(batch[2].numpy()):
            one, region = on_grid(batch, image, finding), batch[1][image, finding].numpy()
            spread = one.max() - one.min()
            one = (one - one.min()) / spread if spread > 0 else np.zeros_like(one)
            for k in range(thresholds):
                mask = one >= np.float32(k / (thresholds - 1))
                both, either = (mask & region).sum(), (mask | region).sum()
                dice[finding][k].append(2 * both / (mask.sum() + region.sum()))
                iou[finding][k].append(both / either)
    return {
        "dice": np.array([[np.mean(values) if values else math.nan for values in row] for row in dice]),
        "iou": np.array([[np.mean(values) if values else math.nan for values in row] for row in iou]),
        "count": np.array([len(row[0]) for row in dice]),
    }


def pointing_by_loop(batches: list[Batch], ties: str) -> list[float]:
    hits: list[list[float]] = [[] for _ in range(batches[0][0].shape[1])]
    for batch in batches:
        for image, finding in np.argwhere(batch[2].numpy()):
            one = on_grid(batch, image, finding).ravel().tolist()
            region = batch[1][image, finding].numpy().ravel()
            tied = [place for place, value in enumerate(one) if value == max(one)]
            inside = [bool(region[place]) for place in tied]
            hits[finding].append(
                {"share": sum(inside) / len(inside), "any": float(any(inside)), "first": float(inside[0])}[ties]
            )
    return [sum(values) / len(values) if values else math.nan for values in hits]


def states(metric: Metric) -> dict[str, Tensor]:
    return {name: getattr(metric, name) for name in metric._defaults}


def both_metrics(classes: int = 3) -> list[Metric]:
    return [ThresholdSweep(classes, 11), PointingGame(classes)]


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


@pytest.mark.parametrize("ties", ["share", "any", "first"])
def test_pointing_game_equals_loop(ties: Any) -> None:
    batches = [make_batch(seed, small=size) for seed, size in ((0, 5), (1, 20), (2, 1))]
    metric = PointingGame(3, ties)
    for batch in batches:
        metric.update(*batch)
    result = metric.compute()
    np.testing.assert_allclose(result["pointing_game"].numpy(), pointing_by_loop(batches, ties), rtol=0, atol=1e-12)
    assert result["pointing_game"].dtype == torch.float64


def test_pairs_are_those_of_the_last_batch() -> None:
    sweep, pointing = ThresholdSweep(3, 11), PointingGame(3)
    for seed in range(2):
        batch = make_batch(seed)
        sweep.update(*batch)
        pointing.update(*batch)
        rows, classes = batch[2].nonzero(as_tuple=True)
        assert torch.equal(sweep.pairs.rows, rows) and torch.equal(sweep.pairs.classes, classes)
        assert torch.equal(pointing.pairs.rows, rows) and torch.equal(pointing.pairs.classes, classes)
        for place, (row, finding) in enumerate(zip(rows.tolist(), classes.tolist(), strict=True)):
            only = torch.zeros_like(batch[2])
            only[row, finding] = True
            expected = sweep_by_loop([(batch[0], batch[1], only)], 11)
            np.testing.assert_array_equal(sweep.pairs.dice[place].numpy(), expected["dice"][finding])
            np.testing.assert_array_equal(sweep.pairs.iou[place].numpy(), expected["iou"][finding])
            hit = pointing_by_loop([(batch[0], batch[1], only)], "share")[finding]
            assert pointing.pairs.hit[place].item() == hit


def test_reset_empties_pairs_and_states() -> None:
    for metric in both_metrics():
        metric.update(*make_batch(0))
        metric.reset()
        assert len(metric.pairs.rows) == 0  # type: ignore[union-attr, arg-type]
        assert all(not state.any() for state in states(metric).values())


def test_by_hand_on_three_by_three() -> None:
    saliency = torch.tensor([[[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 8.0, 8.0]]]])
    regions = torch.tensor([[[[False, False, False], [False, False, True], [False, False, True]]]])
    valid = torch.tensor([[True]])
    sweep = ThresholdSweep(1, 5)
    sweep.update(saliency, regions, valid)
    # Masks at 0, 1/4, 1/2, 3/4, 1 have 9, 7, 5, 3, 2 pixels; 2, 2, 2, 1, 1 of them lie in the region of 2.
    assert sweep.pairs.dice.tolist() == [[4 / 11, 4 / 9, 4 / 7, 2 / 5, 2 / 4]]
    assert sweep.pairs.iou.tolist() == [[2 / 9, 2 / 7, 2 / 5, 1 / 4, 1 / 3]]
    for ties, expected in (("share", 0.5), ("any", 1.0), ("first", 0.0)):
        pointing = PointingGame(1, ties)  # type: ignore[arg-type]
        pointing.update(saliency, regions, valid)
        assert pointing.compute()["pointing_game"].item() == expected


def test_constant_map() -> None:
    saliency = torch.full((1, 1, 2, 2), 7.0)
    regions = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    regions[..., 0] = True
    sweep, pointing = ThresholdSweep(1, 11), PointingGame(1)
    sweep.update(saliency, regions, torch.tensor([[True]]))
    pointing.update(saliency, regions, torch.tensor([[True]]))
    assert sweep.pairs.dice.tolist() == [[8 / 20] + [0.0] * 10]
    assert sweep.pairs.iou.tolist() == [[4 / 16] + [0.0] * 10]
    assert pointing.compute()["pointing_game"].item() == 0.25


def test_an_oracle_scores_one() -> None:
    regions = make_batch(0, images=3, grid=33)[1]
    regions[..., 5, 5], regions[..., 6, 6] = True, False
    valid = torch.ones(3, 3, dtype=torch.bool)
    sweep, pointing = ThresholdSweep(3), PointingGame(3)
    for _ in range(3):
        sweep.update(regions.float(), regions, valid)
        pointing.update(regions.float(), regions, valid)
    result = sweep.compute()
    assert pointing.compute()["pointing_game"].tolist() == [1.0] * 3
    for name in ("dice", "iou"):
        assert result[name].max(1).values.tolist() == [1.0] * 3
        assert result[name][:, 50].tolist() == [1.0] * 3


def test_invalid_pairs_may_hold_anything() -> None:
    saliency, regions, valid = make_batch(3)
    spoilt, emptied = saliency.clone(), regions.clone()
    spoilt[~valid] = math.nan
    emptied[~valid] = False
    for clean, dirty in zip(both_metrics(), both_metrics(), strict=True):
        clean.update(saliency, regions, valid)
        dirty.update(spoilt, emptied, valid)
        for name, state in states(clean).items():
            assert torch.equal(state, getattr(dirty, name))


def test_no_valid_pair_and_no_image() -> None:
    for metric in both_metrics():
        saliency, regions, valid = make_batch(0)
        metric.update(saliency, regions, torch.zeros_like(valid))
        metric.update(saliency[:0], regions[:0], valid[:0])
        result = metric.compute()
        assert result.pop("count").tolist() == [0, 0, 0]
        assert len(metric.pairs.rows) == 0  # type: ignore[union-attr, arg-type]
        result.pop("thresholds", None)
        assert all(value.isnan().all() for value in result.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_saliency_of_other_dtypes_counts_as_float32(dtype: torch.dtype) -> None:
    saliency, regions, valid = make_batch(4)
    saliency = saliency.to(dtype)
    for other, plain in zip(both_metrics(), both_metrics(), strict=True):
        other.update(saliency, regions, valid)
        plain.update(saliency.float(), regions, valid)
        for name, state in states(plain).items():
            assert torch.equal(state, getattr(other, name))


def test_maps_already_on_the_grid_give_the_same() -> None:
    saliency, regions, valid = make_batch(5, grid=224, small=14)
    grid = upsample(saliency, (224, 224))
    for raw, brought in zip(both_metrics(), both_metrics(), strict=True):
        raw.update(saliency, regions, valid)
        brought.update(grid, regions, valid)
        for name, state in states(raw).items():
            assert torch.equal(state, getattr(brought, name))


def test_a_class_does_not_depend_on_its_neighbours() -> None:
    saliency, regions, valid = make_batch(16, classes=3, grid=80)
    for together, alone in ((ThresholdSweep(3), ThresholdSweep(1)), (PointingGame(3), PointingGame(1))):
        together.update(saliency, regions, valid)
        alone.update(saliency[:, 1:2], regions[:, 1:2], valid[:, 1:2])
        for name, state in states(alone).items():
            assert torch.equal(getattr(together, name)[1:2], state)


def test_order_and_batching_change_no_bit() -> None:
    saliency, regions, valid = make_batch(6, images=12)
    for once, apart in zip(both_metrics(), both_metrics(), strict=True):
        once.update(saliency, regions, valid)
        for image in torch.randperm(12, generator=torch.Generator().manual_seed(0)).tolist():
            chosen = slice(image, image + 1)
            apart.update(saliency[chosen], regions[chosen], valid[chosen])
        for name, state in states(once).items():
            assert torch.equal(state, getattr(apart, name))
        for name, value in once.compute().items():
            torch.testing.assert_close(value, apart.compute()[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("cast", ["to", "half", "bfloat16"])
def test_casts_leave_the_states_alone(cast: str) -> None:
    batches = [make_batch(seed) for seed in (7, 8)]
    for metric, plain in zip(both_metrics(), both_metrics(), strict=True):
        metric.update(*batches[0])
        if cast == "to":
            metric.to(torch.bfloat16)
        else:
            getattr(metric, cast)()
        metric.update(*batches[1])
        for batch in batches:
            plain.update(*batch)
        for name, value in plain.compute().items():
            torch.testing.assert_close(metric.compute()[name], value, rtol=0, atol=0, equal_nan=True)


def test_states_are_small_whole_numbers_and_no_buffers() -> None:
    metric = ThresholdSweep(4, 101)
    assert {name: (tuple(state.shape), state.dtype) for name, state in states(metric).items()} == {
        "dice_sum": ((4, 101), torch.int64),
        "iou_sum": ((4, 101), torch.int64),
        "count": ((4,), torch.int64),
        "refused": ((4, 3), torch.int64),
    }
    assert not list(metric.buffers()) and not list(metric.parameters())


def test_works_under_inference_mode_autocast_and_another_default_dtype() -> None:
    batch = make_batch(9)
    for metric, plain in zip(both_metrics(), both_metrics(), strict=True):
        plain.update(*batch)
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


def test_saliency_with_gradient_is_left_alone() -> None:
    saliency, regions, valid = make_batch(10, small=20)
    before = saliency.clone()
    for metric in both_metrics():
        metric.update(saliency.requires_grad_(), regions, valid)
    assert torch.equal(saliency, before)


def test_forward_returns_the_batch_and_keeps_the_sum() -> None:
    batches = [make_batch(seed) for seed in (11, 12)]
    for metric, plain in zip(both_metrics(), both_metrics(), strict=True):
        for batch in batches:
            metric(*batch)
            plain.update(*batch)
            assert len(metric.pairs.rows) == int(batch[2].sum())  # type: ignore[union-attr, arg-type]
        for name, state in states(plain).items():
            assert torch.equal(state, getattr(metric, name))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("small", [5, 20])
def test_values_that_are_not_finite_name_the_pair(bad: float, small: int) -> None:
    saliency, regions, valid = make_batch(13, small=small)
    valid[:] = True
    saliency[2, 1, 3, 4] = bad
    for metric in both_metrics():
        with pytest.raises(ValueError, match=r"image 2 of the batch, class 1\): its saliency"):
            metric.update(saliency, regions, valid)
        assert all(not state.any() for state in states(metric).values())


def test_a_valid_pair_needs_a_region() -> None:
    saliency, regions, valid = make_batch(14)
    valid[:] = True
    regions[3, 2] = False
    for metric in both_metrics():
        with pytest.raises(ValueError, match=r"image 3 of the batch, class 2\): its region is empty"):
            metric.update(saliency, regions, valid)


@pytest.mark.parametrize("metric", both_metrics(), ids=["sweep", "pointing"])
@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, lambda x: x[0], "saliency must be"),
        (0, lambda x: x.int(), "saliency must be"),
        (0, lambda x: x[:, :2], "made for 3"),
        (0, lambda x: x[..., :0], "saliency must be"),
        (1, lambda x: x.float(), "regions must be"),
        (1, lambda x: x[:3], "regions must be"),
        (1, lambda x: x[:, 0], "regions must be"),
        (1, lambda x: x[:, :, :0], "regions must be"),
        (2, lambda x: x.int(), "valid must be"),
        (2, lambda x: x[:, :2], "valid must be"),
    ],
)
def test_wrong_input_is_refused(metric: Metric, place: int, change: Any, message: str) -> None:
    batch = list(make_batch(15))
    batch[place] = change(batch[place])
    with pytest.raises(ValueError, match=message):
        metric.update(*batch)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ThresholdSweep(0), "num_classes"),
        (lambda: PointingGame(0), "num_classes"),
        (lambda: ThresholdSweep(1, 1), "thresholds"),
        (lambda: ThresholdSweep(1, 0.5), "thresholds"),  # type: ignore[arg-type]
        (lambda: PointingGame(1, "last"), "ties"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("metric", [PointingGame(1), ThresholdSweep(1)], ids=["pointing game", "sweep"])
def test_one_class_keeps_its_dimension(metric):
    saliency = torch.rand(3, 1, 4, 4)
    metric.update(saliency, torch.ones(3, 1, 8, 8, dtype=torch.bool), torch.ones(3, 1, dtype=torch.bool))
    for again in (metric, pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
        scores = again.compute()
        assert scores["count"].tolist() == [3]
        assert {len(value) for name, value in scores.items() if name != "thresholds"} == {1}
        assert again.compute()["count"].shape == (1,)
