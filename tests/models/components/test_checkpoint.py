from __future__ import annotations

import argparse
import collections
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import pytest
import torch
from golden import shapes_of
from safetensors.torch import save_file
from torch import Tensor, nn

from xbench.models.networks.checkpoint import fill, locate, read_settings, read_tensors, renamed, without
from xbench.runtime.errors import UsageError, UserError

A, B, C = torch.tensor([1.0, 2.0]), torch.tensor([[3.0]]), torch.tensor(4.0)


def saved(path: Path, content: Any, **how: Any) -> Path:
    torch.save(content, path, **how)
    return path


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "content",
    [
        {"a": A, "b.c": B},
        {"state_dict": {"a": A, "b.c": B}, "epoch": 3},
        {"model": {"module.a": A, "module.b.c": B}, "optimizer": {"state": {0: {"step": C}}}},
        {"state_dict": {"model": {"module._orig_mod.a": A, "_orig_mod.b.c": B}}},
        collections.OrderedDict(a=nn.Parameter(A), **{"b.c": B}),
    ],
    ids=["bare", "state_dict", "model", "nested", "ordered"],
)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_wrappers_and_prefixes(tmp_path: Path, content: dict[str, Any], legacy: bool) -> None:
    file = saved(tmp_path / "weights.pth", content, _use_new_zipfile_serialization=not legacy)
    assert equal(read_tensors(file), {"a": A, "b.c": B})
    assert equal(read_tensors(file, ("image_encoder", "model")), {"a": A, "b.c": B})


SECTIONS = ("image_encoder", "text_encoder", "model")
JOINED = {"image_encoder.a": A, "text_encoder.b": B, "model.a": C}


@pytest.mark.parametrize(
    "content",
    [
        {"image_encoder": {"a": A}, "text_encoder": {"module.b": B}, "model": {"a": C}, "optimizer": {}, "epoch": 3},
        JOINED,
        {"model": JOINED},
        {"state_dict": {f"module.{name}": tensor for name, tensor in JOINED.items()}},
    ],
    ids=["sections", "flat", "wrapped", "prefixed"],
)
def test_sections_become_prefixes(tmp_path: Path, content: dict[str, Any]) -> None:
    assert equal(read_tensors(saved(tmp_path / "weights.pt", content), SECTIONS), JOINED)


def test_safetensors(tmp_path: Path) -> None:
    save_file({"a": A, "module.b": B}, tmp_path / "weights.safetensors")
    assert equal(read_tensors(tmp_path / "weights.safetensors"), {"a": A, "b": B})


def test_settings_beside_the_weights_are_left_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))

        def omegaconf(place: str, name: str, **content: Any) -> Any:
            """Make an object called as one of OmegaConf, which is there while the file is written, then gone."""
            module = types.ModuleType(f"omegaconf.{place}")
            patch.setitem(sys.modules, module.__name__, module)
            setattr(module, name, type(name, (), {"__module__": module.__name__}))
            made = getattr(module, name)()
            made.__dict__ |= content
            return made

        node = omegaconf("nodes", "AnyNode", value=4)
        cache = collections.defaultdict(dict, {"a": {}})
        metadata = omegaconf("base", "ContainerMetadata", ref_type=Any, object_type=dict, cache=cache)
        content = {"_content": {"heads": node}, "_metadata": metadata, "_parent": None}
        settings = omegaconf("dictconfig", "DictConfig", **content)
        file = saved(
            tmp_path / "CARZero.ckpt",
            {
                "state_dict": {"a": A},
                "hyper_parameters": settings,
                "hparams_type": type(settings),
                "arguments": argparse.Namespace(checkpoint=PosixPath("/tmp"), size=224),
                "best": np.float64(0.5),
                "history": np.arange(3.0),
                "scheduler": {"base_lrs": [1e-4], "last": np.int64(3)},
            },
        )
    before = {*torch.serialization.get_safe_globals()}
    assert equal(read_tensors(file), {"a": A})
    assert {*torch.serialization.get_safe_globals()} == before, "what a file may hold is nobody else's business"


