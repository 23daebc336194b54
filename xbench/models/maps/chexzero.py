"""CheXzero: OpenAI's CLIP ViT-B/32, fine-tuned on radiographs and reports; an ensemble of checkpoints.

E. Tiu, E. Talius, P. Patel, C. P. Langlotz, A. Y. Ng and P. Rajpurkar, "Expert-level detection of pathologies from
unannotated chest X-ray images via self-supervised learning", Nature Biomedical Engineering 2022. The probability of a
checkpoint is the softmax of a pair's two unscaled cosines, so all are near 0.5.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import albumentations as A
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xbench.geometry.transforms import PillowResize, Preprocessing, TensorResize
from xbench.models.maps.clip import CLIP
from xbench.models.networks.checkpoint import locate
from xbench.models.networks.clip_saliency import features_and_maps
from xbench.models.networks.dual_encoder import compare
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UsageError
from xbench.types import ModelOutput

_SOURCE = "They are linked from the README of github.com/rajpurkarlab/CheXzero; MIT license."


class CheXzero(CLIP):
    """CheXzero: one checkpoint, or the mean of several over probabilities and maps.

    The authors published no maps: these are CLIP's. Logits belong to the mean probability.

    Args:
        checkpoint: One of the authors' files, or a folder of files to use together.
        templates: Present and absent prompt; `{finding}` stands for the finding's name.
        antialias: Whether the second resizing smooths, as in torchvision since 0.17. The authors' does not.
        contrast: Whether to subtract the map of the absent prompt.
    """

    advice = f"Give --model.checkpoint the files of the authors of CheXzero. {_SOURCE}"
    worded = False
    stated = "contrast"

    def __init__(
        self,
        checkpoint: str | None = None,
        templates: tuple[str, str] = ("{finding}", "no {finding}"),
        antialias: bool = False,
        contrast: bool = False,
        image_size: int | None = None,
        **options: Any,
    ) -> None:
        folder = Path(checkpoint or "").expanduser()
        self.files = sorted(file for file in folder.glob("*") if file.suffix in (".pt", ".safetensors"))
        if not (checkpoint and self.files):
            self.files = [locate(checkpoint, "CheXzero", _SOURCE)]
        super().__init__("ViT-B-32-quickgelu", None, str(self.files[0]), templates, None, image_size, **options)
        self.contrast = contrast
        self.members: Any = nn.ModuleList([self.model])
        for file in self.files[1:]:
            self.members.append(copy.deepcopy(self.model))
            self.read_weights(self.members[-1], file)
        self.preprocessing = preprocessing(self.image_size, antialias)

    def encode_vectors(self, input_ids: Tensor) -> Tensor:
        vectors = [member.encode_text(input_ids).float() for member in self.members]
        return F.normalize(torch.stack(vectors, dim=1), dim=-1)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score normalized images (B, 3, h, w) against pairs of text vectors (C, 2, M, D) of the M checkpoints."""
        probabilities, maps = [], []
        for member, pairs in zip(self.members, queries.unbind(dim=2), strict=True):
            text = pairs.transpose(0, 1).flatten(0, 1) if self.contrast else pairs[:, 0]
            pooled, shown = features_and_maps(member, images, text, self.saliency)
            present, absent = shown.split(len(pairs), dim=1) if self.contrast else (shown, 0)
            probabilities.append(torch.sigmoid(compare(pooled, pairs)))
            maps.append(present - absent)
        probability = torch.stack(probabilities).mean(dim=0)
        return ModelOutput(probability.logit(), probability, torch.stack(maps).mean(dim=0))

    def weights(self) -> Mapping[str, Tensor]:
        if len(self.members) > 1:
            raise UsageError(f"convert takes one checkpoint of CheXzero, not {len(self.members)}: convert each.")
        return super().weights()

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "files_sha256": {file.name: file_sha256(file) for file in self.files}}


class _ResizeLonger(PillowResize):
    """Resize the longer side by Lanczos with the authors' rounding, which can lose a pixel."""

    def _target(self, shape: Sequence[int]) -> tuple[int, int]:
        ratio = self.size / max(shape[:2])
        return max(int(shape[0] * ratio), 1), max(int(shape[1] * ratio), 1)


def preprocessing(image_size: int, antialias: bool) -> Preprocessing:
    """Return the authors' preprocessing: fitted on a black canvas of 320 pixels, then resized to the input."""
    canvas = round(image_size * 320 / 224)
    fitted = [_ResizeLonger(canvas, "longest", "lanczos"), A.PadIfNeeded(canvas, canvas)]
    geometry = [*fitted, TensorResize(image_size, "bicubic", antialias)]
    return Preprocessing(geometry, (101.48761 / 255,) * 3, (83.43944 / 255,) * 3)
