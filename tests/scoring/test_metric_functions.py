from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import pointing
from torch import Tensor

from xbench.metrics import normalise, pointing_hits, upsample


@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 7.0, 1e-40, 3e38])
@pytest.mark.parametrize("size", [(4, 4), (29, 31), (224, 224)], ids=str)
def test_a_constant_map_stays_constant(value: float, size: tuple[int, int]) -> None:
    maps = torch.randn(3, 7, 7, generator=torch.Generator().manual_seed(4))
    maps[1] = value
    result = upsample(maps, size)
    assert torch.equal(result[1], maps[1, 0, 0].expand(size))
    assert not normalise(result)[1].any()
    assert torch.equal(result[::2], upsample(maps[::2], size))


@pytest.mark.parametrize("maps", [torch.zeros(2, 2), torch.zeros(1, 2, 2, dtype=torch.int32)], ids=["2-D", "int"])
def test_upsample_refuses(maps: Tensor) -> None:
    with pytest.raises(ValueError, match="floating tensor"):
        upsample(maps, (4, 4))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=2, max_size=12))
def test_normalised_maps_touch_both_ends(values: list[float]) -> None:
    maps = torch.tensor(values, dtype=torch.float32)[None, None]
    result = normalise(maps)
    if min(values) == max(values):
        assert torch.equal(result, torch.zeros_like(maps))
        return
    assert result.min().item() == 0.0
    assert result.max().item() == 1.0
    low, span = maps.min(), maps.max() - maps.min()
    for pixel, value in zip(result.flatten().tolist(), maps.flatten(), strict=True):
        assert pixel == ((value - low) / span).item()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38], ids=str)
def test_normalise_names_the_map_and_leaves_its_input(bad: float) -> None:
    """A range beyond float32 cannot be normalized either."""
    maps = torch.rand(2, 3, 4, 4)
    maps[1, 2, 0, :2] = torch.tensor([bad, -3e38])
    before = maps.clone()
    with pytest.raises(ValueError, match=r"position \(1, 2\)"):
        normalise(maps)
    normalise(maps[0])
    assert torch.equal(maps.nan_to_num(), before.nan_to_num())


@settings(max_examples=100, deadline=None)
@given(data=st.data(), ties=st.sampled_from(["share", "any", "first"]))
def test_pointing_hits_equal_loop(data: st.DataObject, ties: str) -> None:
    number, height, width = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)))
    pixels = number * height * width
    levels = data.draw(st.lists(st.sampled_from([-2.0, -0.0, 0.0, 1.0, 1.5]), min_size=pixels, max_size=pixels))
    bits = data.draw(st.lists(st.booleans(), min_size=pixels, max_size=pixels))
    maps = torch.tensor(levels).view(number, height, width)
    regions = torch.tensor(bits).view(number, height, width)
    hits = pointing_hits(maps, regions, ties)  # type: ignore[arg-type]
    assert hits.dtype == torch.float64
    expected = [pointing(one, region, ties) for one, region in zip(maps.numpy(), regions.numpy(), strict=True)]
    assert hits.tolist() == expected


def test_pointing_hits_refuse() -> None:
    maps, regions = torch.zeros(1, 2, 2), torch.ones(1, 2, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="'share', 'any', 'first'"):
        pointing_hits(maps, regions, "last")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(N, H, W\)"):
        pointing_hits(maps, regions[:, :1])
    with pytest.raises(ValueError, match="map 0 is not finite"):
        pointing_hits(maps * math.nan, regions)
