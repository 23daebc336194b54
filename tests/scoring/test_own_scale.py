from __future__ import annotations

import json
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import write_run

from xbench.geometry.grid import FULL_VIEW, MapScale, Rules, maps_on_grid
from xbench.geometry.regions import Coverage
from xbench.runs.finished import FinishedRun
from xbench.scoring.measure import measure
from xbench.scoring.metrics import metrics_of
from xbench.scoring.numbers import own_sums, sweep_numbers
from xbench.scoring.rows import SCHEMA, Rows, fixed_only
from xbench.scoring.sweep import own_thresholds
from xbench.types import Maps, Prediction, Query, Truth

OWN = ("own_mask_pixels", "own_overlap_pixels")
SCALES: tuple[MapScale, ...] = ("logit", "probability")
VIEWS = (FULL_VIEW, (0.13, -0.1, 0.87, 0.8))


def probability(logit: np.float32) -> Decimal:
    with localcontext() as context:
        context.prec = 60
        return 1 / (1 + (-Decimal(float(logit))).exp())


@pytest.mark.parametrize("thresholds", [3, 7, 101, 1001])
def test_a_logit_reaches_a_threshold_just_if_its_sigmoid_does(thresholds: int) -> None:
    limits = own_thresholds("logit", thresholds)
    assert limits[0] == -np.inf and limits[-1] == np.inf and limits[thresholds // 2] == 0
    assert (np.diff(limits) > 0).all()
    for k, limit in [*enumerate(limits)][1:-1]:
        below = np.nextafter(limit, np.float32(-np.inf))
        assert probability(below) < Decimal(k) / (thresholds - 1) <= probability(limit)


def measured(scale: MapScale, maps: np.ndarray, region: np.ndarray, thresholds: int, **more: Any) -> pa.Table:
    queries = [Query(name, name) for name in map(str, range(len(maps)))]
    truth = Truth.of_image(
        *(0, "image", None, more.pop("view", FULL_VIEW), None, queries, np.ones(len(maps), np.int8)),
        coverage=[Coverage.of(region, region.shape)] * len(maps),
        gamma=0.5,
    )
    shown = Maps(torch.from_numpy(maps), **more)
    rules = Rules(region.shape, "bilinear", thresholds=thresholds, scale=scale)
    return measure(Prediction(None, None, shown), truth, rules)


def brute_force(scale: MapScale, on_grid: np.ndarray, region: np.ndarray, thresholds: int) -> list[list[list[int]]]:
    limits = np.arange(thresholds) / (thresholds - 1)
    if scale == "logit":
        with np.errstate(over="ignore"):
            values = 1 / (1 + np.exp(-on_grid.astype(np.float64)))
        # In float64 the sigmoid of a large logit rounds to 1, which it never is.
        values[values == 1] = np.nextafter(1, 0)
    else:
        values, limits = on_grid, limits.astype(np.float32)
    masks = np.stack([values >= limit for limit in limits], axis=1)
    return [counted.sum(axis=(2, 3)).tolist() for counted in (masks, masks & region)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SCALES), st.sampled_from([3, 11, 101]), st.sampled_from(VIEWS))
def test_counts_are_those_of_a_sigmoid_and_a_comparison(seed: int, scale: MapScale, thresholds: int, view: Any) -> None:
    draw = np.random.RandomState(seed)
    limits = own_thresholds(scale, thresholds)
    finite = limits[np.isfinite(limits)]
    shape = (3, *draw.randint(1, 9, 2))
    # Whole cells at a threshold and just below it, equal maps, and values that no probability has.
    # Next to 0 a sigmoid in float64 cannot tell float32 numbers apart.
    below = np.where(finite == 0, np.float32(-1e-7), np.nextafter(finite, np.float32(-np.inf)))
    ties = draw.choice(np.concatenate([finite, below]), shape)
    spread = draw.choice([0.2, 3.0, 60.0]) * draw.standard_normal(shape)
    maps = np.where(draw.random_sample(shape) < draw.choice([0, 0.5, 1]), ties, spread).astype(np.float32)
    region = np.zeros((17, 13), bool)
    region[draw.randint(0, 9) :, : draw.randint(1, 13)] = True
    table = measured(scale, maps, region, thresholds, view=view)
    on_grid = maps_on_grid(maps, view, region.shape)
    assert [table[name].to_pylist() for name in OWN] == brute_force(scale, on_grid, region, thresholds)
    # Whatever is stretched stays what it is.
    stretched = measured("none", maps, region, thresholds, view=view)
    assert stretched.drop_columns([*OWN]).equals(table.drop_columns([*OWN]))
    assert {stretched[name].null_count for name in OWN} == {3}


