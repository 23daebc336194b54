"""Quantus 0.6.0, another implementation of map metrics, on the same maps.

It calls `np.trapz`, which NumPy dropped, so curves are compared point by point.
"""

from __future__ import annotations

import numpy as np
import pytest
import quantus
import torch
from quantus.functions.perturb_func import noisy_linear_imputation
from quantus.functions.similarity_func import correlation_spearman, ssim

from xbench.scoring.perturbations import STEPS, changed, imputed, ranking, similarities

RNG = np.random.default_rng(0)
SIDE = 20
MAPS = RNG.normal(size=(12, SIDE, SIDE)).astype(np.float32)
IMAGES = RNG.normal(size=(12, 1, SIDE, SIDE)).astype(np.float32)


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
