"""Measures of a map against its region: official scorers' values, brute force, and what must change nothing."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference import case, cases, reference, undefined

from xbench.scoring.maps import cnr, mass_accuracy, pixel_ranking, pointing_with_tolerance, rank_accuracy
from xbench.scoring.protocols.calibration import adaptive_ece, calibration, expected_ece
from xbench.scoring.protocols.common import stretched
from xbench.scoring.protocols.xbench import measures

# What a map independent of the region has in the mean; None: the region's share of the grid.
CHANCE = {
    "rank_accuracy": None,
    "rank_excess": 0.0,
    "mass_accuracy": None,
    "pixel_auroc": 0.5,
    "pixel_ap": None,
    "cnr": 0.0,
}
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
    assert adaptive_ece(np.array([-1]), np.array([0.5])) is None
    # Two images a bin: |0.3 - 1| + |1.5 - 1| over 4.
    assert adaptive_ece(np.array([1, 0, 0, 1]), np.array([0.1, 0.2, 0.7, 0.8]), 2) == pytest.approx(1.2 / 4)
    assert adaptive_ece(np.array([1, 0, 1]), np.array([0.5, 0.5, 0.5]), 3) == pytest.approx(0.5 / 3)
    # About the root of 2 p (1 - p) / (pi N), the mean of |N(0, p (1 - p) / N)|, for a single bin.
    chance = expected_ece(np.full(400, 0.5), 1)
    assert chance == pytest.approx(math.sqrt(0.5 / (math.pi * 400)), rel=0.1)
    assert chance == expected_ece(np.full(400, 0.5), 1)


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


def test_a_map_that_knows_nothing_has_the_level_of_chance():
    random = np.random.default_rng(0)
    region = np.zeros((40, 40), bool)
    region[5:20, 10:25] = True
    found = [measures(random.random((40, 40)), region) for _ in range(60)]
    share = region.mean()
    for name, chance in CHANCE.items():
        level = share if chance is None else chance
        assert np.mean([one[name] for one in found]) == pytest.approx(level, abs=0.02), name
    assert math.isnan(measures(random.random((2, 2)), np.full((2, 2), True))["rank_excess"])


def test_a_probability_above_one_is_refused():
    with pytest.raises(ValueError, match="must lie in"):
        calibration(np.array([1]), np.array([1.5]))


def test_the_reference_cases_are_complete():
    assert len(cases()) == 72 and all(made.same for made in cases())
