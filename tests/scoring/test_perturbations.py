from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from xbench.scoring.perturbations import STEPS, area, changed, imputed, ranking, region_in_view, similarities

SMALL = st.integers(1, 6).flatmap(lambda height: st.integers(1, 6).map(lambda width: (height, width)))
LEVELS = SMALL.flatmap(lambda shape: arrays(np.float32, shape, elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0])))
RNG = np.random.default_rng(0)


@given(LEVELS)
def test_the_order_is_by_value_and_ties_follow_the_name(values: np.ndarray) -> None:
    order, other = ranking(values, "an image"), ranking(values, "another")
    for one in (order, other):
        assert sorted(one.tolist()) == [*range(values.size)]
        assert np.all(np.diff(values.ravel()[one]) <= 0)
    # The same order within every level as in a constant map of this image.
    random = ranking(np.zeros_like(values), "an image").tolist()
    keys = {pixel: (-float(values.ravel()[pixel]), random.index(pixel)) for pixel in random}
    assert order.tolist() == sorted(keys, key=keys.__getitem__)
    assert ranking(values, "an image").tolist() == order.tolist()


def test_ties_favour_no_corner() -> None:
    first = [ranking(np.zeros((10, 10)), f"image {number}")[:50].mean() for number in range(200)]
    # The mean place of half of 100 pixels is 49.5, with a standard deviation of 2.9.
    assert abs(np.mean(first) - 49.5) < 4 * 2.9 / math.sqrt(200) and len({*first}) > 100


def test_versions_change_so_many_of_the_first_pixels() -> None:
    image, order = RNG.normal(size=(3, 5, 7)).astype(np.float32), ranking(RNG.normal(size=(5, 7)), "x")
    image.setflags(write=False)
    for kind in ("deletion", "insertion", "road"):
        versions = dict(changed(kind, image, order, "x"))
        assert tuple(versions) == STEPS[kind]
        for percent, version in versions.items():
            assert version.shape == image.shape and version.dtype == np.float32
            count = int(Fraction(percent, 100) * 35)
            left = version.reshape(3, -1)[:, order[count:]]
            kept = image if kind != "insertion" else versions[0]
            assert np.array_equal(left, kept.reshape(3, -1)[:, order[count:]])
            if kind == "deletion":
                filled = version.reshape(3, -1)[:, order[:count]]
                assert np.array_equal(filled, np.repeat(image.mean((1, 2))[:, None], count, axis=1))
    insertion, deletion = (dict(changed(kind, image, order, "x")) for kind in ("insertion", "deletion"))
    assert np.array_equal(insertion[100], image) and np.array_equal(deletion[0], image)
    assert not np.isclose(insertion[0], image).any() and insertion[0].std() < image.std()


@given(SMALL.flatmap(lambda shape: st.tuples(st.just(shape), st.sets(st.integers(0, shape[0] * shape[1] - 1)))))
def test_imputation_is_the_dense_solution(drawn: tuple[tuple[int, int], set[int]]) -> None:
    (height, width), pixels = drawn
    missing, image = sorted(pixels), np.random.default_rng(height * width).normal(size=(2, height, width))
    values = imputed(image, np.array(missing, np.int64))
    assert values.shape == (2, len(missing))
    if len(missing) == height * width:
        assert np.allclose(values, image.mean((1, 2))[:, None])
        return
    system, known = np.zeros((len(missing), len(missing))), np.zeros((len(missing), 2))
    for row, pixel in enumerate(missing):
        y, x = divmod(pixel, width)
        beside = [(i, j) for i in (y - 1, y, y + 1) for j in (x - 1, x, x + 1) if (i, j) != (y, x)]
        beside = [(i, j) for i, j in beside if 0 <= i < height and 0 <= j < width]
        weights = [Fraction(1, 6) if i == y or j == x else Fraction(1, 12) for i, j in beside]
        system[row, row] = 1
        for (i, j), weight in zip(beside, weights, strict=True):
            share = float(weight / sum(weights))
            if (place := i * width + j) in pixels:
                system[row, missing.index(place)] -= share
            else:
                known[row] += share * image[:, i, j]
    assert np.allclose(values.T, np.linalg.solve(system, known), atol=1e-9)
    assert values.size == 0 or (image.min() - 1e-9 <= values.min() and values.max() <= image.max() + 1e-9)


