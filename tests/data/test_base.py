"""How records become samples and batches, and how batches are dealt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import Brightness, Squares

from xbench.data.sampler import DealtBatchSampler
from xbench.errors import UserError
from xbench.types import Batch, Failure


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))
def test_every_image_is_dealt_exactly_once(count, batch_size, processes):
    batches = -(-count // batch_size)
    if batches < processes:
        with pytest.raises(UserError, match="too few"):
            DealtBatchSampler(count, batch_size, 0, processes)
        return
    hands = [list(DealtBatchSampler(count, batch_size, rank, processes)) for rank in range(processes)]
    assert sorted(index for hand in hands for batch in hand for index in batch) == list(range(count))
    # The batches are those of a single process, whoever gets them.
    alone = list(DealtBatchSampler(count, batch_size))
    assert sorted(batch for hand in hands for batch in hand) == alone
    assert max(map(len, hands)) - min(map(len, hands)) <= 1
    assert [len(DealtBatchSampler(count, batch_size, rank, processes)) for rank in range(processes)] == [
        *map(len, hands)
    ]


def sample_of(**options):
    data = Squares(num_workers=0, **options)
    data.setup("test")
    return data.samples(Brightness().preprocessing)


def test_sample():
    sample = sample_of(grid=(40, 32), limit=4)[3]
    assert sample.image_id == "square-003"
    assert sample.labels.tolist() == [1, 1, -1]
    assert sample.has_region.tolist() == [True, True, False]
    assert sample.regions.shape == (3, 40, 32)
    assert sample.display.shape == (40, 32)
    assert sample.image.shape == (3, 56, 56)
    assert sample.regions.dtype == torch.bool
    assert sample.display.dtype == torch.uint8
    # The bright square, seen on the display: half the native size.
    bright = sample.display.numpy() > 200
    region = sample.regions[0].numpy()
    assert np.logical_and(bright, region).sum() / np.logical_or(bright, region).sum() > 0.6


def test_limit_takes_the_first_images():
    samples = sample_of(limit=4)
    assert len(samples) == 4
    assert [samples[i].image_id for i in range(4)] == [f"square-00{i}" for i in range(4)]


def test_unreadable_images_come_as_failures():
    samples = sample_of(unreadable=[1])
    assert isinstance(samples[1], Failure)
    batch = Batch.collate([samples[0], samples[1], samples[2]])
    assert batch.index.tolist() == [0, 2]
    assert batch.image_ids == ["square-000", "square-002"]
    assert [failure.index for failure in batch.failures] == [1]
    empty = Batch.collate([samples[1]])
    assert len(empty) == 0
    assert [failure.image_id for failure in empty.failures] == ["square-001"]


def test_prediction_knows_no_labels():
    data = Squares(num_workers=0)
    data.setup("predict")
    assert data.samples(Brightness().preprocessing)[3].labels.tolist() == [-1, -1, -1]


def test_batches_without_a_trainer():
    data = Squares(num_workers=0, batch_size=8)
    data.setup("test")
    batches = list(data.test_dataloader())
    assert [len(batch) for batch in batches] == [8, 8, 4]
    assert batches[0].images.shape == (8, 3, 224, 224)
    assert 0 <= batches[0].images.min() <= batches[0].images.max() <= 1
    assert batches[0].views == [(0, 0, 1, 1)] * 8
