"""Radiographs, damaged checkpoints and made-up answers for tests of models on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from xbench.runtime.errors import UserError


def radiographs(sizes: Sequence[tuple[int, int]], low: int = 0, high: int = 256) -> Any:
    draw = np.random.default_rng(0)
    drawn = [torch.from_numpy(draw.integers(low, high, size, dtype=np.uint8)) for size in sizes]
    names = [f"image {place}" for place in range(len(sizes))]
    return SimpleNamespace(radiographs=drawn, truth=SimpleNamespace(image_ids=names))


def speak(monkeypatch: pytest.MonkeyPatch, model: Any, tokens: list[int]) -> None:
    def generate(**inputs: Any) -> Any:
        begin = torch.tensor([[2]]) if model.network.config.is_encoder_decoder else inputs["input_ids"]
        return SimpleNamespace(sequences=torch.cat([begin, torch.tensor([tokens])], 1))

    monkeypatch.setattr(model.network, "generate", generate)


def spoil(folder: Path, file: str, **values: Any) -> None:
    content = json.loads((folder / file).read_text()) | values
    (folder / file).write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def spoil_weights(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    files = sorted(folder.glob("*.safetensors"))
    places = {}
    for path in files:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, path.name)
    if len(files) > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def check_refusal(
    load: Callable[[str], Any], folder: Path, change: Callable[[Path], Any], problem: str, tmp_path: Path
) -> None:
    """Check that a changed copy of a checkpoint is refused in one paragraph that names the problem."""
    shutil.copytree(folder, tmp_path / "m")
    change(tmp_path / "m")
    with pytest.raises(UserError) as refused:
        load(str(tmp_path / "m"))
    assert problem in str(refused.value) and len(str(refused.value)) < 900
