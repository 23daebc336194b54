"""Supervised classifiers with drawn weights, in files as their libraries publish them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from deterministic import drawn, quick_weight
from torch import nn

from xbench.data.phantom import FINDINGS


def write_xrv(path: Path, resnet: bool = False) -> None:
    import torchxrayvision

    network: nn.Module = (torchvision.models.resnet50 if resnet else torchxrayvision.models.DenseNet)(num_classes=18)
    if resnet:
        network.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    network.load_state_dict(drawn(network, draw=quick_weight))
    torch.save(network.state_dict() if resnet else network, path, _use_new_zipfile_serialization=False)


def write_classifier(name: str, folder: Path) -> dict[str, Any]:
    path, classes = folder / f"{name}.pt", [*FINDINGS]
    if name == "xrv":
        write_xrv(path)
        return {"checkpoint": str(path)}
    torch.save(drawn(timm.create_model("test_resnet", num_classes=len(classes)), draw=quick_weight), path)
    return {"architecture": "test_resnet", "classes": classes, "trained_on": ["rsna"], "checkpoint": str(path)}


# An environment without the extra `classifiers` can still test the others.
SUPERVISED = ("classifier", "xrv") if find_spec("torchxrayvision") else ("classifier",)
