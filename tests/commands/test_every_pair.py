"""Every model and every dataset by name, as the protocol of the paper has them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from downloads import CLASSES, Downloads

import xbench.commands.check
import xbench.commands.run
from xbench.commands.configs import shipped
from xbench.data.datamodule import ChestXrayDataModule
from xbench.findings.prompts import phrase, prompts_in_style
from xbench.geometry.preprocessing import HistogramEqualisation
from xbench.models import (
    CLIP,
    KAD,
    MAVL,
    BiomedCLIP,
    CARZero,
    CentrePrior,
    Demo,
    DeViDe,
    MedKLIP,
    Oracle,
    SaliencyModel,
    UniformRandom,
)
from xbench.models.maps import carzero, devide, kad, mavl, medklip
from xbench.models.maps import clip as open_clip_network
from xbench.models.maps.kad import class_name

MODELS = {model.__name__.lower(): model for model in (CARZero, CLIP, BiomedCLIP, MedKLIP, KAD, MAVL, DeViDe)}
REFERENCES = {"oracle": Oracle, "random": UniformRandom, "centre": CentrePrior, "demo": Demo}
SUPERVISED = {"classifier", "xrv"}
ANSWERING = {"answer_oracle", "centre_box", "endpoint", "outline_boxes", "prior_box", "random_box", "whole_image"}
LOCAL = {
    "afloc",
    "agkd",
    "biovil",
    "biovilt",
    "chexagent2",
    "chexzero",
    "cxrclip",
    "florence2",
    "hf",
    "gloria",
    "internvl",
    "llavarad",
    "maira2",
    "medgemma",
    "medsiglip",
    "qwen25vl",
    "qwen3vl",
    "radvlm",
    "radzero",
    "xraysiglip",
}

# How CARZero's scripts call findings, where they do not use the name of the dataset.
OF_CARZERO = {
    "Calcification": "Tissue Calcification",
    "Consolidation": "Pulmonary Consolidation",
    "Edema": "Pulmonary Edema",
    "Emphysema": "Pulmonary Emphysema",
    "Fracture": "Bone Fracture",
    "Infiltration": "Pulmonary Infiltration",
    "Mass": "Pulmonary Mass",
    "Nodule": "Lung Nodule",
    "Pulmonary Fibrosis": "Fibrosis",
}


def official(model: str, finding: str) -> list[str]:
    """The official prompts; for the books of MedKLIP and MAVL, which are not free, what the package puts in place."""
    match model:
        case "carzero":
            return [f"There is {OF_CARZERO.get(finding, finding)}"]
        case "kad" | "devide":
            return [class_name(finding)]
        case "medklip":
            return prompts_in_style("description", finding)
        case "mavl":
            return prompts_in_style("description", finding) + prompts_in_style("aspects", finding)
        case _:
            beginning = "this is a photo of " if model == "biomedclip" else ""
            return [f"{beginning}a chest x-ray {word} {phrase(finding)}" for word in ("showing", "without")]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Takes down the dataset and the model that `check` is given."""
    seen: list[Any] = []

    def check(data: ChestXrayDataModule, model: SaliencyModel, *args: Any, **options: Any) -> None:
        seen.extend((data, model))
        xbench.commands.check.check(data, model, *args, **options)

    monkeypatch.setattr(xbench.commands.run, "check", check)
    return seen


@pytest.fixture(scope="module")
def create_model() -> Callable[..., Any]:
    """Networks of open_clip draw their weights, which takes seconds: here each is made once, and has none."""
    create, made = open_clip.create_model, dict[str, Any]()

    def once(architecture: str, **options: Any) -> Any:
        # BiomedCLIP comes by way of a folder that is another one every time.
        name = architecture.partition(":")[0]
        if name not in made:
            with torch.device("meta"):
                made[name] = create(architecture, device="meta", **options)
        return made[name]

    return once


@pytest.fixture
def weightless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, create_model: Callable[..., Any]) -> Path:
    """A checkpoint without content that every model takes: networks keep whatever their memory held before."""
    for module in (carzero, devide, kad, mavl, medklip, open_clip_network):
        monkeypatch.setattr(module, "read_tensors", lambda *args, **kwargs: {})
    for module in (kad, carzero, mavl, medklip, open_clip_network):
        monkeypatch.setattr(module, "fill", lambda *args, **kwargs: None)
    monkeypatch.setattr(kad, "read_settings", lambda path: {})
    monkeypatch.setattr(open_clip, "create_model", create_model)
    path = tmp_path / "weights.pt"
    path.touch()
    return path


# Each model and each dataset once: a pair has no settings of its own but the histogram of the books on RSNA.
PAIRS = [
    *[pair[:2] for pair in zip(cycle(MODELS), cycle(CLASSES), range(max(len(MODELS), len(CLASSES))), strict=False)],
    *[("medklip", "rsna"), ("mavl", "rsna"), ("kad", "rsna")],
]


@pytest.mark.parametrize(("model", "dataset"), PAIRS)
def test_the_pairs_of_the_paper(
    command, downloads: Downloads, checked: list[Any], weightless: Path, model: str, dataset: str
):
    root = downloads(dataset).root
    run = command(
        *("check", "--config", f"{model}_{dataset}.yaml", "--data.root", root, "--model.checkpoint", weightless),
        *("--data.limit", "1", "--data.num_workers", "0"),
    )
    assert run.status == 0, run.output + run.errors
    data, network = checked
    assert type(network) is MODELS[model] and type(data) is CLASSES[dataset]
    assert data.batch_size == 8 and tuple(data.grid) == (224, 224)
    assert network.preprocessing(np.zeros((300, 400), np.uint8))[0].shape == (3, 224, 224)
    equalised = any(isinstance(step, HistogramEqualisation) for step in network.preprocessing.geometry)
    assert equalised == (model in ("medklip", "mavl") and dataset == "rsna")
    assert list(data.findings) == list(CLASSES[dataset].findings)
    for finding in {*chain.from_iterable(one.findings for one in CLASSES.values())}:
        assert list(network.prompts_of(finding)) == official(model, finding)


@pytest.mark.parametrize("model", REFERENCES)
def test_the_references(command, checked: list[Any], model: str):
    run = command("check", "--config", f"{model}_phantom", "--data.limit", "1", "--data.num_workers", "0")
    assert run.status == 0, run.output + run.errors
    assert type(checked[1]) is REFERENCES[model] and checked[0].name == "phantom"


def test_nothing_else_is_shipped():
    assert {*shipped("models")} == {*MODELS, *REFERENCES, *ANSWERING, *LOCAL, *SUPERVISED}
    assert {*shipped("data")} == {*CLASSES, "phantom", "folder", "coco", "csv", "masks"}
