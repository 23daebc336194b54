"""What random maps score, against maps that are drawn, enlarged and scored one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic import FINDINGS, write_run

from xbench.geometry.grid import upsample
from xbench.metrics import count_pixels, normalise, pointing_hits
from xbench.models.baselines import UniformRandom
from xbench.report.runs import collect
from xbench.report.sentences import on_dataset
from xbench.report.statistics.analyze import analyze
from xbench.report.statistics.measures import measure
from xbench.report.statistics.references import _CELLS, _MAPS, _Maps, chance, peak_density
from xbench.report.statistics.sample import Sample
from xbench.scoring.numbers import dice, iou


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return collect([write_run(tmp_path_factory.mktemp("chance"), "clip", images=40)]).runs[0]


@pytest.mark.parametrize("size", [(224, 224), (40, 61), (14, 28), (9, 100), (42, 15)])
def test_the_maxima_are_those_of_the_whole_maps(size):
    """All pixels of every map, by the interpolation that models get."""
    cells = np.random.default_rng(5).random((60, _CELLS, _CELLS))
    maps = upsample(torch.from_numpy(cells), size).numpy()
    highest = maps == maps.max((1, 2), keepdims=True)
    density = (highest / highest.sum((1, 2), keepdims=True)).mean(0)
    expected = (density + density[::-1] + density[:, ::-1] + density[::-1, ::-1]) / 4
    np.testing.assert_allclose(peak_density(size, 60, seed=5), expected, rtol=0, atol=1e-12)


def test_pairs_have_the_means_of_drawn_maps(run):
    sample = Sample.of(run)
    found, _ = chance(run, sample)
    cases = run.cases()
    maps = normalise(upsample(torch.from_numpy(np.random.default_rng(1).random((_MAPS, _CELLS, _CELLS))), (56, 56)))
    for place in (0, 7, len(sample.hit) - 1):
        pair = sample.image_ids[sample.pair_image[place]], sample.findings[sample.pair_column[place]]
        region = torch.from_numpy(cases.read(*pair).region)
        counts = count_pixels(maps, region.expand(_MAPS, -1, -1), sample.dice.shape[1])
        # Of thousands of pixels one may be rounded to the other side of a threshold.
        np.testing.assert_allclose(found.dice[place], counts.dice().mean(0), atol=1e-3)
        np.testing.assert_allclose(found.iou[place], counts.iou().mean(0), atol=1e-3)
        drawn = upsample(torch.rand(4000, _CELLS, _CELLS, generator=torch.Generator().manual_seed(0)), (56, 56))
        hits = pointing_hits(drawn, region.expand(4000, -1, -1))
        assert abs(hits.mean() - found.hit[place]) < 4 * hits.std() / 4000**0.5 + 1e-3


@pytest.mark.parametrize("size", [(224, 224), (40, 61), (3, 5)])
def test_regions_counted_by_blocks_are_those_counted_by_pixels(size):
    maps, random = _Maps(*size, 11), np.random.default_rng(0)
    reached = maps._keys.reshape(*size, _MAPS) - 11 * np.arange(_MAPS)
    box = np.zeros(size, np.bool_)
    box[size[0] // 4 : size[0] // 2 + 1, size[1] // 3 :] = True
    coarse = random.random(size).repeat(9, 0).repeat(9, 1)[: size[0], : size[1]] < 0.5
    for region in (box, ~box, coarse, coarse ^ (random.random(size) < 0.01), np.ones(size, np.bool_)):
        everywhere = np.ones(size, np.bool_)
        mask, overlap = (np.stack([(reached[of] >= k).sum(0) for k in range(11)], 1) for of in (everywhere, region))
        hit, *found = maps.scores(region)
        assert hit == pytest.approx(maps._density.reshape(size)[region].sum())
        for scores, plain in zip(found, (dice, iou), strict=True):
            np.testing.assert_array_equal(scores, plain(mask, overlap, region.sum()))


def test_the_floor_is_what_runs_of_random_score_on_average(run):
    """The mean of twelve runs lies within four standard errors of the floor, and they spread as it says."""
    sample = Sample.of(run)
    found, spread = chance(run, sample)
    columns = [sample.pair_column == column for column in range(len(FINDINGS))]
    expected = np.mean([found.hit[mine].mean() for mine in columns])
    cases, model = run.cases(), UniformRandom()
    regions = [
        torch.from_numpy(cases.read(sample.image_ids[image], sample.findings[column]).region)
        for image, column in zip(sample.pair_image, sample.pair_column, strict=True)
    ]
    macros = []
    for model.seed in range(12):
        drawn = {name: model._noise(name, len(FINDINGS)) for name in sample.image_ids}
        noise = {name: one[:, :-1].unflatten(1, (_CELLS, _CELLS)) for name, one in drawn.items()}
        raw = [noise[sample.image_ids[i]][c] for i, c in zip(sample.pair_image, sample.pair_column, strict=True)]
        hits = pointing_hits(upsample(torch.stack(raw), (56, 56)), torch.stack(regions)).numpy()
        macros.append(np.mean([hits[mine].mean() for mine in columns]))
    assert abs(np.mean(macros) - expected) < 4 * spread["pointing_game"] / 12**0.5
    # Chi-squared with 11 degrees of freedom leaves this range once in 10,000 samples.
    assert 0.35 < np.std(macros, ddof=1) / spread["pointing_game"] < 1.8


def test_a_report_has_the_floor_and_leaves_single_draws_out(run, tmp_path):
    for model, skill in (("random", 0.0), ("clip", 0.9)):
        write_run(tmp_path, model, images=40, skill=skill)
    analysis = analyze(collect([tmp_path]))
    (dataset,) = analysis.datasets
    whole, floor = dataset.references
    assert (whole.title, floor.title, floor.kind) == ("Whole image", "Random", "floor")
    assert floor.macro["auroc"].value == 0.5 and "f1" not in floor.macro
    assert floor.macro["average_precision"].value == whole.macro["average_precision"].value
    for finding in FINDINGS:
        assert 0 < floor.findings[finding]["pointing_game"].value < 0.5
        # At threshold 0 any map marks everything.
        assert floor.findings[finding]["dice_best"].value >= whole.findings[finding]["dice_best"].value - 1e-12
    assert any("single runs of random maps" in text for text in on_dataset(analysis, dataset))


def test_expectations_vary_less_than_hits_that_are_counted(run):
    assert chance(replace(run, pictured=False), Sample.of(run)) is None
    sample, _ = chance(run, Sample.of(run))
    expected, counted = (measure(replace(sample, chances=chances), 2).macro() for chances in (True, False))
    widths = [of["pointing_game"].high - of["pointing_game"].low for of in (expected, counted)]
    assert 0 < widths[0] < 0.7 * widths[1]


def test_the_seed_of_the_run_is_that_of_the_noise(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    assert UniformRandom().seed == 7 and UniformRandom(seed=3).provenance() == {"seed": 3, "size": 14}
    monkeypatch.delenv("PL_GLOBAL_SEED")
    assert UniformRandom().seed == 0
