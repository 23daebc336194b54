"""The metrics' updates for accelerators: the whole numbers of the CPU's, and never a wait of the host.

There need be no accelerator: `on_host` alone decides which way is taken, so the other one is forced on CPU tensors,
under a mode that fails at what would wait on CUDA. On the meta device, whose tensors hold no values to wait for, and
with fake CUDA tensors any look at a value is an error of PyTorch itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import KINDS, assert_same, elsewhere, make_batch, metrics, scores, states
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from xbench.geometry.grid import FULL_VIEW, Upsampling, saliency_on_grid
from xbench.metrics.per_class import PerClassMetric

HOST_ALONE = {
    "_local_scalar_dense",
    "_unique2",
    "allclose",
    "bincount",
    "equal",
    "histc",
    "is_nonzero",
    "item",
    "lift_fresh",
    "masked_select",
    "nonzero",
    "nonzero_numpy",
    "unique_consecutive",
    "unique_dim",
}
ADDING = {"index_add", "index_add_", "scatter_add", "scatter_add_"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Waited(Exception):
    """Something for which the host would wait on CUDA."""


class NeverWait(TorchDispatchMode):
    """Fails at operations for which the host would wait if `device` were CUDA; counts the others."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.device = device
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        devices = {part.device.type for part in (*args, *kwargs.values()) if isinstance(part, Tensor)}
        if name in HOST_ALONE and self.device in devices:
            raise Waited(name)
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            raise Waited(name)
        if name in INDEXING and any(part is not None and part.dtype in (torch.bool, torch.uint8) for part in args[1]):
            raise Waited(f"{name} by a mask")
        if name in ADDING | INDEXING and torch.are_deterministic_algorithms_enabled():
            raise Waited(f"{name} checks its indices when asked to be deterministic")
        if name in ("_to_copy", "copy_") and not (kwargs.get("non_blocking") or args[2:3] == (True,)):
            target = args[0].device if name == "copy_" else kwargs.get("device") or args[0].device
            source = args[1].device if name == "copy_" else args[0].device
            if torch.device(target) != source:
                raise Waited(f"a copy from {source} to {target}")
        elif name not in ("_to_copy", "copy_") and len(devices) > 1:
            raise Waited(f"{name} with tensors of two devices")
        self.operations += 1
        return func(*args, **kwargs)


