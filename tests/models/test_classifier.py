from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import timm
import torch
import torchvision
import torchxrayvision
from captum.attr import LayerGradCam, LayerGradientXActivation
from classifiers import write_xrv
from deterministic import drawn, gray, quick_weight
from PIL import Image
from run_files import disagreements
from safetensors.torch import save_file
from small_networks import attached, largest, score
from synthetic import write_run
from timm.data import create_transform, resolve_data_config
from torch import Tensor, nn

from xbench.cli import main
from xbench.commands.configs import shipped, summary
from xbench.models import Classifier, TorchXRayVision
from xbench.models.base import SaliencyModel
from xbench.models.maps import classifier
from xbench.models.networks.checkpoint import read_network
from xbench.report.names import training_of
from xbench.report.runs import collect
from xbench.runtime.errors import UsageError, UserError
from xbench.runtime.notes import SUPERVISED_NOTE

CLASSES = ["Atelectasis", "Effusion", "Nodule", "Mass", "Consolidation", "No Finding"]
FINDINGS = ("Nodule", "Pleural Effusion")
ALL, NIH, LARGE = "densenet121-res224-all", "densenet121-res224-nih", "resnet50-res512-all"


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("weights")

    def write(architecture: str) -> Path:
        of_torchvision, _, name = architecture.rpartition(":")
        path = folder / f"{name}{'.pt' if name in (ALL, LARGE) else '.safetensors'}"
        if not path.exists() and name in (ALL, LARGE):
            write_xrv(path, name == LARGE)
        elif not path.exists():
            make = torchvision.models.get_model if of_torchvision else timm.create_model
            save_file(drawn(make(name, num_classes=len(CLASSES)), draw=quick_weight), path)
        return path

    return write


@pytest.fixture
def build(file_of: Callable[[str], Path]) -> Callable[..., Classifier]:
    def classifier(architecture: str = "test_resnet", *findings: str, **options: Any) -> Classifier:
        given = {"classes": CLASSES, "trained_on": ["rsna"], "checkpoint": str(file_of(architecture))} | options
        return attached(Classifier(architecture, **given), *(findings or FINDINGS))  # type: ignore[type-var]

    return classifier


def input_of(model: SaliencyModel, count: int = 2) -> Tensor:
    return torch.stack([model.preprocessing(gray(f"film-{index}", 190, 240))[0] for index in range(count)])


# A network of each kind, the layer that is mapped by default, and cells of the map.
NETWORKS = {
    "test_resnet": ("layer4", 5),
    "torchvision:densenet121": ("features", 7),
    "test_efficientnet": ("bn2", 5),
    "torchvision:swin_t": ("permute", 7),
    "test_vit": ("blocks.5.norm1", 10),
}


@pytest.mark.parametrize("architecture", NETWORKS)
@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
def test_maps_are_those_of_captum(build: Callable[..., Classifier], architecture: str, method: str) -> None:
    model = build(architecture, method=method)
    images, (name, cells) = input_of(model), NETWORKS[architecture]
    with torch.inference_mode():
        output = score(model, images)  # type: ignore[arg-type]
    assert model.layer == name and output.saliency.shape == (2, 2, cells, cells)
    assert largest(output.logits, model.network(images)[:, [2, 1]].detach()) == 0
    assert not output.saliency.requires_grad and float(output.saliency.std()) > 0
    layer = model.network.get_submodule(name)
    for place, column in enumerate((2, 1)):
        if method == "gradcam" and architecture != "test_vit":
            expected = LayerGradCam(model.network, layer).attribute(images, column, relu_attributions=True)[:, 0]
        else:
            # Of tokens captum takes the mean over the wrong dimension, so their weights are averaged here.
            product = LayerGradientXActivation(model.network, layer).attribute(images, column).detach()
            if architecture == "test_vit":
                product = product[:, -(cells**2) :].mT.unflatten(2, (cells, cells))
            expected = product.sum(dim=1)
            if method == "gradcam":
                expected = gradcam_of_tokens(model.network, layer, images, column)
        assert largest(output.saliency[:, place], expected.detach()) <= 1e-6 * float(expected.detach().abs().max())


