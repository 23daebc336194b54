from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pairs import KINDS, make_batch, metrics
from torch import Tensor
from torch.multiprocessing.spawn import start_processes
from torchmetrics import Metric

from xbench.metrics import BoxScores, LesionDetections
from xbench.predictions.answer import Answer, Box
from xbench.scoring.protocols.common import components


def results(batches: list[int]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    others = {"detections": LesionDetections(2), "boxes": BoxScores(2)}
    for kind, metric in [*zip(KINDS, metrics(classes=2), strict=True), *others.items()]:
        for seed in batches:
            update(kind, metric, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an idle rank computes before any update, on purpose
            computed = metric.compute()
        found |= {f"{kind}.{name}": value for name, value in named(computed).items()}
        if dist.is_initialized():
            metric.sync()
        # Rows of detections come in the order of the processes; what is computed from them does not.
        states = [name for name in metric._defaults if (kind, name) != ("detections", "detections")]
        found |= {f"{kind}.{name}": getattr(metric, name) for name in states}
    return found


def update(kind: str, metric: Metric, seed: int) -> None:
    saliency, regions, valid = make_batch(seed, images=3, classes=2)
    if kind not in ("detections", "boxes"):
        metric.update(saliency, regions, valid)
    else:
        draw = np.random.default_rng(seed)
        for row, column in product(range(3), range(2)):
            lesions = components(regions[row, column].numpy())
            boxes = np.sort(draw.random((3, 2, 2)), axis=1).reshape(3, 4)
            if kind == "detections":
                metric.update(3 * seed + row, column, draw.integers(4, size=3) / 4, draw.random((3, len(lesions))))
            else:
                answer = Answer("answered", tuple(Box(*box) for box in boxes.tolist()))
                metric.update([answer], [column], [boxes[:2] if row else None])


def named(computed: object) -> dict[str, Tensor]:
    if isinstance(computed, dict):
        return computed
    return {"text": torch.frombuffer(bytearray(repr(computed).encode()), dtype=torch.uint8)}


SHARES = {2: {"uneven": [[0, 2, 4], [1, 3]], "idle rank": [[0, 1, 2, 3, 4], []]}, 3: {"uneven": [[4], [0, 3], [2, 1]]}}


def one_rank(rank: int, folder: str, processes: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=processes)
    found = {name: results(shares[rank]) for name, shares in SHARES[processes].items()}
    torch.save(found, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("processes", SHARES)
def test_several_processes_have_the_bits_of_one(tmp_path: Path, processes: int) -> None:
    # Forked, for new processes would import everything again.
    start_processes(one_rank, args=(str(tmp_path), processes), nprocs=processes, start_method="fork")
    alone = results([0, 1, 2, 3, 4])
    for rank in range(processes):
        found = torch.load(tmp_path / f"rank{rank}.pt")
        assert found.keys() == SHARES[processes].keys()
        for share, together in found.items():
            assert together.keys() == alone.keys()
            for name, value in alone.items():
                assert together[name].dtype == value.dtype
                assert torch.equal(together[name], value), (share, rank, name)