SIDES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    images=st.integers(0, 4),
    classes=st.integers(1, 4),
    small=SIDES,
    grid=st.one_of(st.tuples(st.integers(1, 40), st.integers(1, 40)), st.none()),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    transposed=st.booleans(),
    thresholds=st.sampled_from([2, 11, 101]),
    pixels=st.sampled_from([1, 7, 100, 1000, 10**6]),
    step=st.integers(1, 6),
)
def test_pairs_count_as_a_batch_does_here_and_there(
    seed: int,
    images: int,
    classes: int,
    small: tuple[int, int],
    grid: tuple[int, int] | None,
    dtype: torch.dtype,
    transposed: bool,
    thresholds: int,
    pixels: int,
    step: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    saliency = torch.randn(images, classes, *small, generator=generator)
    saliency[: images // 2] = saliency[: images // 2].round()  # ties
    saliency[torch.rand(images, classes, generator=generator) < 0.2] = 0.1  # constant
    valid = torch.rand(images, classes, generator=generator) > 0.4
    regions = torch.rand(images, classes, *(grid or small), generator=generator) > 0.5
    regions[..., 0, 0] = True
    rows, columns = valid.nonzero(as_tuple=True)
    for bad, value in enumerate((math.nan, math.inf, -math.inf)):
        saliency[bad::3][~valid[bad::3]] = value
    regions[~valid] = False
    saliency = saliency.to(dtype)
    if transposed:
        saliency, regions = saliency.mT.contiguous().mT, regions.mT.contiguous().mT
    chosen = (saliency[rows, columns], regions[rows, columns], columns)
    each = [metrics(classes, thresholds) for _ in range(5)]
    for host, forced, host_pairs, forced_pairs, portions in zip(*each, strict=True):
        host.update(saliency, regions, valid)
        host_pairs.update_pairs(*chosen)
        with elsewhere(pixels=pixels):
            forced.update(saliency, regions, valid)
            forced_pairs.update_pairs(*chosen)
        assert_same(forced, host)
        assert_same(forced_pairs, host_pairs)
        assert_same(host, host_pairs, pairs=False)
        for name, value in scores(host).items():
            expected = torch.arange(len(columns)) if name == "rows" else value
            assert torch.equal(scores(host_pairs)[name], expected), name
        for some in torch.arange(len(columns)).split(step):
            portions.update_pairs(*(part[some] for part in chosen))
        assert_same(host, portions, pairs=False)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("small", [5, 20])
def test_what_the_cpu_refuses_at_once_is_refused_in_the_end(bad: float, small: int) -> None:
    saliency, regions, valid = make_batch(2, small=small)
    valid[:] = True
    saliency[2, 1, 3, 4] = bad
    regions[3, 2] = False
    fine = valid.clone()
    fine[2, 1] = fine[3, 2] = False
    rows, columns = valid.nonzero(as_tuple=True)
    columns[0], columns[-2] = 3, -1
    each = [metrics() for _ in range(4)]
    for metric, plain, pairs, plain_pairs in zip(*each, strict=True):
        plain.update(saliency, regions, fine)
        some = fine[rows, columns.clamp(0, 2)] & (columns >= 0) & (columns < 3)
        plain_pairs.update_pairs(
            saliency[rows, columns.clamp(0, 2)][some], regions[rows, columns.clamp(0, 2)][some], columns[some]
        )
        with elsewhere():
            metric.update(saliency, regions, valid)
            pairs.update_pairs(saliency[rows, columns.clamp(0, 2)], regions[rows, columns.clamp(0, 2)], columns)
        for spoilt, clean in ((metric, plain), (pairs, plain_pairs)):
            for name in set(states(clean)) - {"refused"}:
                assert torch.equal(getattr(spoilt, name), getattr(clean, name)), name
            for _ in range(2):
                with pytest.raises(
                    ValueError, match=r"1 with NaN or infinite saliency \(of class 1\); 1 whose region"
                ) as e:
                    spoilt.compute()
            assert "(of class 2)" in str(e.value)
            assert ("outside 0..2" in str(e.value)) is (spoilt is pairs)
            spoilt.reset()
            spoilt.update(saliency, regions, fine)
            assert torch.equal(spoilt.compute()["count"], plain.compute()["count"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_as_float32(dtype: torch.dtype) -> None:
    """Even where the range of a map is wider than float16 can tell."""
    saliency, regions, valid = make_batch(3)
    saliency = (saliency.clamp(-1, 1) * 60_000).to(dtype)
    for host, forced, plain in zip(metrics(), metrics(), metrics(), strict=True):
        host.update(saliency, regions, valid)
        plain.update(saliency.float(), regions, valid)
        with elsewhere():
            forced.update(saliency, regions, valid)
        assert_same(host, plain)
        assert_same(forced, plain)


def updates(metric: PerClassMetric[Any], batch: Any) -> list[Callable[[], None]]:
    saliency, regions, valid = batch
    pairs = (saliency.flatten(0, 1), regions.flatten(0, 1), torch.arange(saliency.shape[1]).repeat(len(saliency)))
    classes = pairs[2].to(saliency.device)
    return [
        lambda: metric.update(saliency, regions, valid),
        lambda: metric.update_pairs(pairs[0], pairs[1], classes),
    ]


@pytest.mark.parametrize("metric", metrics(), ids=KINDS)
@pytest.mark.parametrize("way", [0, 1], ids=["update", "update_pairs"])
@pytest.mark.parametrize("grid", [20, 5], ids=["enlarged", "on the grid"])
def test_the_host_does_not_wait(metric: PerClassMetric[Any], way: int, grid: int) -> None:
    update = updates(metric, make_batch(grid=grid))[way]
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with elsewhere(pixels=1000), NeverWait() as mode:
            update()
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.use_deterministic_algorithms(False)
    assert mode.operations > 20


@pytest.mark.parametrize(
    ("device", "world"), [("meta", nullcontext), ("cuda", FakeTensorMode)], ids=["meta", "fake cuda"]
)
@pytest.mark.parametrize("kind", range(4), ids=KINDS)
@pytest.mark.parametrize("way", [0, 1], ids=["update", "update_pairs"])
def test_without_any_value_to_look_at(device: str, world: Any, kind: int, way: int) -> None:
    batch, metric = make_batch(), metrics()[kind]
    with world():
        shapes = [torch.empty(part.shape, dtype=part.dtype, device=device) for part in batch]
        for name, state in states(metric).items():
            setattr(metric, name, torch.empty(state.shape, dtype=state.dtype, device=device))
        update = updates(metric, shapes)[way]
        with NeverWait(device) as mode:
            update()
        assert mode.operations > 20
        assert all(state.device.type == device for state in states(metric).values())
        with elsewhere(answer=True), pytest.raises(Exception, match=r"(?i)meta|nonzero|scalar_dense|item"):
            update()


WAYS = pytest.mark.parametrize("mode", ["bilinear", "nearest", "corners"])
SOME = (0.1, 0.0, 0.9, 1.0)
VIEWS = pytest.mark.parametrize(
    "views",
    [[FULL_VIEW] * 3, [SOME] * 3, [FULL_VIEW, SOME, (-0.5, 0.0, 1.5, 1.0)]],
    ids=["whole", "cropped", "mixed"],
)


@WAYS
@VIEWS
def test_maps_come_to_the_grid_without_a_wait(mode: Upsampling, views: list[tuple[float, ...]]) -> None:
    maps = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0))
    expected = saliency_on_grid(maps, views, (20, 21), mode)
    with elsewhere(), NeverWait():
        found = saliency_on_grid(maps, views, (20, 21), mode)
    assert torch.equal(found, expected)
    for device, world in (("meta", nullcontext()), ("cuda", FakeTensorMode())):
        with world, NeverWait(device):
            on_grid = saliency_on_grid(torch.empty(3, 5, 6, device=device), views, (20, 21), mode)
        assert on_grid.device.type == device and on_grid.shape == (3, 20, 21)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("kind", range(4), ids=KINDS)
@pytest.mark.parametrize("way", [0, 1], ids=["update", "update_pairs"])
def test_on_an_accelerator(kind: int, way: int) -> None:
    batch = make_batch(4, images=9, grid=40)
    there, here = metrics()[kind].to("cuda"), metrics()[kind]
    update = updates(there, [part.to("cuda") for part in batch])[way]
    update()  # The first use of a kernel loads it, and may wait.
    there.reset()
    torch.cuda.synchronize()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.use_deterministic_algorithms(False)
    updates(here, batch)[way]()
    assert_same(there.cpu(), here)