def test_maps_that_are_missing_are_in_no_mask() -> None:
    region = np.eye(4, dtype=bool)
    table = measured("probability", np.ones((2, 2, 2), np.float32), region, 3, missing=torch.tensor([True, False]))
    assert [table[name].to_pylist() for name in OWN] == [[[0] * 3, [16] * 3], [[0] * 3, [4] * 3]]


def test_numbers_are_means_of_dice_by_one_threshold_for_all_images() -> None:
    draw = np.random.RandomState(0)
    region = np.zeros((16, 16), bool)
    region[4:9, 3:12] = True
    maps = draw.standard_normal((5, 16, 16)).astype(np.float32) + 2 * region
    # A row that is all below the others when it is not stretched.
    maps[0] -= 9
    table = measured("logit", maps, region, 11)
    rows = Rows.of(table, [*map(str, range(5))])
    (numbers,) = sweep_numbers(own_sums(rows, np.zeros(5, np.int64), 1))
    mask, overlap = (np.array(part) for part in brute_force("logit", maps, region, 11))
    dice, iou = 2 * overlap / (mask + region.sum()), overlap / (mask + region.sum() - overlap)
    for name, curves in (("dice", dice), ("iou", iou)):
        curve = curves.mean(axis=0)
        np.testing.assert_allclose(numbers[f"{name}_curve"], curve, rtol=0, atol=1e-12)
        assert numbers[f"{name}_fixed"] == pytest.approx(curve[5], abs=1e-12)
        assert numbers[f"{name}_best_threshold"] == curve.argmax() / 10
    # Of torchmetrics, batch by batch, and of tables without most of their pixels.
    metric = metrics_of(5, 11)["own"]
    for batch in (slice(0, 2), slice(2, 5)):
        metric.update(Rows.of(table[batch], rows.findings))
    assert metric.compute() == sweep_numbers(own_sums(rows, rows.finding, 5))
    fixed = Rows.of(fixed_only(table), rows.findings)
    np.testing.assert_array_equal(fixed.own.mask[:, 0], rows.own.mask[:, 5])
    with pytest.raises(ValueError, match="own_overlap_pixels of a scored row is null"):
        holed = pa.array([None, *table["own_overlap_pixels"].to_pylist()[1:]], pa.list_(pa.int32()))
        place = SCHEMA.get_field_index("own_overlap_pixels")
        Rows.of(table.set_column(place, SCHEMA.field(place), holed), rows.findings)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    root = tmp_path_factory.mktemp("own")
    return FinishedRun.open(write_run(root, "kad", map_scale="probability", saliency_upsample="nearest"))


def test_verify_recomputes_them(run: FinishedRun) -> None:
    # Rich, which it imports, changes how Lightning reads an option, if it comes first: typing takes Union[float, int]
    # for Union[int, float].
    from run_files import disagreements

    assert disagreements(run.folder, deep=True) == []
    own = run.results.own_scale
    assert own is not None and own.macro["dice_fixed"] is not None and own.scale == "probability"
    content = json.loads((run.folder / "results.json").read_text())
    (finding, *_) = run.results.findings
    content["own_scale"]["per_class"][finding]["dice_curve"][7] += 1e-9
    (run.folder / "results.json").write_text(json.dumps(content))
    (changed,) = disagreements(run.folder)
    assert changed.place == f"results.json / own_scale / per_class / {finding} / dice_curve / 7"
