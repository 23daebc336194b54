"""Metric states over two processes: the bits of one process, an idle rank included."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from pairs import KINDS, make_batch, metrics
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from xbench.metrics import Calibration, MapMeasures, PooledRanking, RegionOverlap


def results(batches: list[int]) -> dict[str, Tensor]:
    """The metrics' values and synchronised states over the given batches."""
    found: dict[str, Tensor] = {}
    others = {
        "map": MapMeasures(2),
        "pooled": PooledRanking(2, (-2.0, 2.0)),
        "overlap": RegionOverlap(2, (-2.0, 2.0)),
        "calibration": Calibration(2),
    }
    for kind, metric in [*zip(KINDS, metrics(classes=2), strict=True), *others.items()]:
        for seed in batches:
            saliency, regions, valid = make_batch(seed, images=3, classes=2)
            if kind == "calibration":
                metric.update(valid.long(), saliency.amax((2, 3)).sigmoid())
            else:
                metric.update(saliency, regions, valid)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an idle rank computes before any update, on purpose
            found |= {f"{kind}.{name}": value for name, value in metric.compute().items()}
        if dist.is_initialized():
            metric.sync()
        found |= {f"{kind}.{name}": getattr(metric, name) for name in metric._defaults}
    return found


SHARES = {"uneven": [[0, 2, 4], [1, 3]], "idle rank": [[0, 1, 2, 3, 4], []]}


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {name: results(shares[rank]) for name, shares in SHARES.items()}
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_two_processes_have_the_bits_of_one(tmp_path: Path) -> None:
    # Forked, for new processes would import everything again.
    start_processes(one_rank, args=(str(tmp_path),), nprocs=2, start_method="fork")
    alone = results([0, 1, 2, 3, 4])
    for rank in range(2):
        found = torch.load(tmp_path / f"rank{rank}.pt")
        assert found.keys() == SHARES.keys()
        for share, together in found.items():
            assert together.keys() == alone.keys()
            for name, value in alone.items():
                assert together[name].dtype == value.dtype
                assert torch.equal(together[name], value), (share, rank, name)
