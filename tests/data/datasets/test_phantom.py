from __future__ import annotations

import numpy as np
import pytest

from xbench.data.datasets.phantom import PhantomCXR
from xbench.data.phantom import FINDINGS, draw_phantom
from xbench.runtime.errors import UsageError


def test_records_and_images_are_the_drawings():
    data = PhantomCXR(images=6, seed=3, size=(40, 48))
    records = data.read_records(annotated=True)
    assert [record.image_id for record in records] == [f"phantom-3-{index:06d}" for index in range(6)]
    for index, record in enumerate(records):
        phantom = draw_phantom(3, index, 40, 48)
        radiograph = data.load(record)
        np.testing.assert_array_equal(radiograph.image, phantom.image)
        assert radiograph.regions.keys() == phantom.masks.keys()
        assert dict(record.labels) == {finding: int(finding in phantom.masks) for finding in FINDINGS}
    with pytest.raises(KeyError):
        records[0].labels["Gout"]


def test_prediction_knows_no_labels():
    assert [dict(record.labels) for record in PhantomCXR(images=2).read_records(annotated=False)] == [{}, {}]


def test_sets_that_trained_the_demo_model_are_announced():
    with pytest.warns(UserWarning, match="trained"):
        PhantomCXR(images=1, seed=1_000_000).read_records(annotated=True)


@pytest.mark.parametrize("options", [{"marker": "Gout"}, {"images": 0}, {"seed": -1}, {"size": 31}, {"size": (320, 8)}])
def test_options_out_of_range(options):
    with pytest.raises(UsageError):
        PhantomCXR(**options)
