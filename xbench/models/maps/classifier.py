"""Supervised classifiers as a baseline: networks trained on labels, which read no text."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import albumentations as A
import numpy as np
import timm
import torch
import torchvision  # type: ignore[import-untyped]
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from timm.data.config import resolve_data_config
from torch import Tensor, nn

from xbench.findings.names import canonical
from xbench.geometry.transforms import CenterCrop, PillowResize, Preprocessing
from xbench.models.base import SaliencyModel
from xbench.models.networks.checkpoint import explained, fill, locate, read_network, read_tensors, undrawn
from xbench.models.networks.class_maps import Method, logits_and_maps, mapped_layer
from xbench.runtime.errors import UsageError
from xbench.types import Batch, ModelOutput

_INPUT = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
_DATASETS = {"nih": "chestxray14", "google": "NIH-Google", "kaggle": "rsna", "vin": "vindr", "pc": "PadChest"}
_DATASETS |= {"chex": "CheXpert", "openi": "Open-I", "mimic_ch": "MIMIC-CXR", "mimic_nb": "MIMIC-CXR"}
_SCALE = 1024.0  # torchxrayvision's pixels range from -1024 to 1024


class SupervisedModel(SaliencyModel):
    """A network with one logit per class. Subclasses call `_take` in their constructor.

    Args:
        method: Definition of the maps, see `xbench.models.networks.class_maps`.
        layer: Name of the layer whose output is mapped; by default the last convolutional block.
        class_of: Classes of findings that no class with their name or a synonym matches.
        missing: How to treat findings without a class: `stop`, or `skip` to leave them out of the run.
    """

    scored_by, checkpoint_part, stated = "sigmoid", "network", "checkpoint layer scored_by"

    def __init__(
        self,
        method: Method = "gradcam",
        layer: str | None = None,
        class_of: dict[str, str] | None = None,
        missing: Literal["stop", "skip"] = "stop",
    ) -> None:
        super().__init__()
        self.method, self.layer, self.missing = method, layer, missing
        self._class_of, self._left_out = class_of or {}, list[str]()

    def _take(self, network: nn.Module, title: str, classes: Sequence[str | None], checkpoint: Path) -> None:
        self.title, self.checkpoint, self.network = title, checkpoint, network
        self.classes = {name: column for column, name in enumerate(classes) if name}
        self._of_finding = {canonical(name) or name: name for name in self.classes}
        if len(self._of_finding) < sum(map(bool, classes)):
            raise UsageError(f"{title}: two classes stand for one finding. Rename one in --model.classes.")
        for finding, name in self._class_of.items():
            if name not in self.classes:
                raise UsageError(f"--model.class_of: {title} has no class {name!r}; it has {', '.join(self.classes)}.")
            self._of_finding[canonical(finding) or finding] = name
        blank = self.preprocessing(np.zeros((64, 64), np.uint8))[0][None]
        self.layer = mapped_layer(network, self.network_input(blank), self.layer)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if problems := self.problems(self.findings):
            raise UsageError(problems[0])
        if lacking := [finding for finding in self.findings if finding not in self._of_finding]:
            data.leave_out(lacking)
            self.findings, self._left_out = tuple(data.findings), lacking
            rank_zero_warn(f"{self.title} has no class for {', '.join(lacking)}: the run omits these findings.")
        self.columns = [self.classes[self._of_finding[finding]] for finding in self.findings]

    def problems(self, findings: Sequence[str]) -> list[str]:
        lacking = [finding for finding in findings if finding not in self._of_finding]
        if not lacking or (self.missing == "skip" and len(lacking) < len(findings)):
            return []
        what = f"{self.title} has no class for {', '.join(lacking)}; its classes are {', '.join(self.classes)}"
        return [f"{what}. Give --model.class_of '{{FINDING: CLASS}}', or --model.missing skip to score the others."]

    def score(self, batch: Batch) -> ModelOutput:
        images = self.network_input(batch.images)
        logits, maps = logits_and_maps(self.network, self.layer or "", images, self.columns, self.method)
        return ModelOutput(*self.scores_of(logits), maps)

    def network_input(self, images: Tensor) -> Tensor:
        return images

    def scores_of(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits[:, self.columns]
        return logits, logits.sigmoid()

    def provenance(self) -> dict[str, Any]:
        about = super().provenance() | {"network": self.title, "saliency": self.method}
        about |= {"findings_left_out": ", ".join(self._left_out)} if self._left_out else {}
        return {**about, "classes": {finding: self._of_finding[finding] for finding in self.findings}}


class Classifier(SupervisedModel):
    """Any classifier of timm or torchvision that was trained on labels of radiographs.

    Args:
        architecture: timm's name of the network, such as `hf-hub:ORGANISATION/NAME`, or `torchvision:NAME`.
        classes: Names of the outputs, in order.
        trained_on: Datasets whose labels trained it, by xbench's names; reports note where this is unfair.
        checkpoint: File of weights.
        preprocess: Changes to the evaluation transform of the weights, in timm's words: `input_size`, `interpolation`
            (bilinear, bicubic), `mean`, `std`, `crop_pct`, `crop_mode` (center, squash).
        scores: `sigmoid` of each logit, or `softmax` over all if the network chooses one class; log-odds then rank
            images.
    """

    def __init__(
        self,
        architecture: str,
        classes: list[str],
        trained_on: list[str],
        checkpoint: str | None = None,
        preprocess: dict[str, Any] | None = None,
        scores: Literal["sigmoid", "softmax"] = "sigmoid",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not trained_on:
            raise UsageError("--model.trained_on is empty: name the datasets that the classifier was trained on.")
        path = locate(checkpoint, architecture, "For a network on the Hugging Face hub, it is model.safetensors.")
        self.trained_on, self.scored_by = tuple(trained_on), scores
        advice = "timm.list_models() and torchvision.models.list_models() list the names."
        with explained(f"--model.architecture {architecture} cannot be built", advice):
            name = architecture.removeprefix("torchvision:")
            build = timm.create_model if name == architecture else torchvision.models.get_model
            network: nn.Module = build(name, num_classes=len(classes))
        advice = "Give the --model.architecture and the --model.classes that they were trained with."
        fill(network, read_tensors(path), path, architecture, advice=advice)
        self.preprocessing = _preprocessing(getattr(network, "pretrained_cfg", {}), preprocess or {})
        self._take(network, architecture, classes, path)

    def scores_of(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        if self.scored_by == "softmax":
            own = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
            logits = logits - logits[:, None].masked_fill(own, -math.inf).logsumexp(dim=2)
        return super().scores_of(logits)


def _preprocessing(of_weights: Mapping[str, Any], given: Mapping[str, Any]) -> Preprocessing:
    config = resolve_data_config(pretrained_cfg={"interpolation": "bilinear", **of_weights, **given})
    (_, height, width), interpolation, mode = (config[key] for key in ("input_size", "interpolation", "crop_mode"))
    known = height == width and interpolation in ("bilinear", "bicubic") and mode in ("center", "squash")
    if not known or not {*given} <= {*_INPUT}:
        advice = f"Give {', '.join(_INPUT)}; a square input, bilinear or bicubic, center or squash."
        raise UsageError(f"--model.preprocess cannot be {dict(given)} with {height} x {width}, {mode}. {advice}")
    side = math.floor(height / config["crop_pct"])
    resize = PillowResize(side, "both" if mode == "squash" else "shortest", interpolation)
    return Preprocessing([resize, CenterCrop(height)], config["mean"], config["std"])


class TorchXRayVision(SupervisedModel):
    """A classifier of torchxrayvision: DenseNet-121 at 224 pixels or ResNet-50 at 512. Needs that package.

    J. P. Cohen et al., "TorchXRayVision: A library of chest X-ray datasets and models", MIDL 2022. Probabilities are
    the library's: sigmoids, stretched to put the operating point at 0.5. Classes without an operating point had no
    labels in training and count as missing.

    Args:
        weights: The library's name of the weights.
        checkpoint: File of the weights; by default the library downloads it to its own folder.
    """

    name = "xrv"

    def __init__(self, weights: str = "densenet121-res224-all", checkpoint: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        models = _torchxrayvision().models
        if (about := models.model_urls.get(weights)) is None:
            known = [name for name in models.model_urls if "-" in name]
            raise UsageError(f"--model.weights {weights} is unknown; torchxrayvision has {', '.join(known)}.")
        labels, points, url = about["labels"], about["op_threshs"], about["weights_url"]
        # File names look like nih-pc-densenet121-more.pt.
        datasets, architecture, _ = re.split(r"-(densenet121|resnet50)-", url.rpartition("/")[2])
        self.trained_on = tuple(_DATASETS.get(name, name) for name in datasets.split("-"))
        with explained(f"{url} could not be downloaded", "Fetch it elsewhere and give --model.checkpoint FILE."):
            path = Path(checkpoint or models.get_weights(weights)).expanduser()
        build = torchvision.models.resnet50 if architecture == "resnet50" else models.DenseNet
        network: nn.Module = undrawn(partial(build, num_classes=len(labels)))
        if architecture == "resnet50":
            network.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)
        fill(network, read_network(path), path, weights, advice=f"Give the matching --model.weights, or {url}.")
        self.register_buffer("points", torch.tensor(points), persistent=False)
        self.preprocessing = Preprocessing([_CropAndResize(about["input_resolution"])], (0.5,) * 3, (0.5,) * 3)
        classes = [None if math.isnan(point) else name for name, point in zip(labels, points, strict=True)]
        self._take(network, weights, classes, path)

    def network_input(self, images: Tensor) -> Tensor:
        return images[:, :1] * _SCALE

    def input_problem(self, batch: Batch, seen: Tensor | None = None) -> str | None:
        return super().input_problem(batch, None if seen is None else seen / _SCALE)

    def scores_of(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        logits, probabilities = super().scores_of(logits)
        return logits, _torchxrayvision().models.op_norm(probabilities, self.get_buffer("points")[self.columns])


@cache
def _torchxrayvision() -> Any:
    with warnings.catch_warnings():  # the import silences all warnings of the process
        try:
            import torchxrayvision
        except ImportError as error:
            raise UsageError(f"The model xrv needs a package ({error}): pip install 'torchxrayvision>=1.3'.") from error
    return torchxrayvision


class _CropAndResize(A.DualTransform):
    """Crop the central square and resize it as torchxrayvision does, from uint8 to float32 in [0, 1]."""

    def __init__(self, size: int) -> None:
        super().__init__(p=1.0)
        self.size = size

    def apply(self, img: NDArray[np.uint8], **params: Any) -> NDArray[np.float32]:
        tools = _torchxrayvision().datasets
        pixels = tools.XRayResizer(self.size)(tools.XRayCenterCrop()(tools.normalize(img, 255, reshape=True)))
        return np.asarray(pixels[0] / (2 * _SCALE) + 0.5, np.float32)

    def apply_to_keypoints(self, keypoints: NDArray[np.float32], **params: Any) -> NDArray[np.float32]:
        height, width = params["shape"][:2]
        side, moved = min(height, width), keypoints.copy()
        moved[:, :2] = (moved[:, :2] - (width // 2 - side // 2, height // 2 - side // 2)) * (self.size / side)
        return moved
