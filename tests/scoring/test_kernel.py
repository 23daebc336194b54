"""The kernel under Triton's interpreter, on the host, against the plain form, bit for bit; and what is done about one
that fails or errs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from xbench.geometry.grid import FULL_VIEW, View
from xbench.scoring.map_measures import MEASURES, Measurer, measure_on_host

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


def check_kernel() -> None:
    """Compare the tables of both forms. Runs where Triton interprets kernels."""
    from xbench.scoring.kernel import measure

    cases = [
        (1, 1, 3, "bilinear"), (7, 7, 101, "bilinear"), (14, 14, 101, "nearest"), (9, 16, 1001, "corners"),
        (64, 64, 11, "bilinear"), (1, 5, 2, "corners"), (16, 16, 1001, "bilinear"),
    ]  # fmt: skip
    for height, width, thresholds, mode in cases:
        maps, regions = adversarial(height, width, thresholds)
        for dtype in (torch.float32, torch.bfloat16) if height == 7 else (torch.float32,):
            views = [VIEWS[(pair + height) % len(VIEWS)] for pair in range(len(maps))]
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
def test_the_kernel_is_the_plain_form_to_the_bit():
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
    assert torch.equal(found.table, Measurer()(*PAIRS).table)
    measurer(*PAIRS)  # without another warning


def test_a_kernel_is_looked_at_until_it_has_measured_a_pair():
    wrong_at_last = iter((measure_on_host, off_by_one))
    measurer = Measurer(lambda *given: next(wrong_at_last)(*given))
    measurer(PAIRS[0], [None] * 5, *PAIRS[2:])
    assert measurer.problem is None
    with pytest.warns(UserWarning, match="not those of the host"):
        measurer(*PAIRS)