class Trap:
    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize(
    ("call", "named"),
    [(Path.touch, "touch"), (os.mkdir, "mkdir"), (eval, "eval"), (exec, "exec"), (getattr, "getattr")],
)
def test_nothing_in_a_file_runs(tmp_path: Path, call: Callable[..., Any], named: str) -> None:
    trace = tmp_path / "trace"
    arguments = {"touch": (trace,), "mkdir": (str(trace),), "getattr": (trace, "parent")}
    trap = Trap(call, *arguments.get(named, (f"__import__('pathlib').Path({str(trace)!r}).touch()",)))
    file = saved(tmp_path / "trap.pt", {"state_dict": {"a": A}, "hyper_parameters": {"x": [trap]}})
    with pytest.raises(UserError, match=r"run code when loaded") as caught:
        read_tensors(file)
    # Pickle writes a method as getattr of its class.
    assert {"touch": "getattr"}.get(named, named) in str(caught.value)
    assert not trace.exists()


def test_classes_that_are_let_pass_are_not_called_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(tmp_path / "settings.pt", {"state_dict": {"a": A}, "settings": Trap(argparse.Namespace)})
    called = []
    monkeypatch.setattr(argparse.Namespace, "__init__", lambda self: called.append(self))
    assert equal(read_tensors(file), {"a": A})
    assert not called
    torch.load(file, weights_only=False)
    assert called, "the trap is a trap"


@pytest.mark.parametrize("content", [[A], {"a": A, "epoch": 3}, {0: A}, {"state_dict": {"a": PosixPath("/tmp")}}])
def test_files_that_hold_no_weights(tmp_path: Path, content: Any) -> None:
    with pytest.raises(UserError, match="has no state dict"):
        read_tensors(saved(tmp_path / "weights.pt", content))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_tensors(tmp_path / "absent.pt")
    whole = saved(tmp_path / "whole.pt", {"a": torch.zeros(1000)}).read_bytes()
    save_file({"a": A}, tmp_path / "whole.safetensors")
    cut = (tmp_path / "whole.safetensors").read_bytes()[:-3]
    files = {"cut.pt": whole[: len(whole) // 2], "cut.safetensors": cut, "text.pth": b"not weights", "empty.bin": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            read_tensors(tmp_path / name)


def test_torchscript_is_refused_with_a_way_out(tmp_path: Path) -> None:
    file = tmp_path / "ViT-B-16.pt"
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), str(file))
    with pytest.raises(UserError, match=r"TorchScript.*torch\.jit\.load"):
        read_tensors(file)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title>", r"title 'Google .* warning'"),
        (b"\xef\xbb\xbf\n <HTML lang=en><body>Sign in" + 5000 * b" ", "is a web page, not a file of weights: file"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "download it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer.*`git lfs pull`"),
    ],
    ids=["warning", "sign-in", "xml", "pointer"],
)
def test_what_stands_in_the_place_of_a_download_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        read_tensors(tmp_path / name)
    assert "hidden" not in str(caught.value)


def test_settings_beside_the_weights_are_read(tmp_path: Path) -> None:
    plain = saved(tmp_path / "kad.pt", {"model": {"a": A}, "config": {"img_res": 512}})
    assert read_settings(plain) == {"img_res": 512}
    save_file({"a": A}, tmp_path / "a.safetensors")
    for other in (saved(tmp_path / "b.pt", {"a": A}), saved(tmp_path / "c.pt", {"model": {}, "config": "x"})):
        assert read_settings(other) == read_settings(tmp_path / "a.safetensors") == {}


def test_locate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"x\.pth does not exist\. Check --model\.checkpoint\. Ask around\."):
        locate("~/x.pth", "KAD", "Ask around.")
    (tmp_path / "x.pth").touch()
    assert locate("~/x.pth", "KAD", "") == tmp_path / "x.pth"
    for absent in (None, ""):
        with pytest.raises(UsageError, match=r"KAD needs .* --model\.checkpoint FILE\. Ask around\."):
            locate(absent, "KAD", "Ask around.")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm2d(2)
        self.scale = nn.Parameter(torch.zeros(()))