def test_noise_of_an_imputed_image_depends_on_its_name_alone() -> None:
    image, order = np.zeros((3, 32, 32)), ranking(RNG.normal(size=(32, 32)), "x")
    first, again, other = (dict(changed("road", image, order, name)) for name in ("x", "x", "y"))
    assert all(np.array_equal(first[percent], again[percent]) for percent in STEPS["road"])
    assert not np.array_equal(first[50], other[50])
    # Of a black image only the noise is left: 1,536 values.
    assert np.count_nonzero(first[50]) == 3 * 512
    assert first[50][first[50] != 0].std() == pytest.approx(0.01, rel=0.08)


@given(st.lists(st.integers(0, 64), min_size=2, max_size=30))
def test_the_area_is_that_of_the_trapezoids(eighths: list[int]) -> None:
    values = [Fraction(one, 8) for one in eighths]
    exact = sum((left + right) / 2 for left, right in pairwise(values)) / (len(values) - 1)
    assert area([*map(float, values)]) == pytest.approx(float(exact), rel=1e-15, abs=1e-15)


def test_likeness_is_exact_where_it_can_be() -> None:
    one = RNG.normal(size=(12, 15))
    assert similarities(one, one) == pytest.approx(dict.fromkeys(("spearman", "magnitude", "structure"), 1.0))
    # Ranks and the stretched map do not notice a scale; magnitudes do not notice a sign.
    assert similarities(one, 3 * one + 5)["spearman"] == pytest.approx(1)
    assert similarities(one, 3 * one + 5)["structure"] == pytest.approx(1)
    upside_down = similarities(one, -one)
    assert upside_down["spearman"] == pytest.approx(-1) and upside_down["magnitude"] == pytest.approx(1)
    assert upside_down["structure"] < 0
    tied = similarities(np.array([[1.0, 2.0, 2.0, 3.0]]), np.array([[1.0, 3.0, 2.0, 4.0]]))
    assert tied["spearman"] == pytest.approx(3 / math.sqrt(10)) and math.isnan(tied["structure"])


@given(arrays(np.float64, (8, 9), elements=st.floats(-4, 4, width=16)), st.integers(0, 99))
def test_structure_is_the_mean_over_all_windows(first: np.ndarray, seed: int) -> None:
    second = np.random.default_rng(seed).normal(size=first.shape)
    found = similarities(first, second)["structure"]
    if np.ptp(first) == 0:
        assert math.isnan(found)
        return
    stretched = [(one - one.min()) / (one.max() - one.min()) for one in (first, second)]
    values = []
    for y in range(2):
        for x in range(3):
            a, b = (one[y : y + 7, x : x + 7].ravel() for one in stretched)
            (aa, ab), (_, bb) = np.cov(a, b)
            level, contrast = 2 * a.mean() * b.mean() + 1e-4, 2 * ab + 9e-4
            values.append(level * contrast / ((a.mean() ** 2 + b.mean() ** 2 + 1e-4) * (aa + bb + 9e-4)))
    assert found == pytest.approx(np.mean(values), abs=1e-9)


def test_some_maps_are_like_nothing() -> None:
    one = RNG.normal(size=(7, 12))
    for value in (math.nan, math.inf):
        assert all(map(math.isnan, similarities(one, np.where(one == one.max(), value, one)).values()))
    assert all(map(math.isnan, similarities(one, np.zeros_like(one)).values()))
    assert all(map(math.isnan, similarities(np.ones_like(one), one).values()))
    # A map of six rows has no window.
    assert [math.isnan(similarities(part, part)["structure"]) for part in (one, one[:6])] == [False, True]


@given(SMALL, SMALL, st.sampled_from([(0, 0, 1, 1), (0.25, 0, 0.75, 1), (-0.5, -0.1, 1.5, 1.1), (0, 0.9, 0.1, 1)]))
def test_the_region_in_a_view_is_looked_up_at_the_centres(grid, size, view) -> None:
    region = np.random.default_rng(sum(grid)).random(grid) < 0.5
    left, top, right, bottom = map(Fraction, view)
    seen = region_in_view(region, view, size)
    for i in range(size[0]):
        for j in range(size[1]):
            y = (top + (bottom - top) * Fraction(2 * i + 1, 2 * size[0])) * grid[0]
            x = (left + (right - left) * Fraction(2 * j + 1, 2 * size[1])) * grid[1]
            # Half a pixel may round either way.
            if all(abs(one - round(one)) > 1e-9 for one in (y, x)):
                inside = 0 <= y < grid[0] and 0 <= x < grid[1]
                assert seen[i, j] == (inside and region[math.floor(y), math.floor(x)])
    assert np.array_equal(region_in_view(region, (0, 0, 1, 1), grid), region)
