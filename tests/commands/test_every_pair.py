"""Every model with every dataset, by name, as the protocol of the paper has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
from xbench.geometry.preprocessing import HistogramEqualisation
from xbench.models import (
    CLIP,
    KAD,
    MAVL,
    VLM,
    BiomedCLIP,
    CARZero,
    CentrePrior,
    Demo,
    DeViDe,
    MedKLIP,
    Oracle,
    SaliencyModel,
    UniformRandom,
    carzero,
    devide,
    kad,
    mavl,
    medklip,
)
from xbench.models.components import kebert
from xbench.models.components import open_clip as open_clip_network
from xbench.protocol.prompts import phrase, prompts_in_style

MODELS: dict[str, type[VLM]] = {
    "carzero": CARZero,
    "clip": CLIP,
    "biomedclip": BiomedCLIP,
    "medklip": MedKLIP,
    "kad": KAD,
    "mavl": MAVL,
    "devide": DeViDe,
}
REFERENCES: dict[str, type[SaliencyModel]] = {
    "oracle": Oracle,
    "random": UniformRandom,
    "centre": CentrePrior,
    "demo": Demo,
}
WHERE = {
    "carzero": "github.com/laihaoran/CARZero",
    "clip": "give --model.checkpoint FILE",
    "biomedclip": "huggingface.co/microsoft/BiomedCLIP",
    "medklip": "github.com/MediaBrain-SJTU/MedKLIP",
    "kad": "github.com/xiaoman-zhang/KAD",
    "mavl": "github.com/HieuPhan33/MAVL",
    "devide": "published neither code nor weights",
}

# How the authors' scripts call findings, where they do not use the name of the dataset.
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
OF_KAD = {
    "Mass": "lung mass",
    "Nodule": "lung nodule",
    "Pleural Thickening": "pleural thicken",
    "Pulmonary Fibrosis": "fibrosis",
}


def official(model: str, finding: str) -> list[str]:
    """The official prompts; for the books of MedKLIP and MAVL, which are not free, what the package puts in place."""
    match model:
        case "carzero":
            return [f"There is {OF_CARZERO.get(finding, finding)}"]
        case "kad" | "devide":
            return [OF_KAD.get(finding, finding.lower())]
        case "medklip":
            return prompts_in_style("description", finding)
        case "mavl":
            return prompts_in_style("description", finding) + prompts_in_style("aspects", finding)
        case _:
            beginning = "this is a photo of " if model == "biomedclip" else ""
            return [f"{beginning}a chest x-ray {word} {phrase(finding)}" for word in ("showing", "without")]


@dataclass
class Checked:
    """What a command checked."""

    model: Any = None
    data: Any = None
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Takes down what `check` is given, and which findings it asks the model's own prompts for."""
    seen = Checked()

    def check(data: ChestXrayDataModule, model: SaliencyModel, *args: Any, **options: Any) -> None:
        seen.data, seen.model = data, model
        if isinstance(model, VLM):
            own = model.default_prompts

            def default_prompts(finding: str) -> Any:
                seen.asked.append(finding)
                return own(finding)

            monkeypatch.setattr(model, "default_prompts", default_prompts, raising=False)
        xbench.commands.check.check(data, model, *args, **options)

    monkeypatch.setattr(xbench.commands.run, "check", check)
    return seen


@pytest.fixture(scope="module")
def create_model() -> Callable[..., Any]:
    return cache_of(open_clip.create_model)


def cache_of(create: Callable[..., Any]) -> Callable[..., Any]:
    """Networks of open_clip draw their weights, which takes seconds: here each is made once, and has none."""
    made: dict[str, Any] = {}

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
    for module in (kebert, carzero, mavl, medklip, open_clip_network):
        monkeypatch.setattr(module, "fill", lambda *args, **kwargs: None)
    monkeypatch.setattr(kad, "read_settings", lambda path: {})
    monkeypatch.setattr(open_clip, "create_model", create_model)
    path = tmp_path / "weights.pt"
    path.touch()
    return path


@pytest.mark.parametrize("dataset", CLASSES)
@pytest.mark.parametrize("model", MODELS)
def test_the_pairs_of_the_paper(
    command, downloads: Downloads, checked: Checked, weightless: Path, model: str, dataset: str
):
    root = downloads(dataset).root
    run = command(
        *("check", "--config", f"{model}_{dataset}.yaml", "--data.root", root, "--model.checkpoint", weightless),
        *("--data.limit", "1", "--data.num_workers", "0"),
    )
    assert run.status == 0, run.output + run.errors
    assert type(checked.model) is MODELS[model]
    assert type(checked.data) is CLASSES[dataset]
    assert checked.data.batch_size == 8
    assert tuple(checked.data.grid) == (224, 224)
    pixels, _ = checked.model.preprocessing(np.zeros((300, 400), np.uint8))
    assert pixels.shape == (3, 224, 224)
    equalised = any(isinstance(step, HistogramEqualisation) for step in checked.model.preprocessing.geometry)
    assert equalised == (model in ("medklip", "mavl") and dataset == "rsna")
    assert checked.asked == list(checked.data.findings) == list(CLASSES[dataset].findings)
    for finding in checked.data.findings:
        assert list(checked.model.prompts_of(finding)) == official(model, finding)


@pytest.mark.parametrize(
    ("model", "dataset"),
    [*((model, "phantom") for model in REFERENCES), *(("oracle", dataset) for dataset in CLASSES)],
)
def test_the_references(command, downloads: Downloads, checked: Checked, model: str, dataset: str):
    where = () if dataset == "phantom" else ("--data.root", downloads(dataset).root)
    run = command("check", "--config", f"{model}_{dataset}", *where, "--data.limit", "1", "--data.num_workers", "0")
    assert run.status == 0, run.output + run.errors
    assert type(checked.model) is REFERENCES[model]
    assert checked.data.name == dataset


def test_nothing_else_is_shipped():
    assert {*shipped("models")} == {*MODELS, *REFERENCES}
    assert {*shipped("data")} == {*CLASSES, "phantom"}


@pytest.mark.parametrize("given", ["no option", "no such file"])
@pytest.mark.parametrize("model", MODELS)
def test_a_missing_checkpoint(
    command,
    downloads: Downloads,
    create_model: Callable[..., Any],
    monkeypatch,
    tmp_path: Path,
    model: str,
    given: str,
):
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no network in tests")

    monkeypatch.setattr(open_clip, "create_model", create_model)
    monkeypatch.setattr(open_clip, "download_pretrained", refuse)
    monkeypatch.setattr(open_clip_network, "download_pretrained_from_hf", refuse)
    file = tmp_path / "absent.pt"
    option = () if given == "no option" else ("--model.checkpoint", file)
    data = ("--data.root", downloads("siim").root, "--data.limit", "1", "--data.num_workers", "0")
    run = command("check", "--config", f"{model}_siim", *data, *option)
    assert run.status == 1
    assert "Traceback" not in run.output + run.errors
    (paragraph,) = [line for line in run.output.splitlines() if line.startswith("- ")]
    assert "--model.checkpoint" in paragraph
    if option:
        assert f"{file} does not exist" in paragraph
    if not option or model not in ("clip", "biomedclip", "devide"):
        assert WHERE[model] in paragraph
    assert "1 problem;" in run.errors
