"""Batches go to whichever process is free, and who gets them changes nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.data.workers.sampler import DealtBatchSampler
from xbench.runtime.errors import UserError


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.data())
def test_whatever_the_order_of_asking_each_batch_is_dealt_once(count, size, processes, data):
    batches = -(-count // size)
    finished = data.draw(st.sets(st.integers(0, batches - 1)))
    left = [[*range(k * size, min(count, (k + 1) * size))] for k in range(batches) if k not in finished]
    if len(left) < processes:
        with pytest.raises((UserError, ValueError)):
            DealtBatchSampler(count, size, 0, processes, finished, itertools.count)
        return
    counter = itertools.count()
    samplers = [
        DealtBatchSampler(count, size, rank, processes, finished, lambda: counter.__next__) for rank in range(processes)
    ]
    asking = {rank: iter(sampler) for rank, sampler in enumerate(samplers)}
    hands = [[] for _ in samplers]
    while asking:
        rank = data.draw(st.sampled_from(sorted(asking)))
        batch = next(asking[rank], None)
        if batch is None:
            del asking[rank]
        else:
            hands[rank].append(batch)
    # The batches are those of a single process, whoever gets them, and everyone gets one.
    assert sorted(batch for hand in hands for batch in hand) == left
    assert [hand[0] for hand in hands] == left[:processes]
    assert all(hand == sorted(hand) for hand in hands)
    assert all(len(hand) <= len(sampler) for hand, sampler in zip(hands, samplers, strict=True))
    alone = DealtBatchSampler(count, size, finished=finished)
    assert [*alone] == [*alone] == left and len(alone) == len(left)


def test_fewer_batches_than_processes_and_several_processes_without_a_counter_are_refused():
    with pytest.raises(UserError, match="2 batches, too few for 3 processes"):
        DealtBatchSampler(5, 4, 0, 3, (), itertools.count)
    with pytest.raises(ValueError, match="counter"):
        DealtBatchSampler(10, 2, 0, 2)