def gradcam_of_tokens(network: nn.Module, layer: nn.Module, images: Tensor, column: int) -> Tensor:
    kept: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _, given, output: kept.append(output.requires_grad_()))
    (gradient,) = torch.autograd.grad(network(images)[:, column].sum(), kept)
    handle.remove()
    patches, weights = kept[0][:, 1:], gradient[:, 1:].mean(dim=1, keepdim=True)
    side = round(patches.shape[1] ** 0.5)
    return (patches * weights).sum(dim=2).clamp(min=0).unflatten(1, (side, side))


@pytest.mark.parametrize("architecture", ["test_resnet", "torchvision:densenet121"])
def test_cells_of_hirescam_add_up_to_the_logit(build: Callable[..., Classifier], architecture: str) -> None:
    model = build(architecture, method="hirescam")
    head = getattr(model.network, "fc", None) or model.network.classifier
    output = score(model, input_of(model))  # type: ignore[arg-type]
    assert largest(output.saliency.sum(dim=(2, 3)) + head.bias[model.columns], output.logits) < 1e-5


def test_another_layer_softmax_and_half_precision(build: Callable[..., Classifier]) -> None:
    model = build(layer="layer3", scores="softmax")
    images = input_of(model)
    output = score(model, images)  # type: ignore[arg-type]
    assert output.saliency.shape[2:] == (10, 10)
    assert largest(output.probabilities, model.network(images).softmax(dim=1)[:, [2, 1]]) < 1e-6
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = score(build(), images)  # type: ignore[arg-type]
    assert rough.logits.dtype == rough.saliency.dtype == torch.float32


@pytest.mark.parametrize(
    "preprocess",
    [{}, {"crop_mode": "squash", "crop_pct": 1.0}, {"input_size": [3, 96, 96], "mean": [0.5] * 3, "std": [0.25] * 3}],
)
def test_the_preprocessing_is_that_of_timm(build: Callable[..., Classifier], preprocess: dict[str, Any]) -> None:
    film = gray("film", 290, 210)
    model = build(preprocess=preprocess)
    config = resolve_data_config(pretrained_cfg=model.network.pretrained_cfg | preprocess)
    expected = create_transform(**config)(Image.fromarray(film).convert("RGB"))
    assert largest(model.preprocessing(film)[0], expected) < 1e-6


def test_the_preprocessing_is_that_of_torchvision(build: Callable[..., Classifier]) -> None:
    film = gray("film", 290, 310)
    expected = torchvision.models.DenseNet121_Weights.IMAGENET1K_V1.transforms()(Image.fromarray(film).convert("RGB"))
    assert largest(build("torchvision:densenet121").preprocessing(film)[0], expected) < 1e-6


