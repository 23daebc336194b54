from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from on_grid import saliency_on_grid
from scipy.spatial.distance import cdist

from xbench.geometry.grid import FULL_VIEW
from xbench.geometry.regions import Coverage
from xbench.metrics import pointing_hits
from xbench.report.schema import NEAR
from xbench.scoring.map_measures import Measurer, least_distance
from xbench.scoring.rows import column_of
from xbench.types import Query, Truth

MAPS = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 7)).flatmap(
    lambda shape: arrays.arrays(np.float32, shape, elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0]))
)


def measured(maps, regions, views=None):
    views = [FULL_VIEW] * len(maps) if views is None else views
    return Measurer()(torch.from_numpy(maps), [*torch.from_numpy(regions)], views, 3)


@given(MAPS)
def test_the_highest_places(maps):
    expected = []
    for one in maps:
        rows, columns = np.nonzero(one == one.max())
        expected.append(((columns + 0.5).mean() / one.shape[1], (rows + 0.5).mean() / one.shape[0]))
    sizes = np.array([maps.shape[1:]] * len(maps))
    found = measured(maps, np.ones(maps.shape, bool)).peaks(sizes)
    np.testing.assert_allclose(found[:2].T, expected, rtol=0, atol=1e-15)


@given(MAPS, st.data())
def test_how_far_the_highest_place_lies_from_the_region(maps, data):
    """Every pair of a tied maximum and a pixel of the region, in fractions: nothing is rounded but the root."""
    _, height, width = maps.shape
    cells = arrays.arrays(bool, maps.shape, elements=st.sampled_from([False, False, True]))
    regions = data.draw(cells.filter(lambda regions: regions.any((1, 2)).all()))
    hits = pointing_hits(torch.from_numpy(maps), torch.from_numpy(regions))
    found = measured(maps, regions).peaks(np.array([(height, width)] * len(maps)))[2]
    for one, region, distance, hit in zip(maps, regions, found, hits.tolist(), strict=True):
        least = min(
            Fraction(int(x - i), width) ** 2 + Fraction(int(y - j), height) ** 2
            for y, x in np.argwhere(one == one.max())
            for j, i in np.argwhere(region)
        )
        assert distance == math.sqrt(least * (height * width) ** 2) / (height * width)
        assert (distance == 0) == (hit > 0)


@pytest.mark.parametrize("size", [(224, 224), (40, 301)])
def test_plateaus_and_regions_of_many_pixels_have_the_distance_of_their_nearest(size):
    draw = np.random.default_rng(0)
    down, across = np.mgrid[: size[0], : size[1]]
    for _ in range(5):
        y, x = draw.random(2) * size
        tied = (down - y) ** 2 + (across - x) ** 2 < 15**2
        region = (np.abs(down - draw.integers(size[0])) < 9) & (np.abs(across - draw.integers(size[1])) < 40)
        one, other = (np.argwhere(pixels) / size for pixels in (tied, region))
        distance = math.sqrt(least_distance(np.argwhere(tied), region)) / (size[0] * size[1])
        assert distance == pytest.approx(cdist(one, other).min(), abs=1e-12)


@pytest.mark.parametrize("size", [(20, 20), (40, 60), (100, 20), (37, 80), (224, 224), (320, 320), (1024, 960)])
def test_whether_a_peak_is_near_is_decided_as_by_whole_numbers(size):
    """All steps about as long as `NEAR`, those as long as it to the last digit included."""
    height, width = size
    region = np.zeros(size, bool)
    region[0, 0] = True
    down, across = np.mgrid[: height // 15 + 1, : width // 15 + 1].reshape(2, -1)[:, 1:]
    squares = (across * height) ** 2 + (down * width) ** 2
    exactly = 400 * squares <= (height * width) ** 2
    # The longest that is near, and the shortest that is not: the rest lies farther from the limit.
    for place in (np.where(exactly, squares, 0).argmax(), np.where(exactly, squares.max(), squares).argmin()):
        square = least_distance(np.array([[down[place], across[place]]]), region)
        assert (math.sqrt(square) / (height * width) <= NEAR) == exactly[place]
    assert exactly.any() and not exactly.all()


@given(MAPS, st.data())
def test_minima_in_the_region(maps, data):
    regions = data.draw(arrays.arrays(bool, maps.shape))
    box = st.tuples(*[st.integers(0, 3).map(lambda k: k / 8)] * 2, *[st.integers(5, 8).map(lambda k: k / 8)] * 2)
    views = [data.draw(st.just(FULL_VIEW) | box) for _ in maps]
    expected = []
    for one, region, (left, top, right, bottom) in zip(maps, regions, views, strict=True):
        rows, columns = ((np.arange(side) + 0.5) / side for side in one.shape)
        seen = ((rows >= top) & (rows <= bottom))[:, None] & ((columns >= left) & (columns <= right))
        assume(seen.any())
        one = saliency_on_grid(torch.from_numpy(one)[None], [(left, top, right, bottom)], one.shape)[0].numpy()
        lowest = seen & (one == one[seen].min())
        expected.append((lowest & region).sum() / lowest.sum())
    np.testing.assert_array_equal(measured(maps, regions, views).minimum_hits(), expected)


def test_pairs_keep_their_images():
    images = [([0, 1, 1, -1, 1], [0, 2, 3, 4]), ([], []), ([1, 0], [1]), ([1, 1, 0, 1, 1], [1, 2, 4])]
    whole = Coverage.of(np.ones((2, 2), bool), (2, 2))
    parts = [
        Truth.of_image(
            *(row, f"image {row}", None, FULL_VIEW, (4, 4), [Query(str(place), None) for place in range(len(labels))]),
            labels=labels,
            coverage=[whole if place in drawn else None for place in range(len(labels))],
            gamma=0.5,
        )
        for row, (labels, drawn) in enumerate(images)
    ]
    truth = Truth.concatenate(parts)
    assert truth.image.tolist() == [0] * 5 + [2] * 2 + [3] * 5
    assert np.flatnonzero(truth.scored).tolist() == [2, 4, 8, 11]
    some = truth.only([3, 1, 0])
    assert some.image_ids == ["image 3", "image 1", "image 0"] and some.image.tolist() == [0] * 5 + [2] * 5
    assert np.flatnonzero(some.scored).tolist() == [1, 4, 7, 9]
    assert Truth.concatenate([]).scored.shape == (0,)


@given(
    st.integers(0, 20).flatmap(lambda rows: arrays.arrays(bool, rows)),
    st.sampled_from([("f8", pa.float64()), ("?", pa.bool_()), ("i8", pa.int32()), ("i1", pa.int8())]),
    st.integers(0, 3),
    st.data(),
)
def test_columns_are_those_that_arrow_makes(there, kind, longest, data):
    numpy_type, arrow = kind
    longest *= arrow != pa.bool_()
    elements = st.sampled_from([np.nan, 0.5, -1.0] if arrow == pa.float64() and not longest else [0, 1])
    values = data.draw(arrays.arrays(numpy_type, (int(there.sum()), *[longest] * (longest > 0)), elements=elements))
    plain = iter(values.tolist())
    expected = [next(plain) if wanted else None for wanted in there.tolist()]
    arrow = pa.list_(arrow) if longest else arrow
    made = column_of(values, arrow, there)
    made.validate(full=True)
    assert made.equals(pa.array(expected, arrow, from_pandas=True))
    known = column_of(values, arrow)
    known.validate(full=True)
    assert known.equals(pa.array(values.tolist(), arrow, from_pandas=True))
