"""Metric states over two processes: the bits of one process, an idle rank included."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torchmetrics import Metric

from xbench.metrics import PointingGame, ThresholdSweep


def make_batch(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    regions = torch.rand(3, 2, 16, 16, generator=generator) > 0.7
    return torch.randn(3, 2, 4, 4, generator=generator), regions, torch.rand(3, 2, generator=generator) > 0.3


def results(batches: list[int]) -> dict[str, Tensor]:
    """The metrics' values and synchronised states over the given batches."""
    metrics: list[Metric] = [ThresholdSweep(2, 11), PointingGame(2)]
    found: dict[str, Tensor] = {}
    for metric in metrics:
        for seed in batches:
            metric.update(*make_batch(seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an idle rank computes before any update, on purpose
            found |= {f"{type(metric).__name__}.{name}": value for name, value in metric.compute().items()}
        if dist.is_initialized():
            metric.sync()
        found |= {f"{type(metric).__name__}.{name}": getattr(metric, name) for name in metric._defaults}
    return found


def one_rank(rank: int, folder: str, shares: list[list[int]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(shares))
    torch.save(results(shares[rank]), f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("shares", [[[0, 2, 4], [1, 3]], [[0, 1, 2, 3, 4], []]], ids=["uneven", "idle rank"])
def test_two_processes_have_the_bits_of_one(tmp_path: Path, shares: list[list[int]]) -> None:
    mp.spawn(one_rank, args=(str(tmp_path), shares), nprocs=2)
    alone = results([0, 1, 2, 3, 4])
    for rank in range(2):
        together = torch.load(tmp_path / f"rank{rank}.pt")
        assert together.keys() == alone.keys()
        for name, value in alone.items():
            assert together[name].dtype == value.dtype
            assert torch.equal(together[name], value), name
