"""BioViL and BioViL-T: a ResNet-50 and CXR-BERT compare an image and its cells with a sentence.

B. Boecking et al., "Making the Most of Text Semantics to Improve Biomedical Vision-Language Processing", ECCV 2022
(BioViL); S. Bannur, S. Hyland et al., "Learning to Exploit Temporal Structure for Biomedical Vision-Language
Processing", CVPR 2023 (BioViL-T). Two 1 x 1 convolutions project each cell to 128 dimensions. The score is the cosine
of their mean with the text, the map the cosine of each cell with the text, smoothed by a Gaussian.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
import torchvision  # type: ignore[import-untyped]
from torch import Tensor, nn
from transformers import BertModel, BertTokenizer

from xbench.geometry.grid import Upsampling
from xbench.geometry.transforms import CenterCrop, PillowResize, Preprocessing, TruncatedMinMax
from xbench.models.base import check_image_size
from xbench.models.networks.bert import bert_like, encode_in_chunks, find_file, load_tokeniser, tokenise, weights_file
from xbench.models.networks.checkpoint import fill, locate, read_tensors, undrawn
from xbench.models.networks.dual_encoder import DualEncoder, compare, cosine_maps
from xbench.runtime.digests import file_sha256
from xbench.runtime.errors import UsageError, UserError
from xbench.types import MapScale, ModelOutput

_WIDTH, _CELL, _CHANNELS = 128, 32, 2048
_UNUSED_TEXT = ("cls.predictions.*", "bert.embeddings.position_ids")

# From the authors' example of zero-shot classification for pneumonia, present and absent.
_FINDINGS = ("consistent with", "suggesting", "are most compatible with")
_PRESENT = [*(f"Findings {words} {{finding}}" for words in _FINDINGS), "This opacity can represent {finding}"]
_ABSENT = [f"{no} {{finding}}" for no in ("There is no", "No evidence of", "No evidence of acute", "No signs of")]
# The tokenizer would read these as special tokens; the authors allow only [MASK].
_SPECIAL = ("[CLS]", "[SEP]", "[PAD]", "[UNK]")


class BioViL(DualEncoder):
    """BioViL with the weights of its authors.

    The score is the cosine with the mean vector of the present prompts minus that of the absent ones; the authors call
    a finding present above 0. The checkpoint has no temperature, so probabilities are near 0.5 by default.

    Args:
        checkpoint: The authors' file of the image model; by default from the source of the text model.
        text_encoder: Text model and tokenizer of the same release: a folder, or a name on the Hugging Face hub with its
            revision after an `@`.
        image_size: Side in pixels of the central square that the model sees, a multiple of 32.
        resize: Length in pixels of the shorter side before the crop; 512 in proportion to the authors' crop by default.
        sigma: Standard deviation in cells of the Gaussian that smooths the map; 0 for none.
        saliency_upsample: How to enlarge maps: `nearest`, the authors' default, or `bilinear`, as in their notebook.
        temperature: Divisor of the score before the sigmoid.
        templates: Present and absent prompts, each with `{finding}`. Other `prompts` replace the present ones. Without
            absent prompts the score is the cosine with the present ones.
    """

    release: ClassVar[str] = "microsoft/BiomedVLP-CXR-BERT-specialized@v1.1"
    file: ClassVar[str] = "biovil_image_resnet50_proj_size_128.pt"
    title: ClassVar[str] = "BioViL"
    crop: ClassVar[int] = 480
    """Side of the authors' crop."""
    temporal: ClassVar[bool] = False
    """Whether half of the features describe the change since a prior image."""
    map_scale: MapScale = "cosine"
    saliency, checkpoint_part = "cosine", "image_model"
    stated = "checkpoint text_encoder image_size resize saliency temperature"

    def __init__(
        self,
        checkpoint: str | None = None,
        text_encoder: str | None = None,
        *,
        image_size: int | None = None,
        resize: int | None = None,
        sigma: float = 1.5,
        saliency_upsample: Upsampling = "nearest",
        temperature: float = 1.0,
        templates: tuple[list[str], list[str]] = (_PRESENT, _ABSENT),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.image_size = self.crop if image_size is None else image_size
        check_image_size(self.image_size, _CELL)
        self.resize = round(self.image_size * 512 / self.crop) if resize is None else resize
        if self.resize < self.image_size or sigma < 0 or temperature <= 0:
            raise UsageError(
                f"--model.resize {self.resize}, sigma {sigma}, temperature {temperature}: resize must be at least "
                f"image_size ({self.image_size}), sigma at least 0, and temperature above 0."
            )
        self.map_sigma, self.temperature, self.templates = sigma, temperature, templates
        self.saliency_upsample = saliency_upsample
        self.text_source = text_encoder or self.release
        geometry = [TruncatedMinMax(), PillowResize(self.resize, "shortest", "bilinear"), CenterCrop(self.image_size)]
        self.preprocessing = Preprocessing(geometry, mean=(0.0,) * 3, std=(1.0,) * 3)
        source = f"It is {self.file} of huggingface.co/{self.release.replace('@', ', revision ')}."
        path = locate(checkpoint, self.title, source) if checkpoint else find_file(self.text_source, self.file)
        self.checkpoint = path
        self.image_model = undrawn(lambda: _image_model(self.temporal))
        unused = ("encoder.encoder.fc.*", *(["encoder.vit_pooler.*"] if self.temporal else []))
        fill(self.image_model, read_tensors(path), path, self.title, unused)

    def tokenise(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return token ids and attention mask (N, 512) of N texts without final `!`, `?` and `.`."""
        if odd := [text for text in texts if any(token in text for token in _SPECIAL)]:
            raise UserError(f"The prompt {odd[0]!r} contains one of {', '.join(_SPECIAL)}, which {self.title} refuses.")
        tokeniser = load_tokeniser(self.text_source, kind=BertTokenizer)
        return tokenise(tokeniser, [text.rstrip("!?.") for text in texts], 512, self.title)

    def encode_tokens(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        text_model = self._text_model.to(self.device)
        ids, mask = (part.long().to(self.device) for part in (input_ids, attention_mask))
        return encode_in_chunks(text_model, ids, mask).float()

    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        return self.encode_tokens(*self.tokenise(texts))

    def average(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors.mean(dim=0), dim=-1)

    def forward(self, images: Tensor, queries: Tensor) -> ModelOutput:
        """Score images (B, 3, image_size, image_size) in [0, 1] against text vectors, pairs (C, 2, 128) or (C, 128).

        Logits (B, C) are in [-2, 2] for pairs; maps (B, C, rows, columns) are smoothed cosines of the present prompts.
        """
        cells = self.image_model(images).float()
        present = queries[:, 0] if queries.ndim == 3 else queries
        # Half precision has too few digits to rank cosines.
        with torch.autocast(images.device.type, enabled=False):
            logits = compare(cells.mean(dim=(2, 3)), queries)
            saliency = self.smoothed(cosine_maps(cells.permute(0, 2, 3, 1), present))
        return ModelOutput(logits, torch.sigmoid(logits / self.temperature), saliency)

    def provenance(self) -> dict[str, Any]:
        return {**super().provenance(), "text_encoder_sha256": file_sha256(weights_file(self.text_source))}

    @cached_property
    def _text_model(self) -> _TextModel:
        # Not a submodule, because the checkpoint does not contain its weights.
        path = weights_file(self.text_source)
        tensors = read_tensors(path)
        model = _TextModel(bert_like(tensors, "bert."))
        advice = f"Give --model.text_encoder a folder with the files of {self.release}."
        fill(model, tensors, path, f"the text model of {self.title}", _UNUSED_TEXT, advice)
        return model


class BioViLT(BioViL):
    """BioViL-T with the weights of its authors, on single images: a learned constant replaces the prior image."""

    release = "microsoft/BiomedVLP-BioViL-T@v1.0"
    file = "biovil_t_image_model_proj_size_128.pt"
    title = "BioViL-T"
    crop = 448
    temporal = True


def _image_model(temporal: bool) -> nn.Sequential:
    """Return the image model with the authors' names: (B, 3, H, W) to (B, 128, H / 32, W / 32)."""
    first, last = nn.Conv2d(512 if temporal else _CHANNELS, _WIDTH, 1, bias=False), nn.Conv2d(_WIDTH, _WIDTH, 1)
    head = nn.Sequential(first, nn.BatchNorm2d(_WIDTH), nn.ReLU(), last)
    return nn.Sequential(OrderedDict(encoder=_Encoder(temporal), projector=nn.Sequential(OrderedDict(model=head))))


class _Encoder(nn.Module):
    """A ResNet-50 to its last stage; if `temporal`, 256 channels of it and 256 constants in place of a prior image."""

    def __init__(self, temporal: bool) -> None:
        super().__init__()
        self.encoder = torchvision.models.resnet50()
        self.encoder.avgpool = self.encoder.fc = nn.Identity()
        self._temporal = temporal
        if temporal:
            self.backbone_to_vit = nn.Conv2d(_CHANNELS, 256, 1, bias=False)
            self.missing_previous_emb = nn.Parameter(torch.zeros(1, 256, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.encoder(images).unflatten(1, (_CHANNELS, images.shape[-2] // _CELL, -1))
        if not self._temporal:
            return features
        static = self.backbone_to_vit(features)
        return torch.cat([static, self.missing_previous_emb.to(static.dtype).expand_as(static)], dim=1)


class _TextModel(nn.Module):
    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert
        first, last = nn.Linear(bert.config.hidden_size, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        norm = nn.LayerNorm(_WIDTH, eps=1e-12)
        head = OrderedDict(dense_to_hidden=first, gelu=nn.GELU(), LayerNorm=norm, dense_to_output=last)
        self.cls_projection_head = nn.Sequential(head)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return cast(Tensor, self.cls_projection_head(self.bert(input_ids, attention_mask).last_hidden_state[:, 0]))
