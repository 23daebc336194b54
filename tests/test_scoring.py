"""Scores of a batch: the same by the way for accelerators, and the highest places of maps against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from xbench.scoring import _peaks
from xbench.types import scored_pairs

TABLES = ("per_image.parquet", "curves.parquet", "maps.parquet", "regions.parquet", "pictures.parquet", "per_class.csv")
MODULES = ("geometry", "scoring", "metrics.per_class", "metrics.functional", "metrics.sweep")


def forced(patch: pytest.MonkeyPatch) -> None:
    """Take the way for accelerators, which never looks at a value."""
    for module in MODULES:
        patch.setattr(f"xbench.{module}.on_host", lambda tensor: False)


@pytest.mark.parametrize("view", ["whole", "crop"])
@pytest.mark.parametrize("grid", ["[56, 50]", "native"])
def test_a_run_by_the_way_for_accelerators_has_the_same_bytes(command, toy_config, monkeypatch, view, grid):
    options = ("--data.grid", grid, "--data.widths", "[64, 90]", "--model.crop", str(view == "crop").lower())
    run = command("test", "--config", toy_config, *options)
    with monkeypatch.context() as patch:
        forced(patch)
        other = command("test", "--config", toy_config, *options)
    assert run.status == other.status == 0
    for name in TABLES:
        assert (run.folder / name).read_bytes() == (other.folder / name).read_bytes(), name


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 7)).flatmap(
        lambda shape: arrays.arrays(np.float32, shape, elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0]))
    )
)
def test_the_highest_places(maps):
    expected = []
    for one in maps:
        rows, columns = np.nonzero(one == one.max())
        expected.append(((columns + 0.5).mean() / one.shape[1], (rows + 0.5).mean() / one.shape[0]))
    found = _peaks(torch.from_numpy(maps))
    np.testing.assert_allclose(found.T, expected, rtol=0, atol=1e-15)
    with pytest.MonkeyPatch.context() as patch:
        forced(patch)
        assert torch.equal(_peaks(torch.from_numpy(maps)), found)


def test_a_region_of_a_finding_that_is_not_present_keeps_its_place():
    labels = np.array([[0, 1, 1, -1, 1], [1, 0, 0, 0, 0], [1, 1, 0, 1, 1]], np.int8)
    has_region = np.array([[1, 0, 1, 1, 1], [0, 1, 0, 0, 0], [0, 1, 1, 0, 1]], bool)
    # Image, finding, and which of the image's regions, the others' counted.
    assert scored_pairs(labels, has_region).tolist() == [[0, 2, 1], [0, 4, 3], [2, 1, 0], [2, 4, 2]]
    assert scored_pairs(labels[:0], has_region[:0]).shape == (0, 3)
