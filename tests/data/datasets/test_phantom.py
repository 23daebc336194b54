from __future__ import annotations

import numpy as np
import pytest
import torch

from xbench.data.datasets.phantom import PhantomCXR
from xbench.data.phantom import FINDINGS, draw_phantom
from xbench.geometry.preprocessing import Preprocessing, stretch
from xbench.runtime.errors import UserError
from xbench.types import Sample


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


def test_labels_of_samples_agree_with_their_regions_in_any_order():
    data = PhantomCXR(images=12, size=64, num_workers=0, grid=32)
    data.setup("test")
    samples = data.samples(Preprocessing(stretch((32, 32))))
    seen = torch.zeros(len(FINDINGS), dtype=torch.int64)
    for index in (5, 0, 11, 5, 3, 7, 1, 2, 4, 6, 8, 9, 10):
        sample = samples[index]
        assert isinstance(sample, Sample)
        expected = draw_phantom(0, index, 64, 64).masks
        assert sample.truth.labels[0].tolist() == [int(finding in expected) for finding in FINDINGS]
        assert np.array_equal(sample.truth.has_region, sample.truth.labels == 1)
        seen += sample.truth.labels[0]
    assert seen.sum() > 4


def test_prediction_knows_no_labels():
    assert [dict(record.labels) for record in PhantomCXR(images=2).read_records(annotated=False)] == [{}, {}]


def test_sets_that_trained_the_demo_model_are_announced():
    with pytest.warns(UserWarning, match="trained"):
        PhantomCXR(images=1, seed=1_000_000).read_records(annotated=True)


@pytest.mark.parametrize("options", [{"images": 0}, {"seed": -1}, {"size": 31}, {"size": (320, 8)}])
def test_options_out_of_range(options):
    with pytest.raises(UserError) as caught:
        PhantomCXR(**options)
    assert caught.value.exit_status == 2
