"""Quantus 0.6.0, another implementation of map metrics, on the same maps; where it differs, the test says how.

Its spelling of the area under a curve, `np.trapz`, is gone from NumPy, so curves are compared point by point.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import quantus
import torch
from quantus.functions.perturb_func import noisy_linear_imputation
from quantus.functions.similarity_func import correlation_spearman, ssim
from sklearn.exceptions import UndefinedMetricWarning

from xbench.metrics import mass_accuracy, pixel_ranking, pointing_hits, rank_accuracy
from xbench.scoring.perturbations import STEPS, changed, imputed, ranking, similarities

RNG = np.random.default_rng(0)
SIDE = 20
MAPS = RNG.normal(size=(12, SIDE, SIDE)).astype(np.float32)
IMAGES = RNG.normal(size=(12, 1, SIDE, SIDE)).astype(np.float32)


# Boxes of all sizes; the last one is the whole grid.
REGIONS = np.zeros(MAPS.shape, bool)
for place, (top, left, height, width) in enumerate(RNG.integers(0, SIDE, (len(MAPS), 4)).tolist()):
    REGIONS[place, top : top + height + 1, left : left + width + 1] = True
REGIONS[-1] = True


def scores(metric: type, maps: np.ndarray = MAPS, regions: np.ndarray = REGIONS) -> np.ndarray:
    made = metric(abs=False, normalise=False, disable_warnings=True)
    return np.array(made.evaluate_batch(a_batch=maps[:, None], s_batch=regions[:, None]), np.float64)


def test_the_pointing_game_is_that_with_any_of_the_tied_maxima() -> None:
    tied = np.round(MAPS)
    for maps in (MAPS, tied):
        ours = pointing_hits(torch.from_numpy(maps), torch.from_numpy(REGIONS), "any")
        assert ours.tolist() == scores(quantus.PointingGame, maps).tolist()
    # It writes NaN into an array of booleans, so that a map without a region is a hit. Ours are not scored at all.
    nothing = np.zeros_like(REGIONS[:1])
    assert scores(quantus.PointingGame, MAPS[:1], nothing).tolist() == [True]
    assert pointing_hits(torch.from_numpy(MAPS[:1]), torch.from_numpy(nothing), "any").tolist() != [True]


def test_rank_accuracy_without_ties() -> None:
    ours = [rank_accuracy(one, region) for one, region in zip(MAPS, REGIONS, strict=True)]
    assert ours == pytest.approx(scores(quantus.RelevanceRankAccuracy).tolist(), rel=1e-15)
    # Of tied pixels it takes those that an unstable sort puts first; ours share the places.
    assert rank_accuracy(np.zeros((SIDE, SIDE)), REGIONS[0]) == REGIONS[0].mean()


def test_mass_accuracy_of_maps_without_negative_values() -> None:
    maps = MAPS.clip(0).astype(np.float64)
    ours = [mass_accuracy(one, region) for one, region in zip(maps, REGIONS, strict=True)]
    assert ours == pytest.approx(scores(quantus.RelevanceMassAccuracy, maps).tolist(), rel=1e-12)
    # It divides by a sum in which negative values count, and leaves [0, 1]; ours counts them as 0.
    signed = np.array([[[3.0, -2.5]]])
    first = np.array([[[True, False]]])
    assert scores(quantus.RelevanceMassAccuracy, signed, first).tolist() == [6.0]
    assert mass_accuracy(signed[0], first[0]) == 1.0


def test_ranking_of_pixels_with_ties() -> None:
    for maps in (MAPS, np.round(MAPS)):
        ours = [pixel_ranking(one, region)[0] for one, region in zip(maps[:-1], REGIONS[:-1], strict=True)]
        assert ours == pytest.approx(scores(quantus.AUC, maps[:-1], REGIONS[:-1]).tolist(), rel=1e-12)
    # Nothing lies outside: both say so, theirs with a warning.
    with pytest.warns(UndefinedMetricWarning):
        assert math.isnan(*scores(quantus.AUC, MAPS[-1:], REGIONS[-1:]))
    assert math.isnan(pixel_ranking(MAPS[-1], REGIONS[-1])[0])


def test_deletion_is_pixel_flipping() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(1, 3, 3), torch.nn.Flatten(), torch.nn.Linear(3 * (SIDE - 2) ** 2, 2)
    network = torch.nn.Sequential(*layers).eval()
    for image, values in zip(IMAGES, MAPS, strict=True):
        flipping = quantus.PixelFlipping(
            features_in_step=SIDE**2 // 100,
            abs=False,
            normalise=False,
            perturb_baseline=float(image.mean()),
            disable_warnings=True,
        )
        (theirs,) = flipping(
            network, image[None], np.array([1]), values[None, None], device="cpu", channel_first=True, softmax=True
        )
        versions = np.stack([version for _, version in changed("deletion", image, ranking(values, "x"), "x")])
        with torch.no_grad():
            ours = network(torch.from_numpy(versions)).softmax(-1)[:, 1]
        # Ours begins with the image as it is.
        assert ours[1:].tolist() == pytest.approx(np.asarray(theirs).tolist(), abs=1e-5)


def test_imputation_is_that_of_road() -> None:
    for image, values in zip(np.repeat(IMAGES, 3, axis=1), MAPS, strict=True):
        order = ranking(values, "x")
        for percent in STEPS["road"]:
            pixels = order[: SIDE**2 * percent // 100]
            theirs = noisy_linear_imputation(image.astype(np.float64), pixels, noise=0)
            assert np.allclose(theirs.reshape(3, -1)[:, pixels], imputed(image, pixels), atol=1e-9)
            # Noise is ours by image, and theirs by NumPy's global state.
            (version,) = (one for place, one in changed("road", image, order, "x") if place == percent)
            assert np.abs(version - theirs).max() < 0.06


def test_likeness_of_maps_is_that_of_randomisation() -> None:
    for first, second in zip(MAPS[:-1].astype(np.float64), MAPS[1:].astype(np.float64), strict=True):
        ours = similarities(first, second)
        assert ours["spearman"] == pytest.approx(correlation_spearman(first.ravel(), second.ravel()), abs=1e-12)
        magnitudes = correlation_spearman(abs(first).ravel(), abs(second).ravel())
        assert ours["magnitude"] == pytest.approx(magnitudes, abs=1e-12)
        stretched = [(one - one.min()) / np.ptp(one) for one in (first, second)]
        assert ours["structure"] == pytest.approx(ssim(*stretched), abs=1e-9)
