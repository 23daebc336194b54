"""Maps measured by numba against plain loops, and by the kernel (Triton's interpreter) against numba, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from xbench.geometry.grid import FULL_VIEW, View, maps_on_grid, places_on_grid
from xbench.scoring import host
from xbench.scoring.map_measures import MEASURES, Measurer, measure_on_host
from xbench.scoring.sweep import threshold_values

VIEWS: list[View] = [FULL_VIEW, (0.125, 0.0, 0.875, 1.0), (-0.2, -0.1, 1.2, 1.1), (0.4, 0.3, 0.41, 0.31)]


def adversarial(height, width, thresholds):
    """Maps that rounding, ties and missing values would show in (N, h, w), and regions of several sizes."""
    draw = np.random.default_rng(height * 1000 + width)
    grid = (11, 13)
    cells = height * width
    steps = (np.arange(cells) % thresholds / (thresholds - 1)).astype(np.float32)
    beside = np.nextafter(steps, np.float32(2) * (draw.integers(2, size=cells) * 2 - 1).astype(np.float32))
    maps = [
        steps,
        beside,
        draw.standard_normal(cells),
        draw.integers(3, size=cells),
        np.full(cells, 0.3),
        np.full(cells, -0.0),
        draw.integers(5, size=cells) * 1e-45,
        draw.standard_normal(cells) * 3e-39,
        draw.uniform(-1.6e38, 1.6e38, cells),
        np.where(np.arange(cells) == cells // 2, np.nan, 1.0),
        np.where(np.arange(cells) == cells - 1, -np.inf, 1.0),
        np.where(np.arange(cells) % 2, 3e38, -3e38),
    ]
    maps = np.stack(maps).astype(np.float32).reshape(-1, height, width)
    regions = []
    for pair in range(len(maps)):
        size = grid if pair % 3 else (grid[0] + pair, 9)
        region = draw.random(size) < (0.02, 0.3, 0.9)[pair % 3]
        region[draw.integers(size[0]), draw.integers(size[1])] = True
        regions.append(torch.from_numpy(region))
    regions[2] = None
    return torch.from_numpy(maps), regions


CASES = [
    (1, 1, 3, "bilinear"), (7, 7, 101, "bilinear"), (14, 14, 101, "nearest"), (9, 16, 1001, "corners"),
    (64, 64, 11, "bilinear"), (1, 5, 2, "corners"), (16, 16, 1001, "bilinear"),
]  # fmt: skip


def views_of(maps):
    return [VIEWS[(pair + maps.shape[1]) % len(VIEWS)] for pair in range(len(maps))]


def by_loops(map_, region, view, thresholds, mode):
    """The first columns of the table for a map and its region, and the histograms."""
    if not (map_.max() - map_.min()).isfinite():
        return [1] + [0] * 7, np.zeros(2 * thresholds)
    if region is None:
        return [0] * 8, np.zeros(2 * thresholds)
    (height, width), region = region.shape, region.numpy()
    on_grid = maps_on_grid(map_.float().numpy(), view, region.shape, mode)
    low, high = on_grid.min(), on_grid.max()
    shown = np.zeros_like(region)
    top, rows, _, left, columns, _ = places_on_grid(view, (height, width), (1, 1), "bilinear")
    shown[top : top + len(rows), left : left + len(columns)] = True
    tied, lowest = np.argwhere(on_grid == high), (on_grid == low) & shown
    inside = region[on_grid == high]
    steps = (tied[:, None] - np.argwhere(region)) * [width, height]
    distance = (steps**2).sum(2).min()
    stretched = (on_grid - low) / (high - low if high > low else np.float32(1))
    reached = np.searchsorted(threshold_values(thresholds).numpy(), stretched, side="right") - 1
    counts = [np.bincount(reached[part], minlength=thresholds) for part in (~region, region)]
    flags = 2 * (low == high) + 4 * inside[0]
    facts = [flags, len(tied), inside.sum(), *tied.sum(0), distance, lowest.sum(), (lowest & region).sum()]
    return facts, np.concatenate(counts)


@pytest.mark.parametrize(("height", "width", "thresholds", "mode"), [*CASES, (11, 13, 2001, "bilinear")])
def test_the_host_measures_as_plain_loops_do(height, width, thresholds, mode):
    maps, regions = adversarial(height, width, thresholds)
    scores = torch.rand(2, len(maps)).unbind()
    table = measure_on_host(maps, regions, views_of(maps), thresholds, mode, scores).numpy()
    assert (table[:, 8:10].T.copy().view(float) == np.stack(scores)).all()
    for row, *pair in zip(table, maps, regions, views_of(maps), strict=True):
        facts, counts = by_loops(*pair, thresholds, mode)
        assert row[:8].tolist() == facts
        assert row[10:].tolist() == counts.tolist()


@pytest.mark.parametrize("mode", ["bilinear", "corners"])
def test_nothing_is_fused(mode):
    """So many thresholds that a value rounded another way reaches another one."""
    maps, region = torch.randn(1, 14, 14, generator=torch.Generator().manual_seed(0)), torch.eye(224) > 0
    scores = torch.zeros(2, 1).unbind()
    table = measure_on_host(maps, [region], [FULL_VIEW], 100_001, mode, scores)
    assert table[0, 10:].tolist() == by_loops(maps[0], region, FULL_VIEW, 100_001, mode)[1].tolist()


def add_one(x):
    return x + 1


@pytest.mark.parametrize("harm", ["no folder", "*.nbi", "*.nbc"])
def test_a_cache_of_no_use_is_done_without(harm, tmp_path, monkeypatch):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    if harm == "no folder":
        monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    else:
        host.compiled("int64(int64)")(add_one)
        (damaged,) = tmp_path.rglob(harm)
        damaged.write_bytes(damaged.read_bytes()[:-9])
    assert host.compiled("int64(int64)")(add_one)(4) == 5


def check_kernel() -> None:
    """Compare the tables of both forms. Runs where Triton interprets kernels."""
    from xbench.scoring.kernel import measure

    for height, width, thresholds, mode in CASES:
        maps, regions = adversarial(height, width, thresholds)
        for dtype in (torch.float32, torch.bfloat16) if height == 7 else (torch.float32,):
            views = views_of(maps)
            scores = (torch.arange(len(maps), dtype=dtype) / 3, torch.full((len(maps),), float("nan")))
            if dtype == torch.bfloat16:
                maps = maps.where(maps.abs() > 1e-37, 0)  # the interpreter reads denormals of 16 bits wrongly
            given = maps.to(dtype), regions, views, thresholds, mode, scores
            different = (measure(MEASURES, *given) != measure_on_host(*given)).nonzero()
            assert not len(different), (height, width, thresholds, mode, different[:9].tolist())
    # More than a block of pixels, many of them tied and far from the region.
    region = torch.zeros(40, 60, dtype=torch.bool)
    region[35:39, 50:55] = True
    maps = torch.zeros(2, 7, 7)
    maps[0, :2, :2] = maps[1, 3, 3] = 1.0
    given = maps, [region] * 2, [FULL_VIEW] * 2, 101, "nearest", (torch.zeros(2), torch.zeros(2))
    assert torch.equal(measure(MEASURES, *given), measure_on_host(*given))


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is only there on Linux")
def test_the_kernel_is_the_form_of_the_host_to_the_bit():
    run = [sys.executable, "-c", "from tests.scoring.test_kernel import check_kernel; check_kernel()"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(run, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def broken(*given):
    raise RuntimeError("no kernel image is available for execution on the device")


def off_by_one(*given):
    table = measure_on_host(*given)
    table[3, MEASURES + 7] += 1
    return table


PAIRS = (torch.rand(5, 4, 4), [torch.eye(8, dtype=torch.bool)] * 5, [FULL_VIEW] * 5, 11)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [(broken, "it failed: RuntimeError: no kernel image"), (off_by_one, "its measures of 1 of the first 5 maps")],
)
def test_a_kernel_that_is_wrong_is_not_used(kernel, problem):
    measurer = Measurer(kernel)
    with pytest.warns(UserWarning, match=problem):
        found = measurer(*PAIRS)
    assert problem in measurer.problem
    np.testing.assert_array_equal(found.table, Measurer()(*PAIRS).table)
    measurer(*PAIRS)  # without another warning


def test_a_kernel_is_looked_at_until_it_has_measured_a_pair():
    wrong_at_last = iter((measure_on_host, off_by_one))
    measurer = Measurer(lambda *given: next(wrong_at_last)(*given))
    measurer(PAIRS[0], [None] * 5, *PAIRS[2:])
    assert measurer.problem is None
    with pytest.warns(UserWarning, match="differ from the host's"):
        measurer(*PAIRS)
