"""KAD: a decoder asks the image about all findings at once, by their bare names.

X. Zhang, C. Wu, Y. Zhang, W. Xie and Y. Wang, "Knowledge-enhanced visual-language pre-training on chest radiology
images", Nature Communications 14, 4542, 2023. The score is the softmax of absent and present; the map is the
cross-attention of the last decoder layer, averaged over its heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
import torchvision  # type: ignore[import-untyped]
from torch import Tensor, nn

from xbench.models.networks.checkpoint import locate, read_remarks, read_settings, read_tensors
from xbench.models.networks.kebert import SECTIONS, WIDTH, Ask, KEBERTModel, QueryModel
from xbench.models.networks.query_decoder import Layers
from xbench.models.networks.vit import ViTB16, implementation_of, side_of, with_timm_names

_SOURCE = (
    "The README of github.com/xiaoman-zhang/KAD links folders that hold KAD_512/best_valid.pt and "
    "KAD_1024/best_valid.pt."
)


class KAD(KEBERTModel):
    """KAD with whichever image encoder its checkpoint holds.

    In the released files that is a ResNet-50 of stride 32; the authors' code also trains one of stride 16 (for images
    of 224 pixels) and a DenseNet-121, and tests a ViT-B/16.

    Args:
        checkpoint: File of weights, such as `best_valid.pt`. The knowledge encoder's file is not needed.
        image_size: Side in pixels of the square that the radiograph is stretched to. By default `img_res` of the
            checkpoint's own settings, as in the authors' scripts, or 224.
        layers: Decoder layers, from 0, whose attention makes the map, or `all` or `last`. Officially `last`, of which
            all `heads` count.
        ask: What is asked together, on which each score depends: `official` asks all classes of the authors' script for
            a dataset (the 14 of ChestX-ray14), or those of the dataset without one; `dataset` asks the findings that
            are scored; a list of names asks these, the dataset's findings among them.
        **options: Those of `xbench.models.networks.query_decoder.DecoderModel`.
    """

    # In the order of the authors' script. Their lists for CheXpert and ChestX-Det10 are the classes of the datasets.
    official_lists = (
        (
            *("Atelectasis", "Cardiomegaly", "Pleural Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia"),
            *("Pneumothorax", "Consolidation", "Edema", "Emphysema", "Pulmonary Fibrosis", "Pleural Thickening"),
            "Hernia",
        ),
    )

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        image_size: int | None = None,
        layers: Layers = "last",
        ask: Ask = "official",
        **options: Any,
    ) -> None:
        path = locate(checkpoint, "KAD", _SOURCE)
        tensors = read_tensors(path, SECTIONS)
        # The checkpoint's own settings, or what `convert` noted of them.
        settings = {**read_settings(path), **read_remarks(path)}
        size = next((str(settings[name]) for name in _SIZES if name in settings), "")
        trained_size = int(size) if size.isdecimal() and int(size) else None
        with torch.device("meta"):
            name, encoder, stride, tensors, unused, aliases = _image_encoder(tensors)
            model = QueryModel()
        super().__init__(
            path,
            tensors,
            encoder,
            model,
            stride,
            unused,
            aliases,
            advice="",
            image_size=(trained_size or 224) if image_size is None else image_size,
            layers=layers,
            ask=ask,
            **options,
        )
        self.encoder_name, self.trained_size = name, trained_size

    def remarks(self) -> Mapping[str, str]:
        """Return the image size that the checkpoint's own settings say, which are not converted."""
        return {} if self.trained_size is None else {_SIZES[0]: str(self.trained_size)}

    def provenance(self) -> dict[str, Any]:
        """Add the image encoder."""
        return {"image_encoder": self.encoder_name, **super().provenance()}


# The authors' scripts read the first; their early settings, and those of others who build on KAD, have the second.
_SIZES = ("img_res", "image_res")


class _ResNet50(nn.Module):
    """The official ModelRes512 (stride 32) or ModelRes (stride 16, without the last stage), as a token grid."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        children, channels = (8, 2048) if stride == 32 else (7, 1024)
        self.res_features = nn.Sequential(*list(torchvision.models.resnet50().children())[:children])
        self.res_l1 = nn.Linear(channels, channels)
        self.res_l2 = nn.Linear(channels, WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        features = self.res_features(images).permute(0, 2, 3, 1)
        return cast(Tensor, self.res_l2(F.relu(self.res_l1(features))))


class _DenseNet121(nn.Module):
    """The official ModelDense, as a token grid. No ReLU follows its last batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.dense_features = torchvision.models.densenet121().features
        self.dense_l1 = nn.Linear(1024, 1024)
        self.dense_l2 = nn.Linear(1024, WIDTH)

    def forward(self, images: Tensor) -> Tensor:
        features = self.dense_features(images).permute(0, 2, 3, 1)
        return cast(Tensor, self.dense_l2(F.relu(self.dense_l1(features))))


def _image_encoder(
    tensors: dict[str, Tensor],
) -> tuple[str, nn.Module, int, dict[str, Tensor], tuple[str, ...], dict[str, str]]:
    """Return name, network and stride of the image encoder, its tensors renamed, needless names, and second names."""
    if "image_encoder.dense_l1.weight" in tensors:
        aliases = {"image_encoder.densenet.features.": "image_encoder.dense_features."}
        unused: tuple[str, ...] = ("image_encoder.densenet.classifier.*",)
        return "DenseNet-121, stride 32", _DenseNet121(), 32, tensors, unused, aliases
    implementation = implementation_of(tensors)
    # Our own names, timm's, are those of a converted file.
    if implementation in ("pytorch_pretrained_vit", "timm"):
        renamed = with_timm_names(tensors)
        side = side_of(renamed)
        # The official module has a final norm and never applies it.
        unused = ("image_encoder.norm.*",) if implementation == "pytorch_pretrained_vit" else ()
        return f"ViT-B/16 of {side} pixels", ViTB16(side, final_norm=False), 16, renamed, unused, {}
    first = tensors.get("image_encoder.res_l1.weight")
    stride = 16 if first is not None and len(first) == 1024 else 32
    # Positions 2 and 3 are without parameters: ReLU and max-pooling.
    children = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}
    aliases = {f"image_encoder.resnet.{name}.": f"image_encoder.res_features.{i}." for name, i in children.items()}
    unused = ("image_encoder.resnet.fc.*",)
    if stride == 16:
        # It is without the last stage, which files still have under its other name.
        del aliases["image_encoder.resnet.layer4."]
        unused = (*unused, "image_encoder.resnet.layer4.*")
    return f"ResNet-50, stride {stride}", _ResNet50(stride), stride, tensors, unused, aliases
