from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from xbench.scoring.sweep import PixelCounts, count_pixels, threshold_values


def neighbors(thresholds: int) -> Tensor:
    """Every threshold, the floats right below and above it, and the awkward ones: -0.0, denormals, the last below 1."""
    exact = np.array([np.float32(k / (thresholds - 1)) for k in range(thresholds)], dtype=np.float32)
    below, above = np.nextafter(exact, np.float32(-1)), np.nextafter(exact, np.float32(2))
    extra = np.array([-0.0, 1e-45, 1.1754942e-38, 1.1754944e-38, 0.5, 0.99999994], dtype=np.float32)
    values = np.concatenate([exact, below, above, extra])
    return torch.from_numpy(values[(values >= 0) & (values <= 1)])


def compare_at_each(maps: Tensor, regions: Tensor, thresholds: int) -> tuple[np.ndarray, np.ndarray]:
    mask = np.zeros((len(maps), thresholds), dtype=np.int64)
    overlap = np.zeros_like(mask)
    for pair, (one, region) in enumerate(zip(maps.numpy(), regions.numpy(), strict=True)):
        for k in range(thresholds):
            reached = one >= np.float32(k / (thresholds - 1))
            mask[pair, k] = reached.sum()
            overlap[pair, k] = (reached & region).sum()
    return mask, overlap


def assert_exact(counts: PixelCounts, maps: Tensor, regions: Tensor, thresholds: int) -> None:
    mask, overlap = compare_at_each(maps, regions, thresholds)
    np.testing.assert_array_equal(counts.mask.numpy(), mask)
    np.testing.assert_array_equal(counts.overlap.numpy(), overlap)
    np.testing.assert_array_equal(counts.region.numpy(), regions.numpy().sum((1, 2)))


def assert_sorted(pixels: Tensor, thresholds: int) -> None:
    """Every single pixel, or a run of ascending ones, reaches what a binary search says."""
    found = count_pixels(pixels.sort().values[None, None], torch.ones(1, 1, len(pixels), dtype=torch.bool), thresholds)
    below = np.searchsorted(pixels.sort().values.numpy(), threshold_values(thresholds).numpy(), side="left")
    np.testing.assert_array_equal(found.mask[0].numpy(), len(pixels) - below)


@pytest.mark.parametrize("thresholds", [2, 3, 11, 101, 1001, 1024, 10_001])
def test_thresholds_are_the_nearest_floats(thresholds: int) -> None:
    values = threshold_values(thresholds)
    assert values.dtype == torch.float32
    below = torch.nextafter(values, torch.tensor(-1.0))
    above = torch.nextafter(values, torch.tensor(2.0))
    for k in range(thresholds):
        exact = Fraction(k, thresholds - 1)
        distance = abs(Fraction(values[k].item()) - exact)
        assert distance <= abs(Fraction(below[k].item()) - exact)
        assert distance <= abs(Fraction(above[k].item()) - exact)


@pytest.mark.parametrize("thresholds", [2, 3, 11, 101, 1001])
def test_counts_beside_every_threshold(thresholds: int) -> None:
    pixels = neighbors(thresholds)
    maps = torch.stack([pixels, pixels.flip(0), torch.zeros_like(pixels), torch.ones_like(pixels)])[:, None]
    regions = torch.rand(maps.shape, generator=torch.Generator().manual_seed(0)) > 0.5
    assert_exact(count_pixels(maps, regions, thresholds), maps, regions, thresholds)


@pytest.mark.parametrize("thresholds", [2, 101, 1001, 20_001, 100_001])
def test_counts_by_binary_search(thresholds: int) -> None:
    assert_sorted(neighbors(thresholds), thresholds)


def test_every_float_between_two_thresholds() -> None:
    # All floats of two stretches, not a sample: rounding errors hide in single values.
    for low, high in ((0.28, 0.31), (0.56, 0.59)):
        first, last = (int(np.float32(end).view(np.int32)) for end in (low, high))
        pixels = torch.arange(first, last, dtype=torch.int32).view(torch.float32)
        assert_sorted(pixels, 101)


@pytest.mark.parametrize(
    ("thresholds", "shape"),
    [
        *((11, shape) for shape in [(1, 1, 1), (2, 300, 500), (700, 14, 14), (2, 1, 131_073), (0, 7, 7)]),
        (20_001, (1, 20, 20)),
    ],
)
def test_counts_of_any_size(thresholds: int, shape: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    maps = (torch.rand(shape, generator=generator) * 1.02 - 0.01).clamp(0, 1)
    regions = torch.rand(shape, generator=generator) > 0.8
    assert_exact(count_pixels(maps, regions, thresholds), maps, regions, thresholds)
    # However the pixels lie in memory.
    assert_exact(count_pixels(maps.mT, regions.mT, thresholds), maps, regions, thresholds)


@pytest.mark.parametrize(
    ("maps", "regions", "thresholds"),
    [
        (torch.tensor([[[1.1]]]), torch.ones(1, 1, 1, dtype=torch.bool), 101),
        (torch.tensor([[[-0.1]]]), torch.ones(1, 1, 1, dtype=torch.bool), 101),
        (torch.tensor([[[float("nan")]]]), torch.ones(1, 1, 1, dtype=torch.bool), 101),
        (torch.zeros(1, 1, 1, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.bool), 101),
        (torch.zeros(1, 1, 1), torch.ones(1, 1, 1), 101),
        (torch.zeros(1, 1, 2), torch.ones(1, 2, 1, dtype=torch.bool), 101),
        (torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), 101),
        (torch.zeros(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool), 1),
        (torch.zeros(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool), 10.0),
        (torch.zeros(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool), 100_002),
    ],
    ids=["above", "below", "nan", "float64", "float regions", "shapes", "2-D", "one", "float count", "too many"],
)
def test_wrong_input_is_refused(maps: Tensor, regions: Tensor, thresholds: int) -> None:
    with pytest.raises(ValueError, match=r"maps|thresholds"):
        count_pixels(maps, regions, thresholds)
