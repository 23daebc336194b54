"""Measures of a map against its region: official scorers' values, brute force, and what must change nothing."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference import case, cases, reference, undefined
from scipy.ndimage import label

from xbench.metrics.calibration import adaptive_ece, calibration, expected_ece
from xbench.metrics.distances import border_distances, centroid_distance
from xbench.metrics.exact import LIMBS, add_exactly, rounded
from xbench.metrics.maps import (
    MEASURES,
    MapMeasures,
    cnr,
    excess,
    map_measures,
    mass_accuracy,
    pixel_ranking,
    pointing_with_tolerance,
    rank_accuracy,
)
from xbench.metrics.pooled import LEVELS, PooledRanking, RegionOverlap, levels, pooled_ranking
from xbench.metrics.protocols.common import stretched

NAMES = sorted(reference()["cases"])
CLOSE = {"abs": 1e-12, "rel": 1e-12, "nan_ok": True}


def expected(value):
    return pytest.approx(math.nan if undefined(value) else value, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_official_scorers_give_these_values(name):
    made = case(name)
    theirs = made.expected
    quantus = theirs["quantus"]
    if made.region.any():  # of an empty region Quantus has some values
        assert rank_accuracy(made.map, made.region) == expected(quantus["rank_accuracy_ties_shared"])
        low, high = quantus["rank_accuracy_range"]
        assert low - 1e-15 <= rank_accuracy(made.map, made.region) <= high + 1e-15
        for key, change in {
            "minmax": lambda values: stretched(values.astype(np.float64), np.float64),
            "relu": lambda values: np.maximum(values, 0),
            "abs": np.abs,
            **({} if made.map.min() < 0 else {"raw": np.asarray}),
        }.items():
            mass = mass_accuracy(change(made.map), made.region)
            theirs_is = quantus[f"mass_accuracy_{key}"]
            assert mass == pytest.approx(math.nan if undefined(theirs_is) else theirs_is, abs=1e-9, nan_ok=True)
    else:
        assert math.isnan(rank_accuracy(made.map, made.region)) and math.isnan(mass_accuracy(made.map, made.region))
    auroc, average_precision = pixel_ranking(made.map, made.region)
    assert auroc == expected(theirs["sklearn"]["auroc"])
    assert average_precision == expected(None if math.isnan(auroc) else theirs["sklearn"]["average_precision"])
    for pixels, share in (theirs["pointing_tolerance_ours"] or {}).items():
        assert pointing_with_tolerance(made.map, made.region, float(pixels)) == share


@pytest.mark.parametrize("name", NAMES)
def test_contrast_is_that_of_others(name):
    made = case(name)
    theirs = (made.expected["aep_no_margin"] or {}).get("cnr_float64_input")
    mine = cnr(made.map, made.region)
    if theirs == 0 or undefined(theirs):  # 0 is AFLoc's word for nothing that varies; and it takes square grids alone
        assert math.isnan(mine) or theirs is None
    else:
        assert mine == pytest.approx(theirs, rel=1e-9 if made.kind == "far" else 1e-12, abs=1e-12)
    assert math.isnan(mine) or cnr(made.map, made.region, absolute=True) == abs(mine)


@pytest.mark.parametrize("name", NAMES)
def test_distances_are_those_of_metrics_reloaded(name):
    made = case(name)
    theirs = made.expected["metrics_reloaded_at_half"]
    mask = stretched(made.map) >= np.float32(0.5)
    mine = border_distances(mask, made.region, 2)
    if not mask.any() or not made.region.any():  # where theirs has -1, 0 or 1
        assert math.isnan(centroid_distance(mask, made.region)) and all(map(math.isnan, mine.values()))
        return
    for ours, key in {"hausdorff": "hd", "hausdorff_95": "hd95", "surface_distance": "assd"}.items():
        assert mine[ours] == pytest.approx(theirs[key], abs=1e-9)
    assert mine["surface_dice"] == pytest.approx(theirs["nsd_tau2"], abs=1e-12)
    diagonal = math.hypot(*mask.shape)
    assert centroid_distance(mask, made.region) * diagonal == pytest.approx(theirs["centroid_distance"], abs=1e-9)


def test_pooled_pixels_are_ranked_as_by_scikit_learn():
    data = reference()["datasets"]["pooled_pixels"]
    chosen = [case(name) for name in data["cases"]]
    for key, change in {"raw": np.asarray, "minmax": stretched}.items():
        values = np.concatenate([change(made.map).ravel() for made in chosen])
        inside = np.concatenate([made.region.ravel() for made in chosen])
        place = np.unique(values, return_inverse=True)[1]
        found = pooled_ranking(*(np.bincount(place[part], minlength=place.max() + 1) for part in (~inside, inside)))
        assert found == pytest.approx((data[key]["auroc"], data[key]["average_precision"]), **CLOSE)
    # The levels of a metric tie what lies closer together than one of them.
    metric = PooledRanking(1, (0.0, 1.0))
    for made in chosen:
        maps = torch.from_numpy(stretched(made.map))[None, None]
        metric.update(maps, torch.from_numpy(made.region)[None, None], torch.tensor([[True]]))
    coarse = levels(np.concatenate([stretched(made.map).ravel() for made in chosen]), (0.0, 1.0))
    found = metric.compute()
    assert (found["pixel_auroc"].item(), found["pixel_ap"].item()) == pixel_ranking(coarse, inside)
    assert metric.outside.shape == (1, LEVELS)


def test_region_overlap_is_that_of_brute_force():
    data = reference()["datasets"]["aupro_ours"]
    metric = RegionOverlap(1, (0.0, 1.0), count=256, limit=data["limit"])
    for made in map(case, data["cases"]):
        maps = torch.from_numpy(np.rint(stretched(made.map).astype(np.float64) * 255) / 255)[None, None]
        metric.update(maps, torch.from_numpy(made.region)[None, None], torch.tensor([[True]]))
    assert int(metric.parts) == data["components_8_connected"]
    assert metric.compute()["aupro"].item() == pytest.approx(data["value"], abs=1e-12)


def test_calibration_is_that_of_exact_fractions():
    from reference import arrays as stored

    p, y = stored()["calibration_p"].astype(np.float64), stored()["calibration_y"]
    theirs = reference()["datasets"]["calibration"]["exact_in_fractions_ours"]
    for bins in (10, 15):
        scores = calibration(y, p, bins)
        assert scores.ece == pytest.approx(theirs[f"right_closed_{bins}"]["ece"], abs=1e-14)
        assert scores.mce == pytest.approx(theirs[f"right_closed_{bins}"]["mce"], abs=1e-14)
        assert scores.brier == pytest.approx(theirs["brier"], abs=1e-14)
    assert calibration(np.array([-1]), np.array([math.nan])).ece is None
    assert math.isnan(adaptive_ece(np.array([-1]), np.array([0.5])))
    # Two images a bin: |0.3 - 1| + |1.5 - 1| over 4.
    assert adaptive_ece(np.array([1, 0, 0, 1]), np.array([0.1, 0.2, 0.7, 0.8]), 2) == pytest.approx(1.2 / 4)
    assert adaptive_ece(np.array([1, 0, 1]), np.array([0.5, 0.5, 0.5]), 3) == pytest.approx(0.5 / 3)
    # About the root of 2 p (1 - p) / (pi N), the mean of |N(0, p (1 - p) / N)|, for a single bin.
    chance = expected_ece(np.full(400, 0.5), 1)
    assert chance == pytest.approx(math.sqrt(0.5 / (math.pi * 400)), rel=0.1)
    assert chance == expected_ece(np.full(400, 0.5), 1)


# --- brute force and invariance -------------------------------------------------------------------------------------

LEVEL = st.integers(-4, 4)
PAIRS = st.tuples(st.integers(1, 4), st.integers(2, 5)).flatmap(
    lambda size: st.tuples(arrays(np.float32, size, elements=LEVEL), arrays(np.bool_, size))
)


def plain_rank_accuracy(saliency, region):
    """Mean over all orders of equal pixels of the share of the region in the first |R| places."""
    values, inside = saliency.ravel(), region.ravel()
    size = int(inside.sum())
    total = Fraction(0)
    if len(values) > 5:
        for value, belongs in zip(values, inside, strict=True):
            above, tied = int((values > value).sum()), int((values == value).sum())
            total += Fraction(min(tied, max(0, size - above)), tied) * int(belongs)
        return total / size
    every = permutations(range(len(values)))
    sorted_ones = [order for order in every if all(values[a] >= values[b] for a, b in pairwise(order))]
    for order in sorted_ones:
        total += Fraction(int(inside[list(order[:size])].sum()), size)
    return total / len(sorted_ones)


def plain_auroc(saliency, region):
    pairs = [(a, b) for a in saliency[region] for b in saliency[~region]]
    return Fraction(sum(2 * (a > b) + (a == b) for a, b in pairs), 2 * len(pairs))


def plain_average_precision(saliency, region):
    total, before = Fraction(0), 0
    for value in sorted({*saliency[region].tolist()}, reverse=True):
        taken = saliency >= value
        right = int((taken & region).sum())
        total += Fraction(right - before, int(region.sum())) * Fraction(right, int(taken.sum()))
        before = right
    return total


@given(PAIRS)
def test_ranks_are_those_of_brute_force(pair):
    saliency, region = pair
    assume(region.any())
    assert rank_accuracy(saliency, region) == float(plain_rank_accuracy(saliency, region))
    if region.all():
        assert all(map(math.isnan, pixel_ranking(saliency, region)))
        return
    auroc, average_precision = pixel_ranking(saliency, region)
    assert auroc == float(plain_auroc(saliency, region))
    assert average_precision == pytest.approx(float(plain_average_precision(saliency, region)), abs=1e-15)
    tied = np.argwhere(saliency == saliency.max())
    nearest = [min(math.dist(place, other) for other in np.argwhere(region)) for place in tied]
    for tolerance in (0, 1, 1.5, 2):
        share = sum(way <= tolerance for way in nearest) / len(nearest)
        assert pointing_with_tolerance(saliency, region, tolerance) == share


@given(PAIRS, st.integers(0, 7))
def test_only_the_order_of_pixels_and_no_turn_of_the_image_matters(pair, turn):
    saliency, region = pair
    assume(region.any())
    other = np.exp(saliency.astype(np.float64)) * 3 + 1
    turned = [np.rot90(part.T if turn > 3 else part, turn % 4) for part in (saliency, region)]
    for function in (rank_accuracy, pixel_ranking):
        before = np.array(function(saliency, region))
        np.testing.assert_array_equal(function(other, region), before)
        np.testing.assert_array_equal(function(*turned), before)
    values, same = map_measures(saliency, region), map_measures(*turned)
    assert same == pytest.approx(values, abs=1e-12, nan_ok=True)
    shifted = cnr(saliency.astype(np.float64) * 4 + 8, region)
    assert shifted == pytest.approx(cnr(saliency, region), rel=1e-12, nan_ok=True)
    upside_down = cnr(-saliency, region)
    assert upside_down == pytest.approx(-cnr(saliency, region), nan_ok=True)


def test_a_map_that_knows_nothing_has_the_level_of_chance():
    random = np.random.default_rng(0)
    region = np.zeros((40, 40), bool)
    region[5:20, 10:25] = True
    found = [map_measures(random.random((40, 40)), region) for _ in range(60)]
    share = region.mean()
    for name, chance in MEASURES.items():
        level = share if chance is None else chance
        if name != "pointing_tolerant":
            assert np.mean([one[name] for one in found]) == pytest.approx(level, abs=0.02), name
    assert excess(share, share) == 0 and math.isnan(excess(1.0, 1.0))


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.one_of(FINITE, st.floats(-1, 1)), max_size=20), st.randoms())
def test_sums_are_exact_in_any_order_and_split(values, random):
    try:
        plain = math.fsum(values)
    except OverflowError:
        assume(False)
    parts = torch.zeros(2, LIMBS, dtype=torch.int64)
    random.shuffle(values)
    for value in values:
        add_exactly(parts[random.randrange(2)], value)
    assert rounded(parts.sum(0)) == plain


@settings(max_examples=20)
@given(st.permutations(range(6)))
def test_the_metric_has_the_means_of_the_pairs(order):
    chosen = [case(name) for name in ("007", "016", "025", "034", "043", "061")]
    metric = MapMeasures(2)
    for place in order:
        made = chosen[place]
        regions = torch.from_numpy(made.region)[None, None].repeat(1, 2, 1, 1)
        valid = torch.tensor([[made.region.any(), False]])
        metric.update(torch.from_numpy(made.raw)[None, None].repeat(1, 2, 1, 1), regions, valid)
    found = metric.compute()
    pairs = [map_measures(made.map, made.region) for made in chosen if made.region.any()]
    assert found["count"].tolist() == [len(pairs), 0]
    for name in MEASURES:
        values = [one[name] for one in pairs if not math.isnan(one[name])]
        # Maps brought to the grid by PyTorch's interpolation differ in the last digits.
        assert found[name][0].item() == pytest.approx(math.fsum(values) / len(values), abs=1e-4)
        assert math.isnan(found[name][1]) and found[f"undefined_{name}"].tolist() == [len(pairs) - len(values), 0]
    if not hasattr(test_the_metric_has_the_means_of_the_pairs, "bits"):
        test_the_metric_has_the_means_of_the_pairs.bits = {key: value.tolist() for key, value in found.items()}
    for key, bits in test_the_metric_has_the_means_of_the_pairs.bits.items():
        np.testing.assert_array_equal(found[key].tolist(), bits)


@pytest.mark.parametrize(
    ("metric", "complaint"),
    [
        (lambda: MapMeasures(0), "num_classes must be at least 1"),
        (lambda: PooledRanking(1, (1.0, 1.0)), "a scale that rises"),
        (lambda: RegionOverlap(1, (0.0, 1.0), limit=0), "a limit in"),
        (lambda: MapMeasures(1).update(torch.zeros(1, 1, 2), torch.zeros(1), torch.zeros(1)), "must be \\(B, C"),
        (
            lambda: MapMeasures(1).update(
                torch.full((1, 1, 2, 2), torch.nan), torch.ones(1, 1, 4, 4) > 0, torch.ones(1, 1) > 0
            ),
            "NaN or infinite",
        ),
        (lambda: calibration(np.array([1]), np.array([1.5])), "must lie in"),
    ],
)
def test_what_makes_no_sense_is_refused(metric, complaint):
    with pytest.raises(ValueError, match=complaint):
        metric()


def test_levels_and_parts_are_what_they_say():
    assert levels(np.array([0.0, 0.5, 1.0]), (0.0, 1.0)).tolist() == [0, 32768, 65535]
    assert len(cases()) == 72 and all(made.same for made in cases())
    assert label(np.eye(2), np.ones((3, 3)))[1] == 1