def tensors_of(network: nn.Module, **changes: Tensor | None) -> dict[str, Tensor]:
    state = {name: torch.full_like(tensor, 7) for name, tensor in network.state_dict().items()}
    changed = {**state, **{name.replace("__", "."): tensor for name, tensor in changes.items()}}
    return {name: tensor for name, tensor in changed.items() if tensor is not None}


def filled(tensors: dict[str, Tensor], **options: Any) -> Network:
    network = Network()
    fill(network, tensors, Path("weights.pt"), "KAD", **options)
    return network


def test_half_precision_lone_numbers_and_counters() -> None:
    """Counters may be missing or too many."""
    network = Network()
    assert network.norm.num_batches_tracked is not None
    network.norm.num_batches_tracked += 5
    changes = {"scale": torch.full((1, 1), 7), "norm__num_batches_tracked": None}
    tensors = tensors_of(network, **changes, other__num_batches_tracked=torch.tensor(3))
    fill(network, {name: tensor.half() for name, tensor in tensors.items()}, Path("weights.pt"), "KAD")
    assert network.scale.shape == () and network.norm.num_batches_tracked.item() == 0
    assert all(bool((tensor == 7).all()) for tensor in network.parameters())
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


def test_ignored_names() -> None:
    surplus = tensors_of(Network(), extra=torch.zeros(1), head__weight=torch.zeros(1))
    filled(surplus, ignored=("extra", "head.*"))
    with pytest.raises(UserError, match=r"1 unexpected \(head\.weight\)"):
        filled(surplus, ignored=("extra",))
    # What the network has is wanted, whatever the patterns say.
    assert bool((filled(tensors_of(Network()), ignored=("linear.*",)).linear.bias == 7).all())


def test_second_names() -> None:
    first_of = {"again.": "linear.", "old_": ""}
    tensors = {"linear.weight": A, "again.weight": B, "again.bias": B, "old_scale": C, "other": C}
    for given in (tensors, dict(reversed(tensors.items()))):
        expected = {"linear.weight": A, "linear.bias": B, "scale": C, "other": C}
        assert equal(renamed(given, first_of), expected)
    assert without(tensors, "again.", "o") == {"linear.weight": A}


def test_misfits_are_named() -> None:
    tensors = tensors_of(Network(), linear__weight=torch.zeros(2, 4), norm__bias=None, norm__weight=None)
    tensors |= {f"surplus.{number}": torch.zeros(1) for number in range(5)}
    with pytest.raises(UserError) as caught:
        filled(tensors, advice="Look again.")
    assert str(caught.value) == (
        "The weights in weights.pt do not fit KAD: 2 missing (norm.weight, norm.bias); 5 unexpected (surplus.0, "
        "surplus.1, surplus.2 ...); 1 of another shape (linear.weight (2, 4) instead of (2, 3)), of 8 tensors. Look "
        "again."
    )
    with pytest.raises(UserError, match=r"the file that the authors of KAD released\.$"):
        filled({})


@pytest.mark.parametrize("manifest", ["carzero", "medklip", "mavl", "kad", "kad_224", "kad_vit", "radzero", "afloc"])
def test_files_of_other_models_are_recognized(manifest: str) -> None:
    network, tensors = nn.Linear(3, 2), dict.fromkeys(shapes_of(manifest), A)
    names = ("CARZero", "MedKLIP", "MAVL", "RadZero", "AFLoc")
    model = {name.lower(): name for name in names}.get(manifest, "KAD")
    with pytest.raises(UserError, match=rf"They look like those of {model}\."):
        fill(network, tensors, Path("weights.pt"), "CLIP")
    with pytest.raises(UserError) as caught:
        fill(network, tensors, Path("weights.pt"), model)
    assert "look like" not in str(caught.value)
