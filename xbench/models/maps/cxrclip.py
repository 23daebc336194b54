"""CXR-CLIP: a ResNet-50 or a Swin-T and a BERT with linear heads, trained on radiographs, reports and class labels.

K. You et al., "CXR-CLIP: Toward Large Scale Chest X-ray Language-Image Pre-training", MICCAI 2023. The probability is
the softmax of a pair's two unscaled cosines, so all are near 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet50  # type: ignore[import-untyped]
from transformers import SwinConfig, SwinModel
from transformers.initialization import no_init_weights

from xbench.geometry.transforms import CenterCrop, PillowResize, Preprocessing
from xbench.models.base import check_image_size
from xbench.models.networks.bert import bert_like, encode_in_chunks, load_tokeniser, tokenise
from xbench.models.networks.checkpoint import fill, locate, read_remarks, read_settings, read_tensors, undrawn
from xbench.models.networks.dual_encoder import DualEncoder, compare, cosine_maps
from xbench.types import ModelOutput

_SOURCE = "Archives such as r50_mcc.tar are linked from the README of github.com/kakaobrain/cxr-clip; CC BY-NC 4.0."
# Datasets whose labels trained a checkpoint, by the end of its file name.
_LABELS = {"mc": ("CheXpert",), "mcc": ("CheXpert", "chestxray14")}
_UNUSED = ("logit_scale", "*.relative_position_index", "*.embeddings.position_ids")
# Parts of a Swin: names in transformers 4, names in transformers 5.
_RENAMED = {f"attention.self.{name}.": f"attention.{name[0]}_proj." for name in ("query", "key", "value")}
_RENAMED["attention.self.relative_position_bias_"] = "attention.relative_position_bias.relative_position_bias_"
_RENAMED |= {"attention.output.dense.": "attention.o_proj."}  # must precede the shorter one
_RENAMED |= {"intermediate.dense.": "mlp.fc1.", "output.dense.": "mlp.fc2."}


class CXRCLIP(DualEncoder):
    """CXR-CLIP, whose checkpoint determines the image encoder.

    Checkpoints trained with CheXpert (file name ends in `mc`) or also ChestX-ray14 (`mcc`) saw their labels as prompts,
    and count as supervised.

    Args:
        checkpoint: File of the authors, or its tensors in a .safetensors file.
        text_encoder: Hugging Face id or local folder of the tokenizer. The weights come from the checkpoint.
        templates: Present and absent prompt; `{finding}` stands for the finding's name. Several count by mean cosine.
        image_size: Side of the square input in pixels, a multiple of 32.
        saliency: The map of the projected cells: their dot product with the text (`dot`, the ResNet's default), whose
            mean is the score times the length of the image vector, or their cosine (`cell`, the Swin's default).
    """

    worded, stated = False, "text_source swin image_size saliency"

    def __init__(
        self,
        checkpoint: str | None = None,
        text_encoder: str = "emilyalsentzer/Bio_ClinicalBERT",
        templates: tuple[str, str] = ("{finding}", "No {finding}"),
        image_size: int = 224,
        saliency: Literal["dot", "cell"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.checkpoint = locate(checkpoint, "CXR-CLIP", _SOURCE)
        check_image_size(image_size, 32)
        self.text_source, self.image_size = text_encoder, image_size
        self.templates = [templates[0]], [templates[1]]
        # The checkpoint's own settings, or those that `convert` noted.
        settings = {**read_settings(self.checkpoint).get("base", {}), **read_remarks(self.checkpoint)}
        self.text_length = int(settings.get("text_max_length", 256))
        self._data: str = settings.get("trained_with", self.checkpoint.stem.rpartition("_")[2])
        self.trained_on = _LABELS.get(self._data, ())
        tensors = read_tensors(self.checkpoint)
        self.swin = any(name.startswith("image_encoder.image_encoder.") for name in tensors)
        if self.swin:
            self.exploratory = "its Swin was trained to match text with its upper left cell alone"
            tensors = {_renamed(name): tensor for name, tensor in tensors.items()}
        self.saliency = saliency or ("cell" if self.swin else "dot")
        self.map_scale = "cosine" if self.saliency == "cell" else "none"
        bert = bert_like(tensors, "text_encoder.text_encoder.")
        self.text_encoder = nn.ModuleDict({"text_encoder": bert})
        self.text_projection = nn.ModuleDict({"projection": nn.Linear(bert.config.hidden_size, 512)})
        if self.swin:
            with no_init_weights():
                encoder = {"image_encoder": SwinModel(SwinConfig(), add_pooling_layer=False)}
        else:
            encoder = {"resnet": undrawn(resnet50)}
            encoder["resnet"].avgpool = encoder["resnet"].fc = nn.Identity()
        self.image_encoder = nn.ModuleDict(encoder)
        self.image_projection = nn.ModuleDict({"projection": nn.Linear(768 if self.swin else 2048, 512)})
        fill(self, tensors, self.checkpoint, "CXR-CLIP", _UNUSED)
        cropped = [PillowResize(image_size, "shortest", "bilinear"), CenterCrop(image_size)]
        imagenet = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        self.preprocessing = Preprocessing(cropped, *(((0.5,) * 3, (0.5,) * 3) if self.swin else imagenet))

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        return self.encode_tokens(*tokenise(load_tokeniser(self.text_source), texts, self.text_length, "CXR-CLIP"))

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode token ids and mask (N, L) as unit vectors (N, 512), from the state of the last token."""

        def last(ids: Tensor, mask: Tensor) -> Tensor:
            states = self.text_encoder["text_encoder"](ids, mask).last_hidden_state
            return states[torch.arange(len(ids), device=ids.device), mask.sum(dim=1) - 1]  # type: ignore[no-any-return]

        states = encode_in_chunks(last, input_ids.to(self.device), attention_mask.to(self.device))
        return F.normalize(self.text_projection["projection"](states).float(), dim=-1)

    def average(self, vectors: Tensor) -> Tensor:
        return vectors.mean(dim=0)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, h, w) against pairs of text vectors (C, 2, 512); a cell is 32 pixels wide."""
        grid = (images.shape[-2] // 32, -1)
        if self.swin:
            cells = self.image_encoder["image_encoder"](images).last_hidden_state.unflatten(1, grid)
            pooled = cells[:, 0, 0]
        else:
            cells = self.image_encoder["resnet"](images).unflatten(1, (2048, *grid)).permute(0, 2, 3, 1)
            pooled = cells.mean(dim=(1, 2))
        project = self.image_projection["projection"]
        logits = compare(project(pooled), queries)
        maps = cosine_maps(project(cells), queries[:, 0], unit=self.saliency == "cell")
        return ModelOutput(logits, torch.sigmoid(logits), maps)

    def remarks(self) -> Mapping[str, str]:
        return {"text_max_length": str(self.text_length), "trained_with": self._data}


def _renamed(name: str) -> str:
    old = next((old for old in _RENAMED if old in name and name.startswith("image_")), "")
    return name.replace(old, _RENAMED[old]) if old else name