WRONG: dict[str, dict[str, Any]] = {
    "has no class for Edema; its classes are Atelectasis.*--model.class_of .*--model.missing skip": {"find": ["Edema"]},
    "has no class 'Oedema'; it has": {"class_of": {"Edema": "Oedema"}},
    "two classes stand for one finding": {"classes": ["Nodule", "nodule", *"abcd"]},
    "do not fit test_resnet.*--model.classes": {"classes": ["Nodule"]},
    "layer4.9: give a layer .*layer4": {"layer": "layer4.9"},
    "trained_on is empty": {"trained_on": []},
    "preprocess cannot be .*size.* Give input_size": {"preprocess": {"size": 3}},
    "cannot be .*160.* with 224 x 160, center": {"preprocess": {"input_size": [3, 224, 160]}},
    "needs the weights of its authors: give --model.checkpoint": {
        "architecture": "torchvision:resnet18",
        "checkpoint": None,
    },
    "torchvision:resnet cannot be built .*Unknown model": {"architecture": "torchvision:resnet"},
    "resnet51 cannot be built .*list_models": {"architecture": "resnet51"},
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_said(file_of: Callable[[str], Path], said: str) -> None:
    given = {"architecture": "test_resnet", "classes": CLASSES, "trained_on": ["x"], "find": FINDINGS}
    given = given | {"checkpoint": str(file_of("test_resnet"))} | WRONG[said]
    findings = given.pop("find")
    with pytest.raises(UserError, match=said):
        attached(Classifier(**given), *findings)  # type: ignore[type-var]


@pytest.mark.parametrize(("weights", "size"), [(ALL, 224), (LARGE, 512)])
def test_scores_are_those_of_the_library(
    file_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, weights: str, size: int
) -> None:
    monkeypatch.setattr(torchxrayvision.models, "get_weights", lambda weights, cache_dir=None: str(file_of(weights)))
    model = attached(TorchXRayVision(weights), "Pleural Thickening", "Cardiomegaly")  # type: ignore[type-var]
    official = torchxrayvision.models.get_model(weights).eval()
    film = gray("film", size + 91, size + 40)
    image = torchxrayvision.datasets.normalize(film, 255, reshape=True)
    for step in (torchxrayvision.datasets.XRayCenterCrop(), torchxrayvision.datasets.XRayResizer(size)):
        image = step(image)
    pixels, view = model.preprocessing(film)
    assert view[:2] == (0, pytest.approx(25 / film.shape[0], abs=1e-6)) or view[0] == 0
    assert largest(pixels * 1024, np.repeat(image, 3, axis=0)) < 1e-3
    output = score(model, pixels[None])  # type: ignore[arg-type]
    expected = official(torch.from_numpy(image)[None]).detach()
    columns = [official.targets.index(name) for name in ("Pleural_Thickening", "Cardiomegaly")]
    assert largest(output.probabilities, expected[:, columns]) < 1e-5
    assert output.saliency.shape == (1, 2, size // 32, size // 32)
    assert (output.logits.argsort() == expected[:, columns].argsort()).all()
    batch: Any = SimpleNamespace(images=pixels[None], display=[torch.from_numpy(film)])
    assert model.input_problem(batch, model.network_input(pixels[None])) is None


TRAINED_ON = {
    ALL: {"chestxray14", "PadChest", "CheXpert", "MIMIC-CXR", "NIH-Google", "Open-I", "rsna"},
    NIH: {"chestxray14"},
    "densenet121-res224-pc": {"PadChest"},
    "densenet121-res224-chex": {"CheXpert"},
    "densenet121-res224-rsna": {"rsna"},
    "densenet121-res224-mimic_nb": {"MIMIC-CXR"},
    "densenet121-res224-mimic_ch": {"MIMIC-CXR"},
    LARGE: {"PadChest", "chestxray14", "rsna", "siim", "vindr"},
}


@pytest.mark.parametrize("weights", TRAINED_ON)
def test_what_each_was_trained_on(file_of: Callable[[str], Path], weights: str) -> None:
    model = TorchXRayVision(weights, str(file_of(LARGE if weights == LARGE else ALL)))
    assert {*model.trained_on} == TRAINED_ON[weights] and len(model.trained_on) == len(TRAINED_ON[weights])
    about = torchxrayvision.models.model_urls[weights]
    known = {name for name, point in zip(about["labels"], about["op_threshs"], strict=True) if not np.isnan(point)}
    assert {*model.classes} == known - {""}


def test_xrv_says_what_is_wrong(file_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=f"is unknown; torchxrayvision has .*{LARGE}"):
        TorchXRayVision("densenet")
    with pytest.raises(UserError, match=r"do not fit resnet50-res512-all.*github\.com.*-state\.pt"):
        TorchXRayVision(LARGE, str(file_of(ALL)))
    monkeypatch.setattr(torchxrayvision.models, "get_weights", Mock(side_effect=OSError("no network")))
    with pytest.raises(UserError, match=r"https://github\.com.* could not be downloaded \(no network\)"):
        TorchXRayVision()
    monkeypatch.setitem(sys.modules, "torchxrayvision", None)
    monkeypatch.setattr(classifier, "_torchxrayvision", classifier._torchxrayvision.__wrapped__)
    with pytest.raises(UsageError, match="pip install 'torchxrayvision"):
        TorchXRayVision()


def test_no_code_of_a_pickled_network_runs(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(tmp_path / "ran"), "w")

    network = torchxrayvision.models.DenseNet(num_classes=2, block_config=(1, 1), num_init_features=8)
    network.evil, network.names, network.pathologies = Evil(), {"a"}, np.array(["b"])
    for zipped in (True, False):
        torch.save(network, tmp_path / "network.pt", _use_new_zipfile_serialization=zipped)
        tensors, expected = read_network(tmp_path / "network.pt"), network.state_dict()
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())
    assert not (tmp_path / "ran").exists()
    (tmp_path / "network.pt").write_bytes(b"no weights")
    with pytest.raises(UserError, match="not a file of plain weights"):
        read_network(tmp_path / "network.pt")


@pytest.mark.usefixtures("unsaved_figures")
def test_a_run(file_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"--model.checkpoint={file_of('test_resnet')}", "--model.architecture=test_resnet"]
    given += [f"--model.classes={json.dumps(CLASSES)}", "--model.trained_on=[phantom, PadChest]"]
    given += ["--model.class_of={Fracture: No Finding}", f"--trainer.default_root_dir={tmp_path / 'runs'}"]
    given += ["--trainer.logger=false", "--data.images=6", "--data.size=96", "--data.num_workers=0"]
    assert main(["test", "--config", "classifier_phantom", *given]) == 2
    assert "no class for Cardiomegaly, Pneumothorax;" in capsys.readouterr().err
    assert main(["test", "--config", "classifier_phantom", *given, "--model.missing=skip"]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    (path,) = (tmp_path / "runs").glob("*/*/results.json")
    results = json.loads(path.read_text())
    assert disagreements(path.parent) == []
    assert "Cardiomegaly" not in results["findings"] and "Fracture" in results["findings"]
    about = results["provenance"]["model"]
    assert about["trained_on"] == ["phantom", "PadChest"] and about["classes"]["Fracture"] == "No Finding"
    assert about["findings_left_out"] == "Cardiomegaly, Pneumothorax" and about["layer"] == "layer4"
    (note,) = [one["note"] for one in results["counts"]["notes"] if one["note"].startswith(SUPERVISED_NOTE)]
    assert "trained on the labels of PhantomCXR and PadChest" in note and "on PhantomCXR is unfair" in note
    assert note in said
    write_run(tmp_path / "runs", "clip", "phantom")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "pages")]) == 0
    for page in ("report.md", "index.html"):
        text = " ".join((tmp_path / "pages" / page).read_text().split())
        assert "Classifier (supervised)" in text and note in text and "on PhantomCXR is" in text


def test_a_model_of_ones_own_is_marked_by_what_it_declares(tmp_path: Path) -> None:
    write_run(tmp_path, "mine", "siim", trained_on=["NIH", "CheXpert"])
    (run,) = collect([tmp_path]).runs
    assert run.label == "mine (supervised)" and run.trained_on == ("NIH", "CheXpert")
    assert training_of(run.trained_on, "vindr") == "trained on the labels of NIH and CheXpert"
    assert "on SIIM-ACR Pneumothorax and CheXlocalize is unfair" in training_of(
        run.trained_on, "siim", "vindr", "chexlocalize"
    )


@pytest.mark.parametrize(("mark", "models"), [("supervised", {"xrv", "classifier"}), ("exploratory", {"llavarad"})])
def test_list_marks_what_is_no_fair_comparison(mark: str, models: set[str]) -> None:
    assert {name for name, path in shipped("models").items() if mark in summary(path)} == models
